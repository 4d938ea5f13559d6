"""Closed sliding windows per key with Quix Streams: count, sum, min, max, mean.

A message is one sample: key "rank/metric", value one big-endian double; or, with form=wide, the 20 samples of
a rank and step under the key "rank". Windows close by the time of the whole partition, as ours do. Arguments:
bootstrap input output state-dir, then name=value. Prints the wall clock (ms) at the first message dated from
"measure" on.
"""

import json
import struct
import sys
import time

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Max, Mean, Min, Sum

bootstrap, source, target, state_dir = sys.argv[1:5]
tuned = dict(argument.split("=", 1) for argument in sys.argv[5:])
measure_ms = int(tuned["measure"])
METRICS = 20

app = Application(
    broker_address=bootstrap,
    consumer_group=f"{target}-app",
    auto_offset_reset="earliest",
    state_dir=state_dir,
    commit_interval=float(tuned.get("commit", "5")),
    use_changelog_topics=True,
    auto_create_topics=True,
    consumer_extra_config={"max.partition.fetch.bytes": 16 << 20},
    producer_extra_config={"linger.ms": 100, "batch.size": 256 * 1024, "compression.type": "lz4"},
    loglevel="WARNING",
)
wide = tuned.get("form") == "wide"
unpack = struct.Struct(">20d" if wide else ">d").unpack
pack, pack_wide = struct.Struct(">5d").pack, struct.Struct(">100d").pack
pack_start = struct.Struct(">q").pack
source_topic = app.topic(source, key_deserializer="bytes", value_deserializer="bytes")
target_topic = app.topic(target, key_serializer="bytes", value_serializer="bytes")
seen = False


def read(value, _key, timestamp, _headers):
    global seen
    if not seen and timestamp >= measure_ms:
        seen = True
        print(json.dumps({"began_ms": time.time_ns() // 1_000_000}), flush=True)
    numbers = unpack(value)
    return list(numbers) if wide else numbers[0]


def begin(values):
    return [[1, value, value, value, value] for value in values]


def add(sofar, values):
    for at, value in enumerate(values):
        count, total, low, high, _ = sofar[at]
        count, total = count + 1, total + value
        sofar[at] = [count, total, min(low, value), max(high, value), total / count]
    return sofar


def written(window):
    """The start before the numbers: a result keeps the key of its samples."""
    start = pack_start(window["start"])
    if wide:
        return start + pack_wide(*(number for five in window["value"] for number in five))
    return start + pack(*(window[name] for name in ("count", "sum", "min", "max", "mean")))


samples = app.dataframe(source_topic).apply(read, metadata=True)
windows = samples.hopping_window(duration_ms=10_000, step_ms=1_000, grace_ms=2_000)
if wide:
    closed = windows.reduce(reducer=add, initializer=begin)
else:
    closed = windows.agg(count=Count(), sum=Sum(), min=Min(), max=Max(), mean=Mean())
closed.final(closing_strategy="partition").apply(written).to_topic(target_topic)
app.run()
