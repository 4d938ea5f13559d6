"""The log of a source -> the tables, each record once; with the windows, facts and alerts that it gives.

The log is made from its beginning each time (:mod:`.telling`) and goes through the same sink core as a log
of a
broker: what the tables have is skipped by its offset. So an import that is run again adds nothing, one of a
source that has grown adds the new end, and one that was killed is completed. The hash in each done segment
shows that the source still says what it said; where it does not, nothing is written.

The pipeline runs over the same records. Without the extra ``streams`` there are samples, events and
evaluations only, which is said; an import with it later adds the rest.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from driftline import config, events
from driftline.clock import SystemClock
from driftline.errors import BadData, Unavailable
from driftline.events import ImportSegment
from driftline.importing.items import Item, Part, Source, Tally
from driftline.importing.reading import Reading
from driftline.importing.telling import Log, Telling, Told
from driftline.records import Output, Record
from driftline.settings import Settings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.imported import segments
from driftline.storage.lakes import AnyLake
from driftline.storage.store import App, Conflict, Tables
from driftline.storage.upkeep import Upkeep
from driftline.topics import TopicName

BATCH = 256
"""Records that go through pipeline and sink together."""
COMMIT_BYTES = 64 * 1024 * 1024
COMMIT_ROWS = 200_000
"""A row of ``windows`` takes about a kilobyte while it waits."""
MAX_PARTS = 2_000
MERGED_PARTS = 200
"""Parts of a source that are merged by time; more are taken one after the other."""
SETTLED_S = 60
"""A file that was not changed for so long is whole: its last line may lack its end."""
_PROGRESS_ITEMS = 1_000
OUTPUTS: tuple[TopicName, ...] = ("windows", "facts", "alerts")

Progress = Callable[[int], None]
"""Gets the units (of limits) read so far."""


@dataclass
class Made:
    """What an import of one source did, or would do."""

    reading: Reading
    runs: dict[str, str]
    """Names by id."""
    tally: Tally
    samples: int = 0
    evaluations: int = 0
    rewinds: int = 0
    first_us: int | None = None
    last_us: int | None = None
    rows: Counter[str] = field(default_factory=Counter)
    """Added to each table."""
    already: bool = False
    """Some of it, or all, was there before."""
    windows: bool = True
    """The pipeline ran."""


class Loading:
    """One source on its way into the tables; without tables it is only counted.

    ``before``: what the tables have of its log (:func:`driftline.storage.imported.segments`).
    """

    def __init__(
        self,
        source: Source,
        reading: Reading,
        key: str,
        *,
        settings: Settings,
        tables: Tables | None,
        before: Sequence[ImportSegment] = (),
        changed_s: float,
        finished: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._source, self._tables, self._settings = source, tables, settings
        self._log = Log.of(key)
        self._before = list(before)
        if tables is not None and not before and tables.version("log", App.id(*self._log)) >= 0:
            raise BadData(
                f"{reading.name} was imported before, and storage.retention has deleted the log of it; "
                f"to import it "
                "again, name another --run"
            )
        self._whole = finished or source.finished or time.time() - changed_s > SETTLED_S
        self._progress = progress or (lambda _: None)
        self.reading = reading
        self._telling = Telling(self._log, reading, source.tally)
        self._parts: dict[str, Part] = {}
        self._positions: dict[str, int] = {}

    def run(self) -> Made:
        """Imports, or counts. Raises BadData, Unavailable, SettingsError."""
        made = Made(self.reading, {}, self._source.tally, already=bool(self._before))
        if self._tables is None:
            for _ in self._records():
                pass
            made.windows = False
        else:
            writer = _Writer(self._tables, self._log, self._settings)
            made.windows = writer.pipeline is not None
            writer.write(self._records(), made.rows)
        telling = self._telling
        made.runs, made.samples, made.rewinds = telling.runs, telling.samples, telling.rewinds
        made.evaluations, made.first_us, made.last_us = (
            telling.evaluations,
            telling.first_us,
            telling.last_us,
        )
        return made

    # --- the log -------------------------------------------------------------------------------------------

    def _records(self) -> Iterator[Told]:
        """The whole log: the segments that were begun before, then one of what is new."""
        begun = [event for event in self._before if event.state == "begun"]
        done = dict(enumerate(e for e in self._before if e.state == "done"))
        for number, segment in enumerate(begun):
            if number not in done and segment.digest != self._source.digest(segment.limits):
                raise BadData(f"{self.reading.name}: {self._changed()}")
            items = self._items(segment.limits, whole=segment.whole)
            yield from self._checked(items, segment, done.get(number))
        limits = self._source.limits()
        if len(limits) > MAX_PARTS:
            raise BadData(f"{len(limits):,} files for one run, at most {MAX_PARTS:,} are possible")
        last = begun[-1] if begun else None
        whole = self._whole and not self._source.torn
        same = last is not None and last.limits == limits
        if not whole and not (same and last is not None and last.whole):
            self._source.tally.note(_OPEN)
        if same and last is not None and (last.whole or not whole):
            return
        items = self._items(limits, whole=whole)
        first = next(items, None)
        if first is None and (last is None or last.whole or not whole):
            return
        if last is not None and last.whole:
            self._source.tally.note(_WENT_ON)
        body = config.encode(self._settings.pipeline).decode()
        digest = "" if self._tables is None else self._source.digest(limits)
        some = items if first is None else itertools.chain([first], items)
        yield from self._telling.segment(some, limits, whole=whole, config_body=body, digest=digest)

    def _checked(
        self, items: Iterator[Item], segment: ImportSegment, done: ImportSegment | None
    ) -> Iterator[Told]:
        told = self._telling.segment(
            items,
            segment.limits,
            whole=segment.whole,
            config_body=segment.config,
            digest=segment.digest,
        )
        held: Told | None = None
        for record in told:
            if held is not None:
                yield held
            held = record
        assert held is not None
        if done is not None and events.encode(done) != held.record.value:
            raise BadData(f"{self.reading.name}: {self._changed()}")
        yield held

    def _changed(self) -> str:
        if not self.reading.given_run:
            return _CHANGED
        return f"{_CHANGED}; if it is another source of the same run, name it with --source"

    def _items(self, limits: dict[str, int], *, whole: bool) -> Iterator[Item]:
        parts = [self._part(name, limit, whole) for name, limit in sorted(limits.items())]
        if len(parts) == 1:
            return parts[0]
        if len(parts) > MERGED_PARTS:
            return itertools.chain.from_iterable(parts)
        return heapq.merge(*parts, key=lambda item: item.time_us or 0)

    def _part(self, name: str, limit: int, whole: bool) -> Iterator[Item]:
        part = self._parts.get(name)
        if part is None:
            try:
                part = self._parts[name] = self._source.part(name)
            except KeyError:
                raise BadData(f"{self.reading.name}: {name} is gone; {self._changed()}") from None
        for number, item in enumerate(part.upto(limit, whole=whole)):
            yield item
            if number % _PROGRESS_ITEMS == 0:
                self._tell(name, part.position)
        self._tell(name, limit)

    def _tell(self, name: str, position: int) -> None:
        self._positions[name] = position
        self._progress(sum(self._positions.values()))


_OPEN = (
    "it was changed in the last minute, so its run stays open, and its last windows wait for more: import it "
    "again later, or say --finished"
)
_WENT_ON = (
    "it went on after it was taken to be finished: windows at that place were made without what came later"
)
_CHANGED = (
    "the source no longer says what was imported from it (its beginning changed, or another version of "
    "driftline "
    "reads it differently); nothing was written. To keep both, import it again with another --run"
)


class _Writer:
    """Records -> pipeline -> tables."""

    def __init__(self, tables: Tables, log: Log, settings: Settings) -> None:
        self._settings = settings
        self._core = SinkCore(tables)
        self._spots = {
            topic: Spot(topic, log.telemetry if topic == "telemetry" else log.other(topic), log.partition)
            for topic in ("telemetry", "eval-items", *OUTPUTS)
        }
        self._starts = self._core.resume(dict.fromkeys(self._spots.values(), 0))
        self._next: Counter[TopicName] = Counter()
        self.pipeline, self._state = _pipeline(log)

    def write(self, told: Iterator[Told], rows: Counter[str]) -> None:
        """Takes the whole log; ``rows`` counts what is added per table. Raises Unavailable, BadData."""
        try:
            batch: list[Told] = []
            for one in told:
                batch.append(one)
                if len(batch) >= BATCH:
                    self._take(batch)
                    batch = []
                    if self._full():
                        self._commit(rows)
            self._take(batch)
            self._commit(rows)
        except Conflict as error:
            raise Unavailable(f"another import of the same source runs now: {error}") from error

    def _full(self) -> bool:
        core = self._core
        return (
            core.waiting >= min(COMMIT_ROWS, self._settings.storage.commit_rows)
            or core.waiting_bytes > COMMIT_BYTES
        )

    def _take(self, batch: Sequence[Told]) -> None:
        items = [one.record for one in batch if one.topic == "eval-items"]
        records = [one.record for one in batch if one.topic == "telemetry"]
        self._sink("eval-items", items)
        self._sink("telemetry", records)
        if self.pipeline is not None and records:
            self._outputs(records[-1].time_ms, self.pipeline.step(self._state, records))

    def _outputs(self, time_ms: int, outputs: Sequence[Output]) -> None:
        for topic in OUTPUTS:
            made = []
            for output in outputs:
                if output.topic == topic:
                    made.append(
                        Record(self._spots[topic].partition, self._next[topic], time_ms, output.value)
                    )
                    self._next[topic] += 1
            self._sink(topic, made)

    def _sink(self, topic: TopicName, records: Sequence[Record]) -> None:
        """Those that no table has; a log that stands beyond is read again by the tables that lack them."""
        spot = self._spots[topic]
        start = self._starts[spot]
        fresh = [record for record in records if record.offset >= start]
        if fresh:
            self._core.take(spot, fresh)

    def _commit(self, rows: Counter[str]) -> None:
        assert not self._core.letters, f"the import made a record that it cannot read: {self._core.letters}"
        for committed in self._core.commits(empty=True):
            rows[committed.table] += committed.rows


def _pipeline(log: Log) -> tuple[Any, Any]:
    """The pipeline and its state; two None where the extra ``streams`` is not installed."""
    try:
        from driftline.streams.pipeline import Pipeline
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("driftline"):
            raise
        return None, None
    pipeline = Pipeline()
    return pipeline, pipeline.fresh(log.telemetry, log.partition)


def finish(lake: AnyLake, settings: Settings, say: Callable[[str], None]) -> None:
    """Few files and a new catalog, after rows were added."""
    counts: Counter[str] = Counter()
    Upkeep(lake, settings.storage, counts=counts, say=say, clock=SystemClock()).finish()


def before(lake: AnyLake, key: str) -> list[ImportSegment]:
    """What the tables have of the log of the source that ``key`` names. Raises BadData."""
    return segments(lake, Log.of(key).telemetry)


def reading_of(found: Sequence[ImportSegment]) -> Reading | None:
    """How a source was read by the first import of it; None before that."""
    return msgspec.convert(found[0].reading, Reading) if found else None
