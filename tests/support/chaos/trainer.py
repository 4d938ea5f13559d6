"""A rank as a program: logs through the SDK, rank 0 saves checkpoints; prints what it logged as JSON.

python trainer.py FOLDER STEPS      RANK, WORLD_SIZE, DRIFTLINE_RUN_ID and the broker from the environment
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import driftline

METRICS = ("loss", "reward")
CHECKPOINT_STEPS = 40
STEP_S = 0.1


def value_of(rank: int, step: int, metric: str) -> float:
    """What is logged, to be computed again by the judge."""
    if metric == "loss":
        return 2.0 / (1.0 + step / 50.0) + 0.001 * rank + (step * 7919 % 97) / 1e4
    return (step * 31 + rank * 17) % 101 / 101.0


def save(folder: Path, step: int) -> Path:
    """A whole checkpoint, its content of the run and the step: equal content would be one evaluation."""
    folder.mkdir(parents=True)
    seed = [step, zlib.crc32(str(folder).encode())]
    scores = np.random.default_rng(seed).normal(size=(27, 27)).astype(np.float32)
    save_file({"scores": scores}, folder / "model.safetensors")
    return folder


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    rank = int(os.environ["RANK"])
    run = driftline.init("kill-loop", config={"steps": steps})
    for step in range(steps):
        run.log({metric: value_of(rank, step, metric) for metric in METRICS}, step=step)
        if rank == 0 and step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
            run.checkpoint(save(folder / f"step-{step}", step), step=step)
        time.sleep(STEP_S)
    run.finish()
    counters: dict[str, Any] = dict(run.counters())
    print(
        json.dumps(
            {"run": run.id, "process": run.process, "rank": rank, "steps": steps} | {"counters": counters}
        )
    )


if __name__ == "__main__":
    main()
