"""From findings to alerts: open, update, resolve, with deduplication and bounds; one for all detectors.

A detector says of a *subject* (a metric on a rank, a process) that something is found there, or that it is
calm again; this module decides what is said about it. Rules:

- a finding about a subject without an open alert opens one; its id is made of the rule, the subject and
  where and when it opened, so it is the same in every replay and unique in the run;
- further findings update it at most every ``update_us`` of the run's time, and after a second already when
  the score is 1.5 times what was last told;
- ``calm`` resolves it; ``end`` resolves all.
- one metric has at most ``max_alerts`` alerts open at once, a rule at most eight times that; what comes on
  top joins one rolled-up alert of the metric (or of the rule), which is resolved when its last member is
  calm. Members are counted up to 10,000.

State is plain data; no numbers in it are infinite or NaN.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from driftline.events import AlertState, Number, Severity, number, to_float
from driftline.streams.views import AlertChange

MEMBERS_MAX = 10_000
_WORSE = 1.5
_WORSE_GAP_US = 1_000_000
_RANKS_NAMED = 20


class Finding(NamedTuple):
    """What a detector found at one place. ``position`` is the step or the start of the pane."""

    position: int
    metric: str | None
    rank: int | None
    step: int | None
    last_step: int | None
    value: float | None
    expected: float | None
    score: float | None
    text: str
    evidence: dict[str, Any]


class Open(msgspec.Struct):
    """An open alert as it was last told."""

    alert: str
    opened_us: int
    told_us: int
    told_score: float
    metric: str | None
    rank: int | None
    step: int | None
    last_step: int | None
    value: Number | None
    expected: Number | None
    score: Number | None
    text: str
    evidence: dict[str, Any]
    members: int = 0
    ranks: list[int] = []


class LifecycleState(msgspec.Struct):
    """What is open, by slot; and which subjects share a rolled-up slot."""

    open: dict[str, Open] = {}
    joined: dict[str, str] = {}
    overflow: int = 0
    """Findings of subjects beyond MEMBERS_MAX; they are in the rolled-up alert, but not counted in it."""


class Lifecycle:
    """The alerts of one rule."""

    def __init__(
        self, rule: str, detector: str, severity: Severity, *, update_us: int, max_alerts: int
    ) -> None:
        self.rule = rule
        self.detector = detector
        self.severity: Severity = severity
        self._update_us = update_us
        self._per_metric = max_alerts
        self._per_rule = 8 * max_alerts
        self.state = LifecycleState()

    def found(self, subject: str, finding: Finding, now_us: int) -> list[AlertChange]:
        """Something is wrong with ``subject``, now or still."""
        slot = self._slot(subject, finding.metric)
        rolled = not slot.startswith("=")
        if rolled:
            finding = self._roll_up(slot, subject, finding)
        held = self.state.open.get(slot)
        if held is None:
            return [self._opened(slot, subject if not rolled else slot, finding, now_us)]
        self._take(held, finding)
        score = finding.score or 0.0
        gap_us = now_us - held.told_us
        worse = score >= _WORSE * held.told_score and gap_us >= _WORSE_GAP_US and score > 0
        if gap_us < self._update_us and not worse:
            return []
        held.told_us, held.told_score = now_us, _finite(score)
        return [self._change(held, "update", None, held.text)]

    def calm(
        self, subject: str, now_us: int, text: str, *, last_step: int | None = None
    ) -> list[AlertChange]:
        """Nothing is wrong with ``subject`` any more; nothing happens if nothing was.

        ``last_step`` is the last bad one where it is known better now than at the last finding.
        """
        slot = self.state.joined.pop(subject, "=" + subject)
        held = self.state.open.get(slot)
        if held is None:
            return []
        if slot != "=" + subject:
            held.members -= 1
            if held.members > 0:
                return []
        elif last_step is not None:
            held.last_step = last_step
        return [self._resolved(slot, now_us, text)]

    def is_open(self, subject: str) -> bool:
        """Whether an alert, its own or a rolled-up one, speaks of ``subject``."""
        return "=" + subject in self.state.open or subject in self.state.joined

    def end(self, now_us: int, text: str) -> list[AlertChange]:
        """Resolves all that is open, in order of opening."""
        self.state.joined.clear()
        return [self._resolved(slot, now_us, text) for slot in list(self.state.open)]

    def _slot(self, subject: str, metric: str | None) -> str:
        if "=" + subject in self.state.open:
            return "=" + subject
        if subject in self.state.joined:
            return self.state.joined[subject]
        singles = [held.metric for slot, held in self.state.open.items() if slot.startswith("=")]
        if singles.count(metric) < self._per_metric and len(singles) < self._per_rule:
            return "=" + subject
        rolled = f"*{metric}"
        if rolled in self.state.open or len(self.state.open) < 2 * self._per_rule:
            return rolled
        return "**"

    def _roll_up(self, slot: str, subject: str, finding: Finding) -> Finding:
        """Joins ``subject`` to a rolled-up alert and tells of all of them."""
        held = self.state.open.get(slot)
        members, ranks = (held.members, held.ranks) if held else (0, [])
        if subject not in self.state.joined:
            if len(self.state.joined) < MEMBERS_MAX:
                self.state.joined[subject] = slot
                members += 1
            else:
                self.state.overflow += 1
            if finding.rank is not None and len(ranks) < _RANKS_NAMED and finding.rank not in ranks:
                ranks = [*ranks, finding.rank]
        members = max(1, members)
        if held is not None:
            held.members, held.ranks = members, ranks
        more = "one more place" if members == 1 else f"{members} more places"
        step = min_step(held.step, finding.step) if held else finding.step
        return finding._replace(
            metric=finding.metric if slot != "**" else None,
            rank=None,
            step=step,
            text=f"{more} beside those with their own alert; the newest: {finding.text}",
            evidence={"places": members, "ranks": ranks},
        )

    def _opened(self, slot: str, subject: str, finding: Finding, now_us: int) -> AlertChange:
        held = Open(
            alert=_alert_id(self.rule, subject, finding.position, now_us),
            opened_us=now_us,
            told_us=now_us,
            told_score=_finite(finding.score or 0.0),
            metric=finding.metric,
            rank=finding.rank,
            step=finding.step,
            last_step=finding.last_step,
            value=_number(finding.value),
            expected=_number(finding.expected),
            score=_number(finding.score),
            text=finding.text,
            evidence=finding.evidence,
        )
        if not slot.startswith("="):
            held.members, held.ranks = finding.evidence["places"], finding.evidence["ranks"]
        self.state.open[slot] = held
        return self._change(held, "open", None, held.text)

    def _take(self, held: Open, finding: Finding) -> None:
        """The newest finding; value and score stay those of the worst moment."""
        held.last_step = finding.last_step if finding.last_step is not None else held.last_step
        held.text, held.evidence = finding.text, finding.evidence
        if finding.step is not None:
            held.step = finding.step
        worst = None if held.score is None else to_float(held.score)
        if worst is None or finding.score is None or finding.score >= worst:
            held.value, held.score = _number(finding.value), _number(finding.score)
            held.expected = _number(finding.expected)

    def _resolved(self, slot: str, now_us: int, text: str) -> AlertChange:
        held = self.state.open.pop(slot)
        return self._change(held, "resolved", now_us, text)

    def _change(self, held: Open, state: AlertState, resolved_us: int | None, text: str) -> AlertChange:
        return AlertChange(
            alert=held.alert,
            rule=self.rule,
            detector=self.detector,
            severity=self.severity,
            state=state,
            opened_us=held.opened_us,
            resolved_us=resolved_us,
            metric=held.metric,
            rank=held.rank,
            step=held.step,
            last_step=held.last_step,
            value=None if held.value is None else to_float(held.value),
            expected=None if held.expected is None else to_float(held.expected),
            score=None if held.score is None else to_float(held.score),
            explanation=text,
            evidence=dict(held.evidence),
        )


def min_step(first: int | None, second: int | None) -> int | None:
    """The earlier of two steps, of which either may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _alert_id(rule: str, subject: str, position: int, opened_us: int) -> str:
    text = "\x00".join((rule, subject, str(position), str(opened_us)))
    return f"{rule}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _number(value: float | None) -> Number | None:
    return None if value is None else number(value)


def _finite(score: float) -> float:
    return score if -1e308 < score < 1e308 else 1e308
