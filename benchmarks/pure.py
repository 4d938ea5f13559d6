"""Samples per second of the pure pipeline alone on one core, decoding included.

    .venv/bin/python benchmarks/pure.py [--quick] [--profile]

64 ranks, 20 metrics, 20 steps a second, a tick a second, default configuration (both axes, sliding windows,
all aggregates, detectors on). Records are made ahead; batches of 500. The last line is one JSON object;
``decode_us_N``: CPU time of decoding one frame of N samples by itself.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import time

import numpy as np

from driftline import events, frames
from driftline.records import Record
from driftline.streams.pipeline import Pipeline

RANKS = 64
METRICS = [f"train/metric_{i}" for i in range(17)] + ["loss", "span/forward", "grad_norm"]
STEP_US = 50_000
BATCH = 500


def make_records(samples: int, per_frame: int, seed: int = 1, step_us: int = STEP_US) -> list[Record]:
    """The log of one run: frames of ``per_frame`` samples, ranks in turn, a step every ``step_us``."""
    chance = np.random.default_rng(seed)
    steps = per_frame // len(METRICS)
    records: list[Record] = []
    base = 1_700_000_000_000_000
    now = base

    def add(value: bytes) -> None:
        records.append(Record(0, len(records), now // 1000, value))

    for rank in range(RANKS):
        start = events.ProcessStarted(
            run="bench",
            process=f"p{rank}",
            seq=0,
            time_us=now,
            rank=rank,
            world_size=RANKS,
            host=f"h{rank // 8}",
        )
        add(events.encode(start))
    metric = np.tile(np.arange(len(METRICS), dtype=np.int16), steps)
    made, seq, tick = 0, 0, base
    while made < samples:
        seq += 1
        first = (seq - 1) * steps
        step = np.repeat(np.arange(first, first + steps), len(METRICS))
        now = base + (first + steps) * step_us
        while tick + 1_000_000 <= now:
            tick += 1_000_000
            records.append(
                Record(0, len(records), tick // 1000, events.encode(events.Tick(worker="w", time_us=tick)))
            )
        for rank in range(RANKS):
            value = chance.normal(2.0, 0.1, len(metric)) * (1 + np.tile(np.arange(len(METRICS)), steps))
            frame = frames.Frame(
                "bench",
                f"p{rank}",
                rank,
                seq,
                METRICS,
                metric,
                step,
                base + step * step_us,
                value,
                np.ones(len(metric)),
            )
            add(frames.encode(frame))
            made += len(metric)
    return records


def measure(records: list[Record], samples: int) -> float:
    """Samples per second of CPU time."""
    pipeline = Pipeline()
    state = pipeline.fresh("bench", 0)
    begin = time.process_time()
    for at in range(0, len(records), BATCH):
        pipeline.step(state, records[at : at + BATCH])
    return samples / (time.process_time() - begin)


def decode_us(records: list[Record]) -> float:
    """Microseconds of CPU that decoding one frame takes, each frame once."""
    payloads = [r.value for r in records if r.value is not None and r.value[:1] == b"\xff"]
    begin = time.process_time()
    for payload in payloads:
        frames.decode(payload)
    return (time.process_time() - begin) / len(payloads) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    samples = 500_000 if options.quick else 2_000_000
    result: dict[str, float] = {}
    for per_frame, name in ((200, "pure_samples_per_s"), (2_000, "pure_samples_per_s_2000")):
        records = make_records(samples, per_frame)
        count = sum(r.value is not None and r.value[:1] == b"\xff" for r in records) * per_frame
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            measure(records, count)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        rate = max(measure(records, count) for _ in range(1 if options.profile else 3))
        result[name] = round(rate)
        result[f"decode_us_{per_frame}"] = round(min(decode_us(records) for _ in range(3)), 1)
    result["samples"] = samples
    result["peak_rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
