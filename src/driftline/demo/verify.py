"""Compares what was found with what was caused, after a run of the demonstration: for CI, and for doubters.

The faults come from :mod:`driftline.demo.faults`, which nothing but the training and this module reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from driftline.demo import faults
from driftline.demo.findings import AlertFound
from driftline.demo.settings import SUITES
from driftline.errors import BadData
from driftline.storage.open import Catalog, open_catalog

SPIKE_SEEN_WITHIN = 12
"""Steps: a loss that rises shows the high learning rate of the step before, and the rise lasts."""


class Check(NamedTuple):
    of: str
    """What is checked, in a word or two."""
    holds: bool
    says: str
    """With the numbers."""


def verify(root: Path, run: str, *, console: Console) -> int:
    """Prints each check with its numbers; returns 0, or 1 if one fails. Raises BadData without the run."""
    checks = check(root, run)
    console.print()
    console.print("[bold]Checks: what was found against what was caused[/]")
    for done in checks:
        mark = "[green]ok  [/]" if done.holds else "[bold red]FAIL[/]"
        console.print(f"{mark} {done.of}: {escape(done.says)}", highlight=False, soft_wrap=True)
    return 0 if all(done.holds for done in checks) else 1


def check(root: Path, run: str) -> list[Check]:
    """All checks. Raises BadData if the tables cannot be read, or the run is not in them."""
    with open_catalog(root) as db:
        if not db.rows("SELECT 1 FROM runs WHERE run = ?", [run]):
            raise BadData(f"run {run} is not in the tables under {root}")
        return list(_checks(db, run))


def _checks(db: Catalog, run: str) -> Iterator[Check]:
    config = json.loads(db.rows("SELECT config FROM runs WHERE run = ?", [run])[0][0])
    plan = faults.plan(int(config["steps"]))
    alerts = [
        AlertFound(*row)
        for row in db.rows(
            """SELECT rule, detector, severity, state, rank, metric, step, last_step, NULL, explanation
               FROM alerts_latest WHERE run = ?""",
            [run],
        )
    ]
    yield _slow_rank(alerts, plan)
    yield _loss_spike(alerts, plan)
    yield _accuracy(db, run)
    yield from _evaluations(db, run)
    yield from _samples(db, run)
    yield _duplicates(db, run)


def _slow_rank(alerts: list[AlertFound], plan: faults.Faults) -> Check:
    found = [alert for alert in alerts if alert.detector == "slow_rank"]
    right = [
        a for a in found if a.rank == plan.slow_rank and _overlaps(a, plan.slow_steps, plan.slow_steps.stop)
    ]
    return Check(
        "slow rank",
        bool(right),
        f"rank {plan.slow_rank} was slowed in steps {plan.slow_steps.start} to "
        f"{plan.slow_steps.stop - 1}; found: {_listed(found)}",
    )


def _loss_spike(alerts: list[AlertFound], plan: faults.Faults) -> Check:
    found = [alert for alert in alerts if alert.detector == "loss_spike" and alert.metric == "loss"]
    right = [a for a in found if _overlaps(a, plan.spike_steps, plan.spike_steps.stop + SPIKE_SEEN_WITHIN)]
    return Check(
        "loss spike",
        bool(right),
        f"the learning rate was {plan.spike_times:g} times too high in steps "
        f"{plan.spike_steps.start} to {plan.spike_steps.stop - 1}; found: {_listed(found)}",
    )


def _overlaps(alert: AlertFound, caused: range, seen_until: int) -> bool:
    """The alert's steps overlap those of the fault, or of what it led to."""
    if alert.step is None:
        return False
    last = alert.step if alert.last_step is None else alert.last_step
    return alert.step < seen_until and last >= caused.start


def _listed(alerts: list[AlertFound]) -> str:
    parts = (
        f"{a.rule} of {a.metric}"
        + (f", rank {a.rank}" if a.rank is not None else "")
        + f", steps {a.step} to {a.last_step}"
        for a in alerts
    )
    return "; ".join(parts) or "nothing"


def _accuracy(db: Catalog, run: str) -> Check:
    scores = db.rows(
        "SELECT step, value, low, high FROM eval_curves WHERE run = ? AND metric = 'accuracy' ORDER BY step",
        [run],
    )
    if len(scores) < 2:
        return Check("accuracy", False, f"{len(scores)} evaluations, too few to rise")
    first, last = scores[0], scores[-1]
    return Check(
        "accuracy",
        last[2] > first[3],
        f"rose: {first[1]:.3f} [{first[2]:.3f}, {first[3]:.3f}] at step {first[0]}, "
        f"{last[1]:.3f} [{last[2]:.3f}, {last[3]:.3f}] at step {last[0]}",
    )


def _evaluations(db: Catalog, run: str) -> Iterator[Check]:
    config = db.rows(
        """SELECT decode(payload) FROM log WHERE kind = 'config_changed'
           AND "partition" = (SELECT any_value("partition") FROM log WHERE run = ?)
           AND topic_uuid = (SELECT any_value(topic_uuid) FROM log WHERE run = ?)
           ORDER BY "offset" DESC LIMIT 1""",
        [run, run],
    )
    every = json.loads(config[0][0])["body"]["triggers"]["steps"] if config else None
    steps = [row[0] for row in db.rows("SELECT step FROM checkpoints WHERE run = ? ORDER BY step", [run])]
    due = {steps[0], steps[-1], *(step for step in steps if every and step % every == 0)} if steps else set()
    accepted = db.rows(
        """SELECT suite, step, count(DISTINCT lease), count(DISTINCT id), bool_and(status = 'done') FROM evals
           WHERE run = ? GROUP BY suite, step""",
        [run],
    )
    for suite in SUITES:
        mine = {step: (leases, ids, done) for name, step, leases, ids, done in accepted if name == suite}
        once = all(counts == (1, 1, True) for counts in mine.values())
        how = "each one, done" if once else f"not each one: {mine}"
        yield Check(
            f"evaluations with {suite}",
            set(mine) == due and once,
            f"{len(due)} of {len(steps)} checkpoints due (every {every} steps, "
            f"first and last), {len(mine)} have a result, {how}",
        )


def _samples(db: Catalog, run: str) -> Iterator[Check]:
    ended = db.rows("SELECT rank, counters FROM processes WHERE run = ? ORDER BY rank", [run])
    counters = {rank: json.loads(text) for rank, text in ended if text}
    yield Check("ranks", len(counters) == len(ended) > 0, f"{len(counters)} of {len(ended)} ended in order")
    stored = dict(db.rows("SELECT rank, count(*) FROM samples WHERE run = ? GROUP BY rank", [run]))
    logged = {rank: counts.get("samples_logged", 0) for rank, counts in counters.items()}
    yield Check(
        "samples",
        stored == logged,
        f"stored: {sum(stored.values()):,}; logged by the ranks' own count: {sum(logged.values()):,}",
    )
    bad = {
        f"rank {rank} {name}": count
        for rank, counts in counters.items()
        for name, count in counts.items()
        if count and ("dropped" in name or "refused" in name)
    }
    yield Check("drops", not bad, f"dropped or refused by the SDK: {bad or 'nothing'}")


def _duplicates(db: Catalog, run: str) -> Check:
    doubled = db.rows(
        """SELECT count(*) FROM (SELECT 1 FROM samples WHERE run = ?
           GROUP BY topic_uuid, "partition", "offset", ordinal HAVING count(*) > 1)""",
        [run],
    )[0][0]
    return Check("once", doubled == 0, f"samples stored twice: {doubled}")
