"""An evaluation as records: its items in records of bounded size, then the result that carries their
count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from driftline import events
from driftline.evaluator.metrics import ItemOutcome
from driftline.events import EvalItems, EvalResult, Item, Lease, number
from driftline.topics import TopicName

TEXT_MAX = 8_000
"""Characters of a response or an expected answer that travel; longer ones are cut, marked by "…"."""
ITEMS_MAX = 500
RECORD_MAX_BYTES = 256 * 1024


class Parcel(NamedTuple):
    """One record to send. Topics keyed by run go to the run's partition, the others to partition 0."""

    topic: TopicName
    run: str
    value: bytes


class Delivery(NamedTuple):
    """All records of one result: ``items`` must be at the broker before ``result`` is sent."""

    items: list[Parcel]
    result: Parcel


def pack(lease: Lease, result: EvalResult, outcomes: Sequence[ItemOutcome]) -> Delivery:
    """The records of one lease. The same lease always gives the same items records."""
    items = [Parcel("eval-items", lease.run, events.encode(record)) for record in _items(lease, outcomes)]
    return Delivery(items, Parcel("evals", lease.run, events.encode(result)))


def _items(lease: Lease, outcomes: Sequence[ItemOutcome]) -> Iterator[EvalItems]:
    first, size = 0, 0
    held: list[Item] = []
    for at, outcome in enumerate(outcomes):
        item = item_of(outcome)
        bytes_of_item = 200 + 6 * (len(item.response) + len(item.expected) + len(item.item))
        if held and (len(held) >= ITEMS_MAX or size + bytes_of_item > RECORD_MAX_BYTES):
            yield _record(lease, first, held)
            first, size, held = at, 0, []
        held.append(item)
        size += bytes_of_item
    if held:
        yield _record(lease, first, held)


def _record(lease: Lease, first: int, items: list[Item]) -> EvalItems:
    return EvalItems(run=lease.run, request=lease.request, lease=lease.lease, first=first, items=items)


def item_of(outcome: ItemOutcome) -> Item:
    """The item as it travels."""
    return Item(
        item=_cut(outcome.item),
        status=outcome.status,
        score=None if outcome.score is None else number(outcome.score),
        response=_cut(outcome.response),
        response_length=outcome.response_length,
        expected=_cut(outcome.expected),
    )


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # lone surrogates have no bytes
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
