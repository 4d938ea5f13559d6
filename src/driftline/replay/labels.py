"""Labelled incidents, and how well alerts found them: precision, recall, lead time. Pure.

A label names a run and when: steps (``from_step``, ``to_step``) or times (``from``, ``to``), with both
ends; an attempt, a metric, a rank and a rule where it speaks of one (metric and rule may be patterns with
``*`` and ``?``). A label that says no more than its run says that the run was looked at and had nothing else.

    right        the alert fits a label, and its span touches the label's, or begins at most 50 steps (a
                 minute) after its end: a detector needs some to be sure. An alert that was not resolved lasts
    wrong        none, though a label names its run
    not judged   no label names its run, so nobody knows: it counts nowhere but in its own column

One alert may find several labels, and a label may be found by several alerts. Labels of what was not replayed
(another run, steps or times outside) are counted apart: nothing could have found them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from statistics import median
from typing import Any, NamedTuple

from driftline.errors import SettingsError
from driftline.replay.episodes import FOREVER, NEAR_STEPS, NEAR_US, Episode

FIELDS = ("run", "attempt", "from_step", "to_step", "from", "to", "metric", "rank", "rule", "note")


class Incident(NamedTuple):
    """Something that really happened."""

    run: str
    from_step: int | None = None
    to_step: int | None = None
    from_us: int | None = None
    to_us: int | None = None
    metric: str | None = None
    rank: int | None = None
    rule: str | None = None
    attempt: int | None = None
    note: str = ""


class Labels(NamedTuple):
    """What people said of some runs."""

    incidents: list[Incident]
    runs: frozenset[str]
    """All that were looked at; those without an incident had none."""

    def renamed(self, ids: Mapping[str, str]) -> Labels:
        """With the ids of the runs for what they are called in the labels."""
        renamed = [one._replace(run=ids[one.run]) for one in self.incidents]
        return Labels(renamed, frozenset(ids[run] for run in self.runs))


class Reached(NamedTuple):
    """What of a run was replayed, ends included; None: no steps."""

    first_us: int
    last_us: int
    first_step: int | None = None
    last_step: int | None = None

    def joined(self, other: Reached) -> Reached:
        """Both together."""
        steps = [step for step in (self.first_step, other.first_step) if step is not None]
        ends = [step for step in (self.last_step, other.last_step) if step is not None]
        return Reached(
            min(self.first_us, other.first_us),
            max(self.last_us, other.last_us),
            min(steps, default=None),
            max(ends, default=None),
        )


class Score(NamedTuple):
    """How well one rule, or all together, found the incidents."""

    rule: str
    alerts: int
    """Of runs that a label names."""
    right: int
    unjudged: int
    """Alerts of other runs."""
    incidents: int
    """That the rule could have found: those that name no rule, or this one."""
    found: int
    lead_steps: float | None
    """Median of the steps that were left until the incident's end when the first right alert was opened,
    negative where that was after its end; None without steps."""
    lead_seconds: float | None
    delay_steps: float | None
    """Median of the steps from the incident's begin to where the alert begins, negative where that was
    before."""
    delay_seconds: float | None

    @property
    def precision(self) -> float | None:
        return self.right / self.alerts if self.alerts else None

    @property
    def recall(self) -> float | None:
        return self.found / self.incidents if self.incidents else None


def read(text: str, where: str) -> Labels:
    """Labels of a CSV file with a header, a JSON list of objects, or an object per line.

    Raises SettingsError, which names the entry; also where there is none.
    """
    stripped = text.lstrip("\ufeff \t\r\n")
    rows: list[Any]
    try:
        if stripped.startswith("["):
            rows = json.loads(stripped)
        elif stripped.startswith("{"):
            rows = [json.loads(line) for line in stripped.splitlines() if line.strip()]
        else:
            rows = [_stripped(row) for row in csv.DictReader(io.StringIO(stripped, newline=""))]
        found = [_incident(row, number) for number, row in enumerate(rows, start=1)]
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, csv.Error) as error:
        raise SettingsError(
            "--labels", where, f"{error}: give CSV or JSON with {', '.join(FIELDS)}; run is needed"
        ) from error
    if not found:
        raise SettingsError("--labels", where, f"it has no labels: give a row for each, {', '.join(FIELDS)}")
    said = list(dict.fromkeys(one for one in found if one.from_step is not None or one.from_us is not None))
    return Labels(said, frozenset(one.run for one in found))


def _stripped(row: Mapping[str | None, Any]) -> dict[str, Any]:
    if None in row:
        raise ValueError(f"the row {list(row.values())} has more fields than the header")
    return {str(name).strip(): value for name, value in row.items()}


def _incident(row: Mapping[str, Any], number: int) -> Incident:
    unknown = sorted(map(str, set(row) - set(FIELDS)))
    if unknown:
        raise ValueError(f"label {number} has the unknown field {unknown[0]!r}")
    given = {
        name: value.strip() if isinstance(value, str) else value
        for name, value in row.items()
        if value is not None and str(value).strip()
    }
    if "run" not in given:
        raise ValueError(f"label {number} lacks run")
    for end, begin in (("to_step", "from_step"), ("to", "from")):
        if end in given and begin not in given:
            raise ValueError(f"label {number} has {end} without {begin}")
    narrow = set(given) & {"metric", "rank", "rule", "attempt"}
    if narrow and not {"from_step", "from"} & set(given):
        raise ValueError(f"label {number} lacks from_step or from")

    def whole(name: str) -> int | None:
        said = given.get(name)
        if said is None:
            return None
        try:
            found = int(said)
        except (ValueError, TypeError, OverflowError):
            found = None
        if found is None or isinstance(said, bool) or (isinstance(said, float) and said != found):
            raise ValueError(f"label {number}: {name} {said!r} is no whole number")
        return found

    def time(name: str) -> int | None:
        try:
            return _time(given.get(name))
        except (ValueError, OverflowError):
            remedy = 'write it like "2026-11-30T02:00" (UTC), in JSON also as seconds since 1970'
            raise ValueError(f"label {number}: {name} {given[name]!r} is no time: {remedy}") from None

    def text(name: str) -> str | None:
        return str(given[name]) if name in given else None

    first, begin_us = whole("from_step"), time("from")
    made = Incident(
        run=str(given["run"]),
        from_step=first,
        to_step=whole("to_step") if "to_step" in given else first,
        from_us=begin_us,
        to_us=time("to") if "to" in given else begin_us,
        metric=text("metric"),
        rank=whole("rank"),
        rule=text("rule"),
        attempt=whole("attempt"),
        note=text("note") or "",
    )
    for low, high in ((made.from_step, made.to_step), (made.from_us, made.to_us)):
        if low is not None and high is not None and high < low:
            raise ValueError(f"label {number} ends before it begins")
    return made


def _time(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return round(value * 1_000_000)
    moment = datetime.fromisoformat(str(value))
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def fits(episode: Episode, incident: Incident) -> bool:
    """Whether the alert speaks of the incident. Of one with steps and times the steps decide, unless the
    alert has none."""
    if incident.run != episode.run:
        return False
    for asked, number in ((incident.rank, episode.rank), (incident.attempt, episode.attempt)):
        if asked is not None and asked != number:
            return False
    for pattern, name in ((incident.metric, episode.metric), (incident.rule, episode.rule)):
        if pattern is not None and not (name is not None and _named(name, pattern)):
            return False
    if incident.from_step is not None and episode.step is not None:
        assert incident.to_step is not None
        return _last_step(episode) >= incident.from_step and episode.step <= incident.to_step + NEAR_STEPS
    if incident.from_us is None:
        return False
    assert incident.to_us is not None
    return episode.end_us() >= incident.from_us and episode.opened_us <= incident.to_us + NEAR_US


def _named(name: str, pattern: str) -> bool:
    """Names may hold the characters of patterns."""
    return name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))


def _last_step(episode: Episode) -> int:
    assert episode.step is not None
    if episode.resolved_us is None:
        return FOREVER
    return episode.step if episode.last_step is None else max(episode.step, episode.last_step)


def inside(incident: Incident, reached: Mapping[str, Reached]) -> bool:
    """Whether something that was replayed belongs to the incident."""
    span = reached.get(incident.run)
    if span is None:
        return False
    if incident.from_step is not None and span.first_step is not None and span.last_step is not None:
        assert incident.to_step is not None
        return incident.from_step <= span.last_step and incident.to_step >= span.first_step
    if incident.from_us is None:
        return False
    assert incident.to_us is not None
    return incident.from_us <= span.last_us and incident.to_us >= span.first_us


def score(episodes: Sequence[Episode], labels: Labels, rules: Sequence[str]) -> list[Score]:
    """A score for each rule, and one ("all") for all together."""
    found = [_score(rule, [e for e in episodes if e.rule == rule], labels, rule) for rule in rules]
    return [*found, _score("all", episodes, labels, None)]


def _score(name: str, episodes: Sequence[Episode], labels: Labels, rule: str | None) -> Score:
    mine = [one for one in labels.incidents if rule is None or one.rule is None or _named(rule, one.rule)]
    judged = [episode for episode in episodes if episode.run in labels.runs]
    right = sum(any(fits(episode, one) for one in mine) for episode in judged)
    hits = [(one, some) for one in mine if (some := [e for e in judged if fits(e, one)])]
    pairs = [(one, min(some, key=lambda e: (e.opened_us, e.offset))) for one, some in hits]
    return Score(
        name,
        len(judged),
        right,
        len(episodes) - len(judged),
        len(mine),
        len(pairs),
        _median([i.to_step - at for i, e in pairs if i.to_step is not None and (at := _came(e)) is not None]),
        _median([(i.to_us - e.opened_us) / 1e6 for i, e in pairs if i.to_us is not None]),
        _median([e.step - i.from_step for i, e in pairs if i.from_step is not None and e.step is not None]),
        _median([(e.opened_us - i.from_us) / 1e6 for i, e in pairs if i.from_us is not None]),
    )


def _came(episode: Episode) -> int | None:
    return episode.step if episode.came_step is None else episode.came_step


def _median(values: Sequence[float]) -> float | None:
    return float(median(values)) if values else None
