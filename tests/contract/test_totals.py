"""F18: totals are bounded like the numbers that they are made of, and so are the times of records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driftline import events, records
from driftline.errors import BadRecord
from driftline.events import Checkpoint, FileEntry
from driftline.streams.pipeline import Pipeline

HUGE = 2**62


def saved(files: list[tuple[str, int]], **more: Any) -> bytes:
    checkpoint = {"digest": "d", "uri": "/c", "files": files} | more
    said = {"kind": "checkpoint_saved", "v": 1, "run": "r", "process": "p", "seq": 0, "time_us": 5}
    return json.dumps(said | {"checkpoint": checkpoint}).encode()


@pytest.mark.parametrize(
    "value",
    [
        saved([(f"f{n}", HUGE) for n in range(2_000)]),
        saved([("a", HUGE), ("b", HUGE)]),
        saved([("a", -1)]),
        saved([], count=-1, size=5),
        saved([], count=1, size=-5),
    ],
)
def test_files_without_a_size_that_can_be_are_a_bad_record(value: bytes) -> None:
    with pytest.raises(BadRecord):
        records.decode(value)


def test_the_largest_checkpoint_that_can_be_travels() -> None:
    found = records.decode(saved([(f"f{n:04}", (2**63 - 1) // 2_000) for n in range(2_000)]))
    assert isinstance(found, events.CheckpointSaved)
    assert events.with_bounded_manifest(found.checkpoint).count == 2_000
    assert Checkpoint(digest="d", uri="/c", files=[FileEntry("a", 2**63 - 1)]).files


@pytest.mark.parametrize("time_ms", [-(2**62), -1, 0, 2**62, 2**63 - 1])
def test_a_time_that_no_calendar_has_stops_nobody(time_ms: int) -> None:
    pipeline = Pipeline()
    state = pipeline.fresh("uuid", 0)
    record = records.received(0, 0, time_ms, saved([("a", 1)]))
    pipeline.step(state, [record, record._replace(offset=1)])
    assert pipeline.load(pipeline.dump(state)).runs.keys() == {"r"}
    assert -1 <= record.time_ms <= records.TIME_MS_MAX
