"""What metrics were declared to be (``run.define``): contradictions between ranks, or with before, are facts.

The tables keep every declaration; here only those of live runs are compared. Field by field the newest in the
log counts, and the first contradiction of a metric is told by a ``note``, once.

Bounds: ``MAX_DEFINED`` metrics per run; further ones are stored, counted, and not compared.
"""

from __future__ import annotations

from driftline import events
from driftline.streams.attempts import Definition, Process
from driftline.streams.closing import Moment

MAX_DEFINED = 10_000
_FIELDS = ("goal", "unit", "reduce")


def defined(moment: Moment, event: events.MetricDefined, process: Process) -> None:
    """A process says what a metric means."""
    run, state = moment.run, moment.state
    known = run.defined.get(event.metric)
    if known is None:
        if len(run.defined) >= MAX_DEFINED:
            state.count("definitions_not_compared")
            return
        known = run.defined[event.metric] = Definition()
    for name in _FIELDS:
        said, before = getattr(event, name), getattr(known, name)
        if said is None or said == before:
            continue
        setattr(known, name, said)
        if before is not None and not known.told:
            known.told = True
            _tell(moment, event, process, name, before, said)


def _tell(
    moment: Moment, event: events.MetricDefined, process: Process, name: str, before: str, after: str
) -> None:
    who = f"rank {process.rank}" if process.rank is not None else f"process {process.name}"
    moment.outbox.fact(
        moment.offset,
        moment.run.name,
        min(process.attempt, moment.run.current),
        "note",
        moment.now_us,
        f"{event.metric}: {who} declares {name} {after!r}, before it was {before!r}: the newest counts",
        metric=event.metric,
        process=process.name,
        rank=process.rank,
        detail={"field": name, "before": before, "after": after},
    )
