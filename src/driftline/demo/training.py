"""One rank of the demonstration's training: data-parallel torch over gloo, watched by the SDK.

``python -m driftline.demo.training '{"steps": 1200, ...}'`` (the fields of :class:`Options`) runs one rank;
rank and world size come from the environment, as torchrun sets it. What a trainer adds to be watched are the
lines with ``run``; all else is an ordinary training loop. Exit code 0 when all steps, or the time limit, are
done.

Logged at each step by each rank: ``loss`` (mean over the answer tokens of its batch, weighted by their
number), ``exact_match`` (share of its batch's answers that are predicted right at every position, given the
right answer so far: teacher-forced, hence higher than the evaluation's accuracy), ``grad_norm`` (of the
averaged gradient, before clipping), ``learning_rate``, ``tokens``, and the spans ``data``, ``forward``,
``backward`` (with the wait for the other ranks) and ``optimizer``. Rank 0 also logs what saving and
announcing a checkpoint took.
"""

from __future__ import annotations

import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed
from torch.nn import functional

import driftline
from driftline.demo import faults, model, task
from driftline.demo.adamw import AdamW

ASK_EVERY = 10
"""Every so many steps the ranks agree on whether time is up."""
WARMUP_STEPS = 50
LEARNING_RATE = 2e-3
CLIP_NORM = 1.0
GLOO_TIMEOUT = timedelta(seconds=120)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all ranks of one training share."""

    folder: str
    """Absolute path for checkpoints and the ranks' meeting point."""
    name: str = "addition"
    steps: int = 1200
    checkpoint_every: int = 50
    batch: int = 32
    """Problems of one rank's batch."""
    seed: int = 0
    seconds_max: float = 600.0
    """Training stops in order after this, however few steps it has done."""


class Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, options: Options, run: Any, *, rank: int) -> None:
        torch.manual_seed(options.seed)  # the same weights on every rank
        self.options = options
        self.run = run
        self.rank = rank
        self.faults = faults.plan(options.steps)
        self.model = model.Adder()
        self.optimizer = AdamW(self.model.parameters())
        self.batches = task.training_batches(size=options.batch, rank=rank, seed=options.seed)

    def step(self, step: int) -> None:
        """One training step, logged."""
        run = self.run
        with run.span("data", step=step):
            batch = self.batches.next()
        with run.span("forward", step=step):
            began = time.perf_counter()
            logits = self.model(batch.tokens)
            loss = functional.cross_entropy(
                logits.flatten(0, 1), batch.targets.flatten(), ignore_index=task.IGNORE
            )
            if self.faults.slows(rank=self.rank, step=step):
                time.sleep((self.faults.slow_times - 1) * (time.perf_counter() - began))
        with run.span("backward", step=step):
            self.optimizer.clear()
            loss.backward()  # type: ignore[no-untyped-call]
            average_gradients(self.model, weight=batch.answer_tokens)
        with run.span("optimizer", step=step):
            learning_rate = self.learning_rate(step)
            grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
            self.optimizer.step(learning_rate)
        tokens = batch.answer_tokens
        run.log({"loss": loss.detach(), "tokens": tokens}, step=step, weight=tokens)
        run.log(
            {
                "exact_match": exact_match(logits.detach(), batch.targets),
                "grad_norm": grad_norm,
                "learning_rate": learning_rate,
            },
            step=step,
        )

    def learning_rate(self, step: int) -> float:
        """Warm-up, plateau, and a cosine down to a tenth over the last 40 % of the steps; and the fault."""
        warm = min(1.0, step / WARMUP_STEPS)
        done = max(0.0, (step / self.options.steps - 0.6) / 0.4)
        return (
            LEARNING_RATE
            * warm
            * (0.55 + 0.45 * math.cos(math.pi * done))
            * self.faults.learning_rate_factor(step)
        )

    def checkpoint(self, step: int) -> None:
        """Saves the model and tells about it."""
        folder = Path(self.options.folder) / "checkpoints" / f"step-{step:05d}"
        began = time.perf_counter()
        model.save(self.model, folder)
        saved = time.perf_counter()
        self.run.checkpoint(folder, step=step)
        told = time.perf_counter()
        self.run.log({"checkpoint_save_time": saved - began, "checkpoint_call_time": told - saved}, step=step)


def average_gradients(module: torch.nn.Module, *, weight: float) -> None:
    """Replaces each gradient by its mean over all ranks, weighted; waits for the slowest rank.

    Weighted by answer tokens this is the gradient of the loss over the whole batch. In one piece and by hand:
    DistributedDataParallel would load torch's compiler (see :mod:`driftline.demo.adamw`).
    """
    parameters = [parameter for parameter in module.parameters() if parameter.grad is not None]
    gradients = [parameter.grad.reshape(-1) for parameter in parameters if parameter.grad is not None]
    whole = torch.cat([*gradients, torch.ones(1)]).mul_(weight)
    distributed.all_reduce(whole)
    whole /= whole[-1].clone()
    at = 0
    for parameter in parameters:
        parameter.grad = whole[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()


def exact_match(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Share of rows whose every target is the most likely token."""
    right = (logits.argmax(-1) == targets) | (targets == task.IGNORE)
    return float(right.all(dim=1).float().mean())


def train(options: Options, run: Any, *, rank: int) -> int:
    """The loop; returns the last step done."""
    trainer = Trainer(options, run, rank=rank)
    deadline = time.monotonic() + options.seconds_max
    step = 0
    if rank == 0:
        trainer.checkpoint(0)
    while step < options.steps:
        step += 1
        trainer.step(step)
        last = step == options.steps
        if step % ASK_EVERY == 0 and not last:
            last = _time_is_up(deadline)
        if rank == 0 and (last or step % options.checkpoint_every == 0):
            trainer.checkpoint(step)
        if last:
            break
    return step


def _time_is_up(deadline: float) -> bool:
    """Rank 0's clock decides for all."""
    up = torch.tensor([float(time.monotonic() >= deadline)])
    distributed.broadcast(up, src=0)
    return bool(up.item())


def declare(run: Any) -> None:
    """What the metrics mean: nothing is guessed from their names. Each rank may say it."""
    run.define("loss", goal="min", unit="nats/token")
    run.define("exact_match", goal="max")
    run.define("tokens", reduce="sum", unit="tokens", description="of all ranks at a step")
    run.define("learning_rate", reduce="last")


def main(argv: list[str]) -> int:
    options = msgspec.json.decode(argv[1], type=Options)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    meeting_point = Path(options.folder) / "ranks"
    distributed.init_process_group(
        "gloo", init_method=meeting_point.as_uri(), rank=rank, world_size=world_size, timeout=GLOO_TIMEOUT
    )
    run = driftline.init(options.name, config=msgspec.to_builtins(options))
    declare(run)
    step = train(options, run, rank=rank)
    run.finish()
    distributed.destroy_process_group()
    print(f"rank {rank} of {world_size} ended after {step} of {options.steps} steps", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
