"""Closed sliding windows per key with Faust's own hopping table: count, sum, min, max, mean.

A message is one sample: key "rank/metric", value one big-endian double. Faust closes windows by the wall
clock, ``expires`` seconds after their end, whatever the samples' times say. Arguments: bootstrap input output
state-dir, then name=value. Prints the wall clock (ms) at the first and at the last of ``samples`` messages
dated from "measure" on.
"""

import json
import struct
import sys
import time

import faust

bootstrap, source, target, state_dir = sys.argv[1:5]
tuned = dict(argument.split("=", 1) for argument in sys.argv[5:])
measure_s = int(tuned["measure"]) / 1000
samples = int(tuned["samples"])

app = faust.App(
    f"{target}-app",
    broker=f"kafka://{bootstrap}",
    datadir=state_dir,
    store="memory://",
    topic_partitions=1,
    topic_disable_leader=True,
    web_enabled=False,
    table_cleanup_interval=1.0,
    consumer_max_fetch_size=16 * 1024 * 1024,
    consumer_auto_offset_reset="earliest",
    producer_linger=0.1,
    producer_max_batch_size=256 * 1024,
    stream_wait_empty=False,
    broker_max_poll_records=2_000,
)
source_topic = app.topic(source, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
target_topic = app.topic(target, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
pack = struct.Struct(">5d").pack
pack_start = struct.Struct(">q").pack
unpack = struct.Struct(">d").unpack


async def closed(key, value):
    """Called with ((key, (start, end)), value) for each window."""
    name, (start, _) = key
    await target_topic.send(key=name.encode() + pack_start(round(start * 1000)), value=pack(*value))


table = app.Table("aggregates", default=list, partitions=1, on_window_close=closed).hopping(
    10.0, 1.0, expires=float(tuned["expires"])
)


def add(before, value):
    """A new list: the changelog of the last one may not be sent yet."""
    if not before:
        return [1, value, value, value, value]
    count, total = before[0] + 1, before[1] + value
    return [count, total, min(before[2], value), max(before[3], value), total / count]


@app.agent(source_topic)
async def aggregate(stream):
    seen = 0
    async for event in stream.events():
        if event.message.timestamp >= measure_s:
            seen += 1
            if seen == 1:
                print(json.dumps({"began_ms": time.time_ns() // 1_000_000}), flush=True)
        (value,) = unpack(event.value)
        table[event.key.decode()].apply(add, value)
        if seen == samples:
            print(json.dumps({"ended_ms": time.time_ns() // 1_000_000}), flush=True)
            seen += 1


if __name__ == "__main__":
    faust.Worker(app, loglevel="WARN", redirect_stdouts=False).execute_from_commandline()
