"""What the decoder remembers of earlier frames changes its time, never its outcome."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftline import arrow_stream, frame_shapes, frames
from driftline.errors import BadRecord


def frame(seq: int = 1, count: int = 9, **changes: object) -> frames.Frame:
    """A frame with a step missing and a weight given here and there, unless the changes say otherwise."""
    chance = np.random.default_rng(seq)
    step = np.arange(count, dtype=np.int64)
    step[::4] = frames.NO_STEP
    names = ["loss", "reward", "größe"]
    made = frames.Frame(
        "run-1",
        "p1",
        3,
        seq,
        names,
        (np.arange(count) % len(names)).astype(np.int16),
        step,
        1_700_000_000_000_000 + np.arange(count),
        chance.normal(size=count),
        np.where(np.arange(count) % 3 == 0, 2.0, 1.0),
        '{"logged": 7}',
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def outcome(read: object, payload: bytes) -> object:
    """All that a reader gives, comparable; NaN compares by its bits."""
    assert callable(read)
    try:
        found: frames.Frame = read(payload)
    except BadRecord as error:
        return str(error)
    arrays = [(column.dtype.str, column.tobytes()) for column in found[5:10]]
    return found[:5], arrays, found.counters


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> frame_shapes.Shapes:
    """A decoder that remembers nothing yet, whatever other tests decoded."""
    shapes = frame_shapes.Shapes(frames.SCHEMA)
    monkeypatch.setattr(frames, "_SHAPES", shapes)
    return shapes


def test_a_frame_like_the_last_is_read_from_what_is_remembered(
    warm: frame_shapes.Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = frames.encode(frame(1)), frames.encode(frame(2))
    assert outcome(frames.decode, first) == outcome(frames.read, first)
    expected = outcome(frames.read, second)
    monkeypatch.setattr(pa.ipc, "open_stream", None)
    assert outcome(frames.decode, second) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": np.ones(9)},
        {"weight": np.arange(9.0)},
        {"step": np.full(9, frames.NO_STEP)},
        {"step": np.arange(9)},
        {"rank": None},
        {"rank": -1},
        {"counters": ""},
        {"value": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308, 0.0, 1.0, -np.nan])},
        {"names": [f"name {i}" for i in range(9)], "metric": np.arange(9, dtype=np.int16)},
    ],
    ids=["no weights", "weights", "no steps", "steps", "no rank", "rank -1", "no counters", "odd", "many"],
)
def test_every_form_that_the_encoder_writes_is_remembered(
    warm: frame_shapes.Shapes, changes: dict[str, object]
) -> None:
    for seq in (1, 2):
        payload = frames.encode(frame(seq, **changes))
        assert outcome(frames.decode, payload) == outcome(frames.read, payload)
    assert warm.find(payload) is not None


def damaged(payload: bytes, places: Iterable[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(payload)
    for place, bit in places:
        changed[place % len(changed)] ^= 1 << bit
    return bytes(changed[: len(changed) - cut])


@settings(max_examples=15 * settings.default.max_examples, deadline=None)
@given(
    which=st.integers(0, 3),
    places=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 7)), max_size=4),
    cut=st.one_of(st.just(0), st.integers(0, 1_000)),
)
def test_a_damaged_frame_has_the_outcome_that_arrow_gives_it(
    which: int, places: list[tuple[int, int]], cut: int
) -> None:
    forms = [frame(1), frame(2, weight=np.ones(9)), frame(3, rank=None), frame(4, count=1)]
    for form in forms:
        frames.decode(frames.encode(form))  # remembered from here on
    payload = damaged(frames.encode(forms[which]), places, cut)
    assert outcome(frames.decode, payload) == outcome(frames.read, payload)


def test_an_index_without_a_name_is_refused_in_a_frame_of_a_known_shape(warm: frame_shapes.Shapes) -> None:
    frames.decode(frames.encode(frame(1)))
    payload = frames.encode(frame(2, metric=np.array([0, 1, 2] * 3, np.int16)))
    for index in (3, -1):
        wrong = payload.replace(
            np.array([0, 1, 2] * 3, "<i2").tobytes(), np.array([0, 1, index] * 3, "<i2").tobytes()
        )
        assert wrong != payload
        with pytest.raises(BadRecord, match="name that it does not carry"):
            frames.decode(wrong)


def messages(payload: bytes) -> list[bytes]:
    """The messages of a stream, without the mark of its end."""
    found, at = [], 0
    while payload[at:] not in (b"", arrow_stream.END):
        body = pa.ipc.read_message(pa.py_buffer(payload).slice(at)).body
        end = arrow_stream.end_of_metadata(payload, at) + (0 if body is None else body.size)
        found.append(payload[at:end])
        at = end
    return found


def changing_dictionaries(emit_deltas: bool) -> list[bytes]:
    """Messages of a stream that replaces its dictionary, or adds to it, before the second batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=emit_deltas)
    first = pa.ipc.open_stream(frames.encode(frame(1))).read_next_batch()
    with pa.ipc.new_stream(sink, first.schema, options=options) as writer:
        writer.write_batch(first)
        names = pa.array(["loss", "reward", "größe", "acc"] if emit_deltas else ["acc", "loss", "reward"])
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2] * 3, pa.int16()), names)
        writer.write_batch(pa.record_batch([column, *first.columns[1:]], schema=first.schema))
    return messages(sink.getvalue().to_pybytes())


def test_a_dictionary_that_is_replaced_before_the_batch_teaches_nothing(warm: frame_shapes.Shapes) -> None:
    """F1: B's frame holds A's dictionary, then another one; A's next frame is read with A's names."""
    schema, first, _, second, batch = changing_dictionaries(emit_deltas=False)
    with pytest.raises(BadRecord, match="record batch belongs"):
        frames.decode(schema + first + second + batch)
    assert frames.decode(frames.encode(frame(1))).names == ["loss", "reward", "größe"]
    assert frames.decode(schema + second + batch).names == ["acc", "loss", "reward"]
    assert frames.decode(frames.encode(frame(1))).names == ["loss", "reward", "größe"]


PIECES = [
    *messages(frames.encode(frame(1))),
    *messages(frames.encode(frame(2, names=["reward", "loss", "acc"]))),
    *messages(frames.encode(frame(3, weight=np.ones(9), counters=""))),
    *changing_dictionaries(emit_deltas=False),
    *changing_dictionaries(emit_deltas=True),
    b"",
    arrow_stream.END,
    arrow_stream.END[:4],
    b"garbage.",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams=st.lists(st.lists(st.sampled_from(PIECES), max_size=5), min_size=1, max_size=6))
def test_any_messages_in_any_order_mean_the_same_whatever_was_read_before(
    warm: frame_shapes.Shapes, streams: list[list[bytes]]
) -> None:
    """Order, repetition and kind of messages; the decoder that remembers, and one that never saw anything."""
    for kind in (PIECES[:3], PIECES[3:6], PIECES[6:9]):
        frames.decode(b"".join(kind))
    for stream in streams:
        payload = b"".join(stream)
        remembering = outcome(frames.decode, payload)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "_SHAPES", frame_shapes.Shapes(frames.SCHEMA))
            assert outcome(frames.read, payload) == remembering
        assert isinstance(remembering, str) or len(stream) - stream.count(b"") in (3, 4)


def test_a_dictionary_of_another_number_is_not_mistaken_for_a_known_one(warm: frame_shapes.Shapes) -> None:
    """Spliced from a stream in which the names are the second dictionary: Arrow does not find the first."""
    payload = frames.encode(frame(1))
    batch = pa.ipc.open_stream(payload).read_next_batch()
    sink = pa.BufferOutputStream()
    two = pa.record_batch(
        [pa.array(["x"] * 9).dictionary_encode(), batch.column(0)],
        schema=pa.schema([pa.field("other", pa.dictionary(pa.int32(), pa.utf8())), frames.SCHEMA[0]]),
    )
    with pa.ipc.new_stream(sink, two.schema) as writer:
        writer.write_batch(two)
    second = messages(sink.getvalue().to_pybytes())[2]
    schema, first, rest = messages(payload)
    spliced = schema + second + rest
    assert second != first
    for _ in range(2):
        assert outcome(frames.decode, payload) == outcome(frames.read, payload)
        assert outcome(frames.decode, spliced) == outcome(frames.read, spliced)
    with pytest.raises(BadRecord):
        frames.decode(spliced)


def test_what_is_remembered_is_bounded(warm: frame_shapes.Shapes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_shapes, "MAX_REMEMBERED", 20)
    for count in range(1, 100):
        payload = frames.encode(frame(1, count=count))
        assert outcome(frames.decode, payload) == outcome(frames.read, payload)
        assert max(len(warm._batches), len(warm._names)) <= 20


def test_another_writer_of_the_same_format_is_read_by_arrow(warm: frame_shapes.Shapes) -> None:
    """Metadata in another order, or with more in it, and compressed buffers."""
    payload = frames.encode(frame(1))
    reader = pa.ipc.open_stream(payload)
    batch = reader.read_next_batch()
    meta = dict(reversed((reader.schema.metadata or {}).items())) | {b"made by": b"somebody else"}
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, reader.schema.with_metadata(meta), options=options) as writer:
        writer.write_batch(batch.replace_schema_metadata(meta))
    other = sink.getvalue().to_pybytes()
    for _ in range(2):
        assert outcome(frames.decode, other) == outcome(frames.read, other)
        assert outcome(frames.decode, other) == outcome(frames.read, payload)
        assert warm.find(other) is None
