"""The wire format round-trips, refuses what is broken, and skips what is newer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from driftline import events, frames, records
from driftline.errors import BadRecord
from driftline.records import OutputId


def frame(**changes: object) -> frames.Frame:
    base = frames.Frame(
        run="01run",
        process="p1",
        rank=3,
        seq=7,
        names=["loss", "timing(s)/gen", "准确率", "a.b", "a/b", "🔥" * 10],
        metric=np.array([0, 1, 2, 3, 4, 5], np.int16),
        step=np.array([0, 1, frames.NO_STEP, 3, 4, 5], np.int64),
        time_us=np.array([1, 2, 3, 4, 5, 6], np.int64) * 1_000_000,
        value=np.array([1.5, np.nan, np.inf, -np.inf, 1e300, -0.0]),
        weight=np.array([1.0, 2.0, 1.0, 0.5, 1.0, 1.0]),
        counters='{"dropped":1}',
    )
    return base._replace(**changes)


def test_frame_round_trip_keeps_every_bit() -> None:
    before = frame()
    after = frames.decode(frames.encode(before))
    assert after[:5] == before[:5]
    assert after.counters == before.counters
    for name in ("metric", "step", "time_us", "value", "weight"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert np.signbit(after.value[5])


def test_frame_without_weights_steps_or_rank() -> None:
    before = frame(rank=None, weight=np.ones(6), step=np.full(6, frames.NO_STEP), counters="")
    after = frames.decode(frames.encode(before))
    assert after.rank is None
    assert after.weight.tolist() == [1.0] * 6
    assert (after.step == frames.NO_STEP).all()


def test_a_sample_without_a_weight_beside_others_with_one_has_weight_1() -> None:
    """Other languages' clients may leave out some; both ways of reading agree."""
    batch = pa.ipc.open_stream(frames.encode(frame())).read_next_batch()
    some = pa.array([None, 2.0, 3.0, None, 5.0, 6.0], pa.float64())
    batch = pa.record_batch([*batch.columns[:4], some], schema=batch.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload = sink.getvalue().to_pybytes()
    for decoded in (frames.read(payload), frames.decode(payload), frames.decode(payload)):
        assert decoded.weight.tolist() == [1.0, 2.0, 3.0, 1.0, 5.0, 6.0]


def test_equal_frames_have_equal_bytes() -> None:
    assert frames.encode(frame()) == frames.encode(frame())


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "empty"),
        (b"\x00\x01garbage", "not an event"),
        (b"\xff\xff\xff\xffgarbage", "Arrow"),
        (b'{"kind":"tick","v":1}', "missing required field"),
        (b'{"kind":"tick","v":1,"worker":"w","time_us":"soon"}', "time_us"),
        (b"[1,2]", "not an event"),
        (frames.encode(frame(run="")), "no run"),
        (frames.encode(frame(seq=-1)), "seq"),
        (frames.encode(frame(metric=np.array([0, 1, 2, 3, 4, 6], np.int16))), "does not carry"),
    ],
)
def test_broken_records_are_bad_records(payload: bytes, says: str) -> None:
    with pytest.raises(BadRecord, match=says):
        records.decode(payload)


def test_every_truncation_of_a_frame_is_a_bad_record() -> None:
    payload = frames.encode(frame())
    for length in range(0, len(payload) - 16, 7):
        try:
            records.decode(payload[:length])
        except BadRecord:
            continue
        pytest.fail(f"a frame cut to {length} of {len(payload)} bytes was accepted")


def test_unknown_kinds_and_newer_versions_are_skipped_not_refused() -> None:
    assert records.decode(b'{"kind":"hologram","x":1}') == events.Unknown("hologram", 1)
    assert records.decode(b'{"kind":"tick","v":2,"when":1}') == events.Unknown("tick", 2)


def test_what_is_unknown_keeps_its_place_in_the_sequence_of_its_process() -> None:
    """Else the records after it would seem to follow a lost one."""
    newer = b'{"kind":"hologram","v":3,"run":"r","process":"p","seq":7,"x":1}'
    assert records.decode(newer) == events.Unknown("hologram", 3, "r", "p", 7)
    for odd in (b'"seq":-1', b'"seq":"7"', b'"seq":1e3', b'"seq":%d' % 2**70, b'"sequence":7'):
        assert records.decode(newer.replace(b'"seq":7', odd)) == events.Unknown("hologram", 3)
    table = pa.table({"x": [1]}).replace_schema_metadata(
        {"format": "2", "run": "r", "process": "p", "seq": "7"}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert records.decode(sink.getvalue().to_pybytes()) == events.Unknown("frame", "2", "r", "p", 7)


def test_newer_fields_of_a_known_kind_are_ignored() -> None:
    event = records.decode(b'{"kind":"tick","v":1,"worker":"w","time_us":5,"moon":"full"}')
    assert event == events.Tick(worker="w", time_us=5)


def test_numbers_that_json_lacks() -> None:
    for value in (float("nan"), float("inf"), float("-inf"), 1.5):
        assert repr(events.to_float(events.number(value))) == repr(value)


def test_output_ids() -> None:
    ident = OutputId("uuid-1", 3, 42, 0)
    assert OutputId.parse(str(ident)) == ident
    with pytest.raises(BadRecord):
        OutputId.parse("a/b/c")
