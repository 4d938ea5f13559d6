"""What other evaluation frequencies would have evaluated, cost and missed. Pure, but for :func:`asked`.

What is known of a checkpoint is what its evaluation found, where it had one. So of a rarer schedule it is
said what would have been missed: the best checkpoint, and how much later a drop would have been seen. Of a
denser one, how many further evaluations there would have been and what they would have cost; not what they
would have found.

A drop is a value whose whole 95 % interval lies on the wrong side of the best one's interval before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from driftline import config as configuration
from driftline import events, units
from driftline.config import PipelineConfig, Triggers
from driftline.errors import BadRecord, SettingsError
from driftline.records import Record
from driftline.replay.backtest import Trigger
from driftline.replay.player import Player, Source
from driftline.storage.recorded.compare import Evaluation


class Drop(NamedTuple):
    """A fall of a metric, and how much later the other schedule would have seen it."""

    step: int | None
    value: float
    best: float
    seen_step: int | None
    """None: not at all, within what is recorded."""
    steps_later: int | None


class Metric(NamedTuple):
    """One metric of one suite under the other schedule."""

    metric: str
    goal: str
    declared: bool
    """Whether the goal was declared; else higher counts as better."""
    best_step: int | None
    best: float
    would_best_step: int | None
    would_best: float | None
    drops: list[Drop]


class WhatIf(NamedTuple):
    """One suite of one run."""

    run: str
    suite: str
    asked: int
    """As a replay of the log says; only of those that were answered do the tables know it too."""
    answered: int
    """Of them, those that have a result."""
    would_ask: int
    both: int
    seconds_each: float | None
    """Mean of what evaluations of the suite took; of other runs where this one has none; None: unknown."""
    seconds: float | None
    would_seconds: float | None
    log_seconds: float
    """Duration of the run in the log, of which evaluation is a share."""
    metrics: list[Metric]


def triggers_of(text: str) -> Triggers:
    """Reads "steps=200", "epochs=0.5", "seconds=10m", "start", "end", with commas between.

    Raises SettingsError.

    >>> triggers_of("steps=200,end").steps
    200
    """
    fields: dict[str, object] = {"at_end": False}
    try:
        for part in text.replace(" ", "").split(","):
            name, _, value = part.partition("=")
            if name in ("start", "end") and not value:
                fields[f"at_{name}"] = True
            elif name == "steps":
                fields["steps"] = int(value)
            elif name == "epochs":
                fields["epochs"] = float(value)
            elif name == "seconds":
                fields["every_us"] = (
                    round(float(value) * 1e6) if _is_number(value) else units.duration_us(value)
                )
            else:
                raise ValueError(f"{part!r} is no frequency")
        found = msgspec.convert(fields, Triggers)
    except (ValueError, msgspec.ValidationError) as error:
        remedy = f"{error}: give e.g. steps=200, epochs=1, seconds=10m, start, end, with commas between"
        raise SettingsError("--what-if", text, remedy) from error
    for interval in (found.steps, found.epochs, found.every_us):
        if interval is not None and not (math.isfinite(interval) and interval > 0):
            raise SettingsError("--what-if", text, "intervals must be greater than 0")
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def asked(source: Source, triggers: Triggers | None, runs: Sequence[str]) -> list[Trigger]:
    """What a log asks to be evaluated: with its own triggers (None), or with others and its last suites.

    Windows and detectors are left out, since no trigger rests on them. Raises BadData, Unavailable.
    """
    found: dict[tuple[str, int, str, str], Trigger] = {}
    for part in source.parts():
        configurations = source.configurations(part)
        own = [_config_of(record) for record in configurations]
        changed = None
        if triggers is not None:
            suites = [one.suites for one in own if one is not None and one.suites]
            changed = PipelineConfig(
                windows=[], detectors=[], rules=[], triggers=triggers, suites=suites[-1] if suites else []
            )
        player = Player(part, configurations, changed)
        for item in source.stretches(part):
            for output in player.play(item):
                if output.topic != "evals" or (runs and output.run not in runs):
                    continue
                event = events.decode(output.value)
                assert isinstance(event, events.EvalRequested)
                saved = event.checkpoint
                one = Trigger(
                    *(event.run, event.attempt, event.suite.name, saved.digest, saved.step),
                    *(event.reason, event.time_us),
                )
                found.setdefault(one.key, one)
    return list(found.values())


def _config_of(record: Record) -> PipelineConfig | None:
    try:
        event = events.decode(record.value or b"")
        assert isinstance(event, events.ConfigChanged)
        return msgspec.json.decode(event.body, type=configuration.PipelineConfig)
    except (BadRecord, msgspec.DecodeError):
        return None


def compare(
    own: Sequence[Trigger],
    other: Sequence[Trigger],
    known: Sequence[Evaluation],
    goals: Mapping[tuple[str, str], str],
    log_seconds: Mapping[str, float],
) -> list[WhatIf]:
    """What is asked for under two schedules, with what is known of the results. ``goals``: (run, metric) ->
    "max" or "min", where declared."""
    result = []
    for run, suite in sorted({(one.run, one.suite) for one in [*own, *other]}):
        mine = {(t.attempt, t.checkpoint) for t in own if (t.run, t.suite) == (run, suite)}
        would = {(t.attempt, t.checkpoint) for t in other if (t.run, t.suite) == (run, suite)}
        answered = {(e.attempt, e.checkpoint) for e in known if (e.run, e.suite) == (run, suite)}
        took = _seconds([e for e in known if (e.run, e.suite) == (run, suite)]) or _seconds(
            [e for e in known if e.suite == suite]
        )
        each = sum(took) / len(took) if took else None
        points = [e for e in known if (e.run, e.suite) == (run, suite) and e.metric is not None]
        metrics = [
            _metric(name, [e for e in points if e.metric == name], would, goals.get((run, name)))
            for name in sorted({e.metric for e in points if e.metric is not None})
        ]
        result.append(
            WhatIf(
                *(run, suite, len(mine), len(mine & answered), len(would), len(mine & would), each),
                None if each is None else each * len(mine),
                None if each is None else each * len(would),
                log_seconds.get(run, 0.0),
                [metric for metric in metrics if metric is not None],
            )
        )
    return result


def _seconds(some: Sequence[Evaluation]) -> list[float]:
    """One duration for each evaluation, though it has a row per metric."""
    return list({(e.run, e.request): e.seconds for e in some if e.seconds is not None}.values())


def _metric(
    name: str, points: Sequence[Evaluation], would: set[tuple[int, str]], goal: str | None
) -> Metric | None:
    finite = [e for e in points if e.value is not None and math.isfinite(e.value)]
    finite.sort(key=lambda e: (e.attempt, -1 if e.step is None else e.step))
    if not finite:
        return None
    sign = -1.0 if goal == "min" else 1.0
    best = max(finite, key=lambda e: sign * _value(e))
    seen = [e for e in finite if (e.attempt, e.checkpoint) in would]
    would_best = max(seen, key=lambda e: sign * _value(e), default=None)
    return Metric(
        name,
        goal or "max",
        goal is not None,
        best.step,
        _value(best),
        None if would_best is None else would_best.step,
        None if would_best is None else _value(would_best),
        _drops(finite, seen, sign),
    )


def _drops(points: Sequence[Evaluation], seen: Sequence[Evaluation], sign: float) -> list[Drop]:
    """Where the metric fell below what it had been, beyond doubt; one drop until it recovers."""
    drops: list[Drop] = []
    best: Evaluation | None = None
    fallen = False
    for at, point in enumerate(points):
        below = best is not None and _bound(point, sign, upper=True) < _bound(best, sign, upper=False)
        if below and not fallen:
            assert best is not None
            later = next((e for e in points[at:] if e in seen), None)
            step = None if later is None else later.step
            known = step is not None and point.step is not None
            drops.append(
                Drop(point.step, _value(point), _value(best), step, step - point.step if known else None)  # type: ignore[operator]
            )
        fallen = below
        if best is None or sign * _value(point) > sign * _value(best):
            best = point
    return drops


def _value(point: Evaluation) -> float:
    assert point.value is not None
    return point.value


def _bound(point: Evaluation, sign: float, *, upper: bool) -> float:
    """End of the interval that is the better (upper) or the worse one, with the sign of the goal."""
    ends = [end for end in (point.low, point.high) if end is not None and math.isfinite(end)]
    values = [sign * value for value in ends] or [sign * _value(point)]
    return max(values) if upper else min(values)
