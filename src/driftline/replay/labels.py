"""Labelled incidents, and how well alerts found them: precision, recall, lead time. Pure.

A label names a run and when: steps (``from_step``, ``to_step``) or times (``from``, ``to``), with both
ends; a metric, a rank and a rule where it speaks of one. An alert is right if it fits the label and
its span touches the label's, or begins at most 50 steps (a minute) after its end: a detector needs some to be
sure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from driftline.errors import SettingsError
from driftline.replay.episodes import NEAR_STEPS, NEAR_US, Episode

FIELDS = ("run", "from_step", "to_step", "from", "to", "metric", "rank", "rule", "note")


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
    note: str = ""


class Score(NamedTuple):
    """How well one rule, or all together, found the incidents."""

    rule: str
    alerts: int
    right: int
    incidents: int
    """That the rule could have found: those that name no rule, or this one."""
    found: int
    lead_steps: float | None
    """Median of the steps that were left until the incident's end when the first right alert was opened;
    None without steps."""
    lead_seconds: float | None
    delay_steps: float | None
    """Median of the steps from the incident's begin to where the alert begins."""
    delay_seconds: float | None

    @property
    def precision(self) -> float | None:
        return self.right / self.alerts if self.alerts else None

    @property
    def recall(self) -> float | None:
        return self.found / self.incidents if self.incidents else None


def read(text: str, where: str) -> list[Incident]:
    """Incidents of a CSV file with a header, a JSON list of objects, or an object per line.

    Raises SettingsError, which names the entry.
    """
    stripped = text.lstrip()
    try:
        if stripped.startswith("["):
            rows = json.loads(stripped)
        elif stripped.startswith("{"):
            rows = [json.loads(line) for line in stripped.splitlines() if line.strip()]
        else:
            rows = list(csv.DictReader(io.StringIO(text)))
        return [_incident(row, number) for number, row in enumerate(rows, start=1)]
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingsError(
            "--labels", where, f"{error}: give CSV or JSON with {', '.join(FIELDS)}; run and from are needed"
        ) from error


def _incident(row: Mapping[str, Any], number: int) -> Incident:
    unknown = set(row) - set(FIELDS) - {None}
    if unknown:
        raise ValueError(f"label {number} has the unknown field {sorted(unknown)[0]}")
    given = {name: value for name, value in row.items() if value not in (None, "")}
    if not given.get("run") or ("from_step" not in given and "from" not in given):
        raise ValueError(f"label {number} lacks run, or from_step or from")

    def whole(name: str) -> int | None:
        return int(given[name]) if name in given else None

    first, begin = whole("from_step"), _time(given.get("from"))
    return Incident(
        str(given["run"]),
        first,
        whole("to_step") if "to_step" in given else first,
        begin,
        _time(given["to"]) if "to" in given else begin,
        given.get("metric"),
        whole("rank"),
        given.get("rule"),
        str(given.get("note", "")),
    )


def _time(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int | float):
        return round(value * 1_000_000)
    moment = datetime.fromisoformat(str(value))
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def fits(episode: Episode, incident: Incident) -> bool:
    """Whether the alert speaks of the incident."""
    if incident.run != episode.run:
        return False
    for asked, has in (
        (incident.metric, episode.metric),
        (incident.rank, episode.rank),
        (incident.rule, episode.rule),
    ):
        if asked is not None and asked != has:
            return False
    if incident.from_step is not None:
        if episode.step is None or incident.to_step is None:
            return False
        last = episode.step if episode.last_step is None else max(episode.step, episode.last_step)
        return last >= incident.from_step and episode.step <= incident.to_step + NEAR_STEPS
    assert incident.from_us is not None
    assert incident.to_us is not None
    return episode.end_us() >= incident.from_us and episode.opened_us <= incident.to_us + NEAR_US


def score(episodes: Sequence[Episode], incidents: Sequence[Incident], rules: Sequence[str]) -> list[Score]:
    """A score for each rule, and one ("all") for all together."""
    found = [_score(rule, [e for e in episodes if e.rule == rule], incidents) for rule in rules]
    return [*found, _score("all", episodes, incidents)]


def _score(rule: str, episodes: Sequence[Episode], incidents: Sequence[Incident]) -> Score:
    mine = [one for one in incidents if rule == "all" or one.rule in (None, rule)]
    right = sum(any(fits(episode, one) for one in mine) for episode in episodes)
    first = [min(hits, key=lambda e: e.opened_us) for one in mine if (hits := _hits(episodes, one))]
    known = [one for one in mine if _hits(episodes, one)]
    pairs = list(zip(known, first, strict=True))
    return Score(
        rule,
        len(episodes),
        right,
        len(mine),
        len(known),
        _median([i.to_step - at for i, e in pairs if i.to_step is not None and (at := _came(e)) is not None]),
        _median([(i.to_us - e.opened_us) / 1e6 for i, e in pairs if i.to_us is not None]),
        _median([e.step - i.from_step for i, e in pairs if i.from_step is not None and e.step is not None]),
        _median([(e.opened_us - i.from_us) / 1e6 for i, e in pairs if i.from_us is not None]),
    )


def _came(episode: Episode) -> int | None:
    return episode.step if episode.came_step is None else episode.came_step


def _hits(episodes: Sequence[Episode], incident: Incident) -> list[Episode]:
    return [episode for episode in episodes if fits(episode, incident)]


def _median(values: Sequence[float]) -> float | None:
    return float(median(values)) if values else None
