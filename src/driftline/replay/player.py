"""A recorded log through the pure pipeline, at full speed.

    Player(part, opening)      play(item) -> outputs

With another configuration every configuration of the log is replaced by it: what a replay exchanges is the
``PipelineConfig`` (windows, quantiles, groups, aggregates, derived metrics, rules, detectors, triggers,
suites, lateness and other limits), nothing that the log recorded of the training or of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from driftline import config as configuration
from driftline import events
from driftline.config import PipelineConfig
from driftline.records import Framed, Output, Record
from driftline.storage.recorded.source import Hole, Item, Part
from driftline.streams.core import is_configuration
from driftline.streams.pipeline import Pipeline

BATCH_SAMPLES = 400_000
BATCH_RECORDS = 2_000


class Source(Protocol):
    """Where a log comes from: the tables, or Kafka."""

    notes: list[str]

    def parts(self) -> list[Part]: ...

    def configurations(self, part: Part) -> list[Record]: ...

    def stretches(self, part: Part, start: int | None = None, end: int | None = None) -> Iterator[Item]: ...


class Player:
    """The pipeline over one partition; ``configurations`` are those of its log, in order.

    ``state``: what :meth:`dump` gave, to go on from there. Raises BadData if it cannot be read.
    """

    def __init__(
        self,
        part: Part,
        configurations: Sequence[Record],
        other: PipelineConfig | None = None,
        *,
        state: bytes | None = None,
    ) -> None:
        self.part = part
        self.records = 0
        self.notes: list[str] = []
        self._core = Pipeline()
        self.state = self._core.fresh(part.topic_uuid, part.partition)
        self._other = None if other is None else configuration.encode(other)
        if state is not None:
            self.state = self._core.load(state)
            return
        opening = _opening(part, configurations)
        if opening is not None:
            self._core.prime(self.state, self._exchanged(opening))
        elif self._other is not None:
            self._core.prime(self.state, self._exchanged(_changed(part, self._other)))
        elif configurations or not part.beginning:
            self.notes.append("the log has no configuration any more: defaults hold")

    def play(self, item: Item) -> list[Output]:
        """Applies what comes next."""
        if isinstance(item, Hole):
            return self._core.gap(self.state, item.start, item.end)
        outputs: list[Output] = []
        for batch in batches(item):
            self.records += len(batch)
            if self._other is not None:
                batch = [self._exchanged(r) if _configures(r) else r for r in batch]
            outputs += self._core.step(self.state, batch)
        return outputs

    def dump(self) -> bytes:
        """The state of the pipeline."""
        return self._core.dump(self.state)

    def over(self) -> bool:
        """Whether no run is live: ticks change nothing then."""
        return not self.state.runs

    def told(self) -> list[str]:
        """Sentences about the replay as a whole: a configuration that was refused."""
        return [*self.notes, *self._core.notices(self.state)]

    def _exchanged(self, record: Record | Framed) -> Record:
        if self._other is None:
            assert isinstance(record, Record)
            return record
        return _changed(self.part, self._other)._replace(offset=record.offset, time_ms=record.time_ms)


def batches(item: Sequence[Record | Framed]) -> Iterator[Sequence[Record | Framed]]:
    """Cuts records into batches that fit the caches; the cut changes no output."""
    held = first = 0
    for at, record in enumerate(item):
        size = len(record.frame.metric) if isinstance(record, Framed) else 0
        if at > first and (held + size > BATCH_SAMPLES or at - first >= BATCH_RECORDS):
            yield item[first:at]
            held, first = 0, at
        held += size
    if first < len(item):
        yield item[first:]


def samples_in(item: Item) -> int:
    """How many samples the records carry."""
    if isinstance(item, Hole):
        return 0
    return sum(len(record.frame.metric) for record in item if isinstance(record, Framed))


def _configures(record: Record | Framed) -> bool:
    return isinstance(record, Record) and is_configuration(record.value)


def _changed(part: Part, body: bytes) -> Record:
    event = events.ConfigChanged(
        worker="replay", time_us=0, digest=configuration.digest(body), body=msgspec.Raw(body)
    )
    return Record(part.partition, 0, 0, events.encode(event))


def _opening(part: Part, configurations: Iterable[Record]) -> Record | None:
    """The configuration that holds where the replay begins: the first of the log; where its beginning is gone
    the last before the start."""
    found = None
    for record in configurations:
        if found is None or (not part.beginning and record.offset < part.start):
            found = record
    return found
