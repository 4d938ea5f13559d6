"""Evaluations: each request has one answer, each accepted result and each item is stored once."""

from __future__ import annotations

from collections import Counter

from driftline import events, records

from .findings import Findings, Problems, few


def evaluated_once(found: Findings) -> Problems:
    """Each request of a run has one answer in its log; a request has at most one accepted complete result."""
    answers: dict[tuple[str, str], list[events.EvalAccepted]] = {}
    done: dict[str, set[str]] = {}
    ids: set[str] = set()
    for _, record in found.recorded("telemetry"):
        if b'"kind":"eval_accepted"' not in (record.value or b"")[:40]:
            continue
        event = records.decode(record.value)
        assert isinstance(event, events.EvalAccepted)
        if event.id in ids:
            continue
        ids.add(event.id)
        answers.setdefault((event.request, event.run), []).append(event)
        if event.outcome.status == "done":
            done.setdefault(event.request, set()).add(event.lease)
    for request, leases in sorted(done.items()):
        if len(leases) > 1:
            yield f"{request}: results of {len(leases)} leases were accepted"
    for (request, run), events_ in sorted(answers.items()):
        if len(events_) > 1:
            yield f"{request} was answered {len(events_)} times for {run}"
    for judged in found.telemetry:
        if not judged.current:
            continue
        for output in judged.outputs:
            if output.topic == "evals" and output.id.offset < judged.reached:
                asked = records.decode(output.value)
                assert isinstance(asked, events.EvalRequested)
                if (asked.request, asked.run) not in answers:
                    yield f"{asked.request}, asked for by {asked.run} ({asked.id}), was forgotten"


def evaluations_stored_once(found: Findings) -> Problems:
    """``evals`` has each accepted result once, ``eval_items`` each item of each lease once."""
    table = found.world.tables.rows("evals")
    stored = Counter(zip(table["id"].to_pylist(), table["metric"].to_pylist(), strict=True))
    expected: set[tuple[str, str | None]] = set()
    for place, record in found.recorded("telemetry"):
        if b'"kind":"eval_accepted"' in (record.value or b"")[:40]:
            if record.offset in found.world.lost.get((place.uuid, place.partition), ()):
                continue
            event = records.decode(record.value)
            assert isinstance(event, events.EvalAccepted)
            names: list[str | None] = [metric.name for metric in event.outcome.metrics]
            expected |= {(event.id, name) for name in names or [None]}
    yield from few("is not in evals", expected - set(stored))
    yield from few("is in evals twice", (key for key, count in stored.items() if count > 1))
    items = found.world.tables.rows("eval_items")
    rows = Counter(zip(items["lease"].to_pylist(), items["position"].to_pylist(), strict=True))
    sent: set[tuple[str, int]] = set()
    for _, record in found.recorded("eval-items"):
        event = records.decode(record.value)
        assert isinstance(event, events.EvalItems)
        sent |= {(event.lease, event.first + at) for at in range(len(event.items))}
    yield from few("is not in eval_items", sent - set(rows))
    yield from few("is in eval_items twice", (key for key, count in rows.items() if count > 1))
