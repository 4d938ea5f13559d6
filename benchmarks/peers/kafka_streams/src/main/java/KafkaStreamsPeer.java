import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Closed sliding windows per key with Kafka Streams' DSL: count, sum, min, max, mean.
 *
 * A message is one or more doubles (big-endian), all of one key and one time; a result has five doubles for
 * each of them. One value per message: the key is rank and metric. Twenty: the key is the rank.
 *
 * Arguments: bootstrap input output state-dir, then name=value for what can be tuned (see the README).
 * Prints the wall clock (ms) at which the first record dated from "measure" on was seen.
 */
public final class KafkaStreamsPeer {
  static final long SIZE_MS = 10_000, EVERY_MS = 1_000, GRACE_MS = 2_000;

  public static void main(String[] arguments) throws Exception {
    Properties tuned = new Properties();
    for (String argument : Arrays.copyOfRange(arguments, 4, arguments.length)) {
      String[] pair = argument.split("=", 2);
      tuned.setProperty(pair[0], pair[1]);
    }
    boolean memory = tuned.getProperty("store", "memory").equals("memory");
    boolean suppress = tuned.getProperty("final", "suppress").equals("suppress");
    long measureMs = Long.parseLong(tuned.getProperty("measure", "0"));

    StreamsBuilder builder = new StreamsBuilder();
    Materialized<String, double[], WindowStore<Bytes, byte[]>> materialized =
        Materialized.<String, double[], WindowStore<Bytes, byte[]>>as("aggregates")
            .withKeySerde(Serdes.String())
            .withValueSerde(new DoublesSerde())
            .withStoreType(memory ? BuiltInDslStoreSuppliers.IN_MEMORY : BuiltInDslStoreSuppliers.ROCKS_DB);
    if (tuned.getProperty("changelog", "on").equals("off")) {
      materialized = materialized.withLoggingDisabled();
    }
    boolean[] seen = {false};
    TimeWindowedKStream<String, double[]> windowed =
        builder.stream(arguments[1], Consumed.with(Serdes.String(), new DoublesSerde())
                .withTimestampExtractor((record, previous) -> {
                  if (!seen[0] && record.timestamp() >= measureMs) {
                    seen[0] = true;
                    System.out.println("{\"began_ms\": " + System.currentTimeMillis() + "}");
                    System.out.flush();
                  }
                  return record.timestamp();
                }))
            .groupByKey(Grouped.with(Serdes.String(), new DoublesSerde()))
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(SIZE_MS), Duration.ofMillis(GRACE_MS))
                .advanceBy(Duration.ofMillis(EVERY_MS)));
    if (!suppress) {
      windowed = windowed.emitStrategy(EmitStrategy.onWindowClose());
    }
    KTable<Windowed<String>, double[]> aggregates =
        windowed.aggregate(() -> null, (key, values, sofar) -> add(values, sofar), materialized);
    if (suppress) {
      Suppressed.StrictBufferConfig buffer = Suppressed.BufferConfig.unbounded();
      aggregates = aggregates.suppress(Suppressed.untilWindowCloses(
          tuned.getProperty("changelog", "on").equals("off") ? buffer.withLoggingDisabled() : buffer));
    }
    aggregates.toStream().to(arguments[2],
        Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, SIZE_MS), new DoublesSerde()));

    Properties properties = new Properties();
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2] + "-app");
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, tuned.getProperty("threads", "1"));
    properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, tuned.getProperty("commit.ms", "30000"));
    properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG,
        Long.parseLong(tuned.getProperty("cache.mib", "256")) * 1024 * 1024);
    properties.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, tuned.getProperty("buffered", "1000"));
    properties.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION,
        Long.parseLong(tuned.getProperty("emit.ms", "100")));
    properties.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG),
        tuned.getProperty("poll.records", "1000"));
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 16 << 20);
    properties.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), "100");
    properties.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 * 1024);
    properties.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 64L << 20);
    properties.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG),
        tuned.getProperty("compression", "lz4"));

    KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
    CountDownLatch done = new CountDownLatch(1);
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
      return null;
    });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      streams.close(Duration.ofSeconds(5));
      done.countDown();
    }));
    streams.start();
    done.await();
  }

  /** Five doubles for each value: count, sum, min, max, mean; a new array, since cached ones are shared. */
  static double[] add(double[] values, double[] sofar) {
    double[] now = sofar == null ? new double[values.length * 5] : sofar.clone();
    for (int i = 0, at = 0; i < values.length; i++, at += 5) {
      double value = values[i];
      boolean first = now[at] == 0;
      now[at] += 1;
      now[at + 1] += value;
      now[at + 2] = first ? value : Math.min(now[at + 2], value);
      now[at + 3] = first ? value : Math.max(now[at + 3], value);
      now[at + 4] = now[at + 1] / now[at];
    }
    return now;
  }

  /** An array of doubles as big-endian bytes. */
  static final class DoublesSerde implements Serde<double[]> {
    @Override
    public Serializer<double[]> serializer() {
      return (topic, values) -> {
        if (values == null) {
          return null;
        }
        ByteBuffer bytes = ByteBuffer.allocate(values.length * 8);
        bytes.asDoubleBuffer().put(values);
        return bytes.array();
      };
    }

    @Override
    public Deserializer<double[]> deserializer() {
      return (topic, bytes) -> {
        if (bytes == null) {
          return null;
        }
        double[] values = new double[bytes.length / 8];
        ByteBuffer.wrap(bytes).asDoubleBuffer().get(values);
        return values;
      };
    }
  }
}
