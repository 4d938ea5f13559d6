"""``python -m simulation --seeds N``: many seeds on all cores, with progress and a summary."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from . import seeds

FAILURES_TOLD = 10
"""After so many it stops."""


def main() -> int:
    """0 if everything held in all seeds."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seconds", type=float, help="stop after so long, however many are done")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    began = time.monotonic()
    faults: Counter[str] = Counter()
    done = failed = records = inputs = samples = 0
    context = multiprocessing.get_context("spawn")
    with context.Pool(asked.processes) as pool:
        wanted = range(asked.first, asked.first + asked.seeds)
        for outcome in pool.imap_unordered(seeds.run, wanted):
            done += 1
            records += outcome.records
            inputs += outcome.inputs
            samples += outcome.samples
            faults += outcome.faults
            if outcome.problems:
                failed += 1
                print(seeds.told(outcome), flush=True)
            if failed == FAILURES_TOLD:
                print("and no more: so many seeds fail in the same way, mostly", flush=True)
                pool.terminate()
                break
            spent_s = time.monotonic() - began
            if done % 50 == 0:
                print(f"{done} seeds, {failed} failed, {done / spent_s * 60:.0f} a minute", flush=True)
            if asked.seconds and spent_s > asked.seconds:
                pool.terminate()
                break
    spent_s = time.monotonic() - began
    print("\nfaults:")
    for name, count in faults.most_common():
        print(f"  {count:9,} {name}")
    print(
        f"seeds {done:,}  failed {failed}  records {records:,} ({inputs:,} inputs)  samples {samples:,}  "
        f"faults {faults.total():,}  {spent_s:.0f} s, {done / spent_s * 60:.0f} seeds a minute on "
        f"{asked.processes} processes"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
