"""Hostile Arrow streams: the answer is BadRecord, before memory is spent, and the process goes on."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline import arrow_stream, frames, window_rows
from driftline.errors import BadRecord
from driftline.records import OutputId

ID = OutputId("uuid", 0, 7, 0)
TEXTS = ("run", "axis", "group", "metric")


def rows(count: int = 3, **changes: Any) -> dict[str, Any]:
    """Columns of so many windows."""
    columns: dict[str, Any] = {}
    for field in window_rows.SCHEMA:
        if pa.types.is_map(field.type):
            columns[field.name] = [[("p90", 1.0)]] * count
        else:
            columns[field.name] = [f"größe {field.name}" if pa.types.is_string(field.type) else 1] * count
    return columns | changes


def stream(columns: dict[str, Any], meta: dict[Any, Any] | None = None, **options: Any) -> bytes:
    """As another writer may make it, whatever the schema says of nulls."""
    fields = [field.with_nullable(True) for field in window_rows.SCHEMA]
    schema = pa.schema(fields, {"id": str(ID), "format": "1"} if meta is None else meta)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def test_honest_windows_are_read_as_they_were_written() -> None:
    made, batch = window_rows.decode(window_rows.encode(rows(), ID))
    assert made == ID
    assert batch.schema.equals(window_rows.SCHEMA, check_metadata=True)
    assert batch.num_rows == 3


@pytest.mark.parametrize("field", [field.name for field in window_rows.SCHEMA if not field.nullable])
def test_a_null_where_none_may_be(field: str) -> None:
    """F17: it was committed, and then no SQL could read the table."""
    columns = rows()
    columns[field] = [columns[field][0], None, columns[field][0]]
    payload = window_rows.encode(rows(), ID)
    honest = stream(columns)
    schema_end = arrow_stream.messages(payload, ("schema", "record batch"))[0].end
    theirs = arrow_stream.messages(honest, ("schema", "record batch"))[1].start
    for hostile in (honest, payload[:schema_end] + honest[theirs:]):
        with pytest.raises(BadRecord):
            window_rows.decode(hostile)


@pytest.mark.parametrize("meta", [{}, {"id": b"\xff\xfe"}, {"id": "x"}, {"id": "u/0/-1/0/9"}])
def test_an_id_that_is_none(meta: dict[Any, Any]) -> None:
    schema = window_rows.SCHEMA.with_metadata(meta)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        arrays = [pa.array(rows()[field.name], field.type) for field in schema]
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    with pytest.raises(BadRecord):
        window_rows.decode(sink.getvalue().to_pybytes())


def test_metadata_of_another_writer_goes_no_further() -> None:
    fields = [field.with_metadata({b"\xff": b"\xff"}) for field in window_rows.SCHEMA]
    schema = pa.schema(fields, {"id": str(ID), b"\xfe": b"\xfd"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        arrays = [pa.array(rows()[field.name], field.type) for field in schema]
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    _, batch = window_rows.decode(sink.getvalue().to_pybytes())
    assert batch.schema.equals(window_rows.SCHEMA, check_metadata=True)


@pytest.mark.parametrize("column", TEXTS)
def test_texts_that_are_not_utf8(column: str) -> None:
    payload = window_rows.encode(rows(), ID)
    hostile = payload.replace(
        f"größe {column}".encode(), f"gr\xff\xfee {column}".encode("latin-1") + b"\xff\xff"
    )
    assert len(hostile) == len(payload)
    assert hostile != payload
    with pytest.raises(BadRecord):
        window_rows.decode(hostile)


HOSTILE = """
import random, sys
from driftline import frames, window_rows
from driftline.errors import BadRecord
payload = open(sys.argv[1], "rb").read()
decode = {"frames": frames.read, "windows": lambda some: window_rows.decode(some)[1].to_pylist()}[sys.argv[2]]
chance, refused = random.Random(1), 0
for turn in range(4_000):
    wrong = bytearray(payload)
    at = chance.randrange(len(wrong))
    if turn % 3 == 0:  # 32 bits, aligned: an offset or a length
        at &= ~3
        value = chance.choice([-1, 1 << 30, 7, 1 << 20, -(1 << 31)])
        wrong[at:at + 4] = value.to_bytes(4, "little", signed=True)
    elif turn % 3 == 1:  # 64 bits
        at &= ~7
        wrong[at:at + 8] = chance.choice([-1, 1 << 62, 7, 1 << 40]).to_bytes(8, "little", signed=True)
    else:
        wrong[at] ^= 1 << chance.randrange(8)
    try:
        decode(bytes(wrong[:len(payload)]))
    except BadRecord:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("kind", ["frames", "windows"])
def test_offsets_lengths_and_bits_that_are_wrong_end_no_process(tmp_path: Any, kind: str) -> None:
    """F16, in a process of its own, since the fault was a segmentation fault."""
    if kind == "windows":
        payload = window_rows.encode(rows(9), ID)
    else:
        many = np.arange(9)
        payload = frames.encode(
            frames.Frame(
                "r", "p", 0, 1, ["loss", "größe"], (many % 2).astype(np.int16), many, many, many / 3, many / 7
            )
        )
    file, program = tmp_path / "payload", tmp_path / "program.py"
    file.write_bytes(payload)
    program.write_text(HOSTILE)
    done = subprocess.run([sys.executable, program, file, kind], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_bomb_is_refused_before_it_is_unpacked(codec: str) -> None:
    """F20: 12 KB of 10 million samples took 1.4 GiB."""
    count = 4_000_000
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int16)), pa.array(["loss"]), safe=False),
        pa.array(np.zeros(count, np.int64)),
        pa.array(np.zeros(count, np.int64)).view(pa.timestamp("us", "UTC")),
        pa.array(np.zeros(count)),
        pa.nulls(count, pa.float64()),
    ]
    schema = frames.SCHEMA.with_metadata({"format": "1", "run": "r", "process": "p", "rank": "", "seq": "0"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    frame_bomb = sink.getvalue().to_pybytes()
    del columns
    window_bomb = stream(rows(1, metric=["x" * 80_000_000]), compression=codec)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for decode, bomb in ((frames.decode, frame_bomb), (window_rows.decode, window_bomb)):
        assert len(bomb) < 1_000_000
        with pytest.raises(BadRecord, match="when decompressed"):
            decode(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 20_000


@settings(deadline=None)
@given(data=st.binary(max_size=200), head=st.integers(0, 600))
def test_no_bytes_give_another_error(data: bytes, head: int) -> None:
    payload = window_rows.encode(rows(1), ID)[:head] + data
    for decode in (window_rows.decode, frames.decode):
        try:
            decode(payload)
        except BadRecord:
            continue
