"""The runs that the examples of docs/sql.md are answered from; a new one is a function, named in ``RUNS``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from driftline import events, frames
from driftline.storage.core import SinkCore, Spot

RUN = "01k4-digits"


def digits(store: Any, make: Any) -> None:
    """A small run of two ranks; rank 1 is slow, the loss has one NaN."""
    telemetry, eval_metrics = [], {4: (0.25, 0.18, 0.33), 8: (0.75, 0.66, 0.83)}
    for rank in (0, 1):
        telemetry.append(
            make.started(
                run=RUN, process=f"p{rank}", rank=rank, name="digits", world_size=2, local_rank=rank,
                host="node-a", pid=100 + rank, config={"lr": 0.001}, sdk="0.1.0",
            )
        )  # fmt: skip
    for rank in (0, 1):
        loss = [4.0 / (step + 1) + 0.01 * rank for step in range(8)]
        values = {"loss": loss, "grad_norm": [value / 2 for value in loss]}
        values["loss"] = [float("nan") if (rank, at) == (1, 5) else value for at, value in enumerate(loss)]
        values["span/forward"] = [0.010 if rank == 0 else 0.025] * 8
        frame = make.frame(1, values, run=RUN, process=f"p{rank}", rank=rank)
        telemetry += [frame, frame] if rank == 0 else [frame]
    for seq, (metric, said) in enumerate([("loss", "nats per token"), ("grad_norm", None)], 7):
        reduce: Any = "max" if said is None else None
        defined = events.MetricDefined(
            run=RUN, process="p1", seq=seq, time_us=make.t0, metric=metric, goal="min" if said else None,
            unit=said, reduce=reduce,
        )  # fmt: skip
        telemetry.append(events.encode(defined))
    for number, (step, (value, low, high)) in enumerate(eval_metrics.items()):
        files = [events.FileEntry("model.safetensors", 440_000), events.FileEntry("config.json", 300)]
        saved = events.Checkpoint(
            digest=f"c{step}", uri=f"/runs/digits/{step}", step=step, epoch=step / 4, files=files
        )
        telemetry.append(
            events.encode(
                events.CheckpointSaved(
                    run=RUN, process="p0", seq=2 + number, time_us=make.t0 + step * 1_000_000,
                    checkpoint=saved, rank=0,
                )
            )
        )  # fmt: skip
        metric = events.Metric(name="exact_match", value=value, stderr=0.04, low=low, high=high, count=100)
        length = events.Metric(name="response_length", value=3.0, count=100, unit="tokens")
        outcome = events.EvalOutcome(
            status="done", metrics=[metric, length], items=2, cost=events.Cost(seconds=1.5, tokens=300)
        )
        now = make.t0 + step * 1_000_000
        telemetry.append(
            make.accepted(
                number, run=RUN, step=step, checkpoint=saved, outcome=outcome, requested_us=now,
                accepted_us=now + 2_000_000,
            )
        )  # fmt: skip
    for rank in (0, 1):
        ended = events.ProcessEnded(run=RUN, process=f"p{rank}", seq=9, time_us=make.t0 + 20_000_000)
        telemetry.append(events.encode(ended))
    store.put("telemetry", *telemetry)
    store.put("facts", *[
        make.fact(at, run=RUN, what="process_joined", process=f"p{at}", rank=at, text=f"process p{at} joined")
        for at in (0, 1)
    ])  # fmt: skip
    one = {"run": [RUN], "count": [16], "weight": [15.0], "nan": [1], "mean": [1.31], "std": [1.15]}
    one |= {"min": [0.5], "max": [4.01], "p50": [0.8], "p95": [4.0], "p99": [4.0], "present": [2]}
    store.put("windows", make.windows(2, **one, expected=[2]))
    spike = {"run": RUN, "alert": "nan/loss/1", "rule": "non-finite", "metric": "loss", "rank": 1, "step": 5}
    text = "loss is NaN on rank 1 at step 5"
    store.put(
        "alerts",
        make.alert(3, **spike, value="NaN", severity="page", explanation=text),
        make.alert(
            4, "resolved", **spike, value=0.58, severity="page", resolved_us=make.t0 + 9,
            explanation="loss is finite again on rank 1",
        ),
        make.alert(
            5, run=RUN, alert="slow/1", rule="slow-rank", rank=1, step=0, value=0.025, expected=0.01,
            severity="error", explanation="rank 1 computes 2.5 times longer than the others",
        ),
    )  # fmt: skip
    for number in (0, 1):
        items = [
            events.Item(
                item=f"{left}+7", status="correct" if number or left == 3 else "wrong",
                score=float(number or left == 3), response=str(left + 7 if number or left == 3 else 11),
                response_length=3, expected=str(left + 7),
            )
            for left in (3, 5)
        ]  # fmt: skip
        sent = events.EvalItems(
            run=RUN, request=f"request-{number}", lease=f"lease-{number}", first=0, items=items
        )
        store.put("eval-items", events.encode(sent))
    oldest = {Spot("alerts", make.uuid, 1): 12}
    SinkCore(store.lake).resume(oldest, now_us=make.t0)


Rows = list[tuple[str, int | None, float, float]]


def timed(make: Any, seq: int, rows: Rows, **who: Any) -> bytes:
    """A frame of (metric, step, seconds since t0, value)."""
    names = sorted({row[0] for row in rows})
    return frames.encode(
        frames.Frame(
            seq=seq, names=names, metric=np.array([names.index(row[0]) for row in rows], np.int16),
            step=np.array([frames.NO_STEP if row[1] is None else row[1] for row in rows]),
            time_us=np.array([make.t0 + round(row[2] * 1e6) for row in rows]),
            value=np.array([row[3] for row in rows]), weight=np.ones(len(rows)), **who,
        )
    )  # fmt: skip


def one_step(step: int, end: float, forward: float, evaluation: float) -> Rows:
    """A step of 2 s, then its evaluation: data, forward, backward, and what is left waiting for others."""
    spans = [("data", 0.1), ("forward", forward), ("backward", 0.8), ("all_reduce", 1.0 - forward)]
    rows, at = [], end - evaluation - 1.9
    for name, seconds in [*spans, ("evaluation", evaluation)]:
        at += seconds
        if seconds:
            rows.append((f"span/{name}", step, at, seconds))
    return [*rows, ("tokens_per_second", step, at, 4000.0 / forward + 100 * step)]


def steps(store: Any, make: Any) -> None:
    """Three ranks on two hosts, rank 2 slow, evaluation at 2 and 4; killed after 3, begun again there."""
    run, telemetry, facts = "01k5-steps", [], []
    for attempt, (began, todo) in enumerate([(0, range(4)), (30, range(3, 6))]):
        for rank in range(3):
            who: Any = {"run": run, "process": f"s{attempt}{rank}", "rank": rank}
            place = {"host": "node-a" if rank < 2 else "node-b", "local_rank": rank % 2, "world_size": 3}
            started = {"name": "steps", "time_us": make.t0 + began * 1_000_000, "config": {"lr": 0.01}}
            telemetry.append(make.started(**who, **place, **started))
            rows: Rows = []
            end = began + 5.0
            for step in todo:
                evaluation = 3.0 if step in (2, 4) and rank == 0 else 0.0
                end += 5.0 if step in (2, 4) else 2.0
                rows += one_step(
                    step,
                    end if rank == 0 or not evaluation else end - 3.0,
                    0.6 + 0.3 * (rank == 2),
                    evaluation,
                )
                if rank != 1:
                    rows += [("gpu_utilization", None, end, 40.0 + 10 * step - 20 * rank)]
                    rows += [("network_sent", None, end, 1e9 * (1 + step))]
            telemetry.append(timed(make, 1, rows, **who))
            facts.append(make.fact(len(facts), what="process_joined", attempt=attempt, **who))
            if attempt:
                over = events.ProcessEnded(
                    run=run, process=who["process"], seq=2, time_us=make.t0 + 45_000_000
                )
                telemetry.append(events.encode(over))
    store.put("telemetry", *telemetry)
    store.put("facts", *facts)


def scale(store: Any, make: Any) -> None:
    """The same training on 1, 2, 4 and 8 ranks; a tenth of the work is serial."""
    for world in (1, 2, 4, 8):
        who = {"run": f"01k6-scale-{world}", "process": f"w{world}", "rank": 0}
        rows: Rows = [
            ("tokens_per_second", step, step, 1000 * world / (1 + 0.1 * (world - 1))) for step in range(12)
        ]
        store.put(
            "telemetry", make.started(**who, name="scale", world_size=world), timed(make, 1, rows, **who)
        )


def study(store: Any, make: Any) -> None:
    """Two runs of one configuration change, 200 steps each: what the statistical macros speak of.

    Run b learns faster and to a better end; run a over-fits from step 120 on; its norm jumps at step 150, and
    the loss follows at step 152.
    """
    random = np.random.default_rng(6)
    for name, rate in (("study-a", 0.001), ("study-b", 0.002)):
        run, steps = f"01k5-{name}", np.arange(200)
        norm = 1 + 0.1 * random.normal(size=200) + (4.0 * (steps >= 150) if name == "study-a" else 0.0)
        nll = 2 * np.exp(-steps * rate * 20) + 0.5 - 100 * rate + 0.02 * random.normal(size=200)
        nll[152:] += 0.5 if name == "study-a" else 0.0
        values = {"nll": nll, "norm": norm, "tokens": np.full(200, 512.0)}
        values |= {
            "train_accuracy": 0.9 - 0.6 * np.exp(-steps / 60),
            "walk": np.cumsum(random.normal(size=200)),
        }
        config = {"lr": rate, "model": {"layers": 2}} | ({"warmup": 10} if name == "study-b" else {})
        put = [make.started(run=run, process=name, rank=0, name=name, world_size=1, config=config)]
        put.append(
            make.frame(1, {m: [float(v) for v in vs] for m, vs in values.items()}, run=run, process=name)
        )
        for number, step in enumerate(range(20, 200, 20)):
            value = round(0.8 - 0.5 * math.exp(-step / 40) - 0.002 * max(0, step - 120), 3)
            metric = events.Metric(
                name="accuracy", value=value, stderr=0.02, low=value - 0.04, high=value + 0.04, count=400
            )
            outcome = events.EvalOutcome(status="done", metrics=[metric], cost=events.Cost(seconds=9.0))
            checkpoint = events.Checkpoint(digest=f"{name}-{step}", uri=f"/runs/{name}/{step}", step=step)
            if name == "study-a":
                result = {"checkpoint": checkpoint, "outcome": outcome, "lease": f"study-{number}"}
                put.append(make.accepted(100 + number, run=run, step=step, **result))
        store.put("telemetry", *put)


RUNS = (digits, steps, scale, study)
