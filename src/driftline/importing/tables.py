"""CSV and JSON lines -> items. Rows before and after a broken one are kept; what is refused is counted.

CSV: a first line with names, a delimiter (comma, tab, semicolon or bar, whichever the header has most of),
quoted as
usual; a quoted field may span lines, at most ``MAX_JOINED``. A row with another number of fields than the
header is refused as a whole, since nobody can tell which are missing. The header again is skipped.

JSON lines: an object per line. Objects in it are flattened, their names joined by "/". verl's file logger
writes ``{"step": ..., "data": {...}}``; there "data" holds the numbers.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from driftline import events
from driftline.errors import BadData
from driftline.events import number
from driftline.importing.items import Evaluated, Item, Row, Tally, carried
from driftline.importing.lines import MAX_LINE, Line, Lines
from driftline.importing.reading import Reading
from driftline.importing.unpacked import Bytes, digest, opened, plain_name, size
from driftline.importing.values import cell, flat, instant, plain, span, step_of

MAX_JOINED = 50
"""Lines of one CSV row."""
_HEAD_ROWS = 50
_HEAD_BYTES = 1024 * 1024
_SPECIAL = "\ufeff"
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
csv.field_size_limit(MAX_LINE)  # of the process; its default refuses rows with a text of over 128 KiB


class TableSource:
    """One file. Its limit is a number of bytes."""

    def __init__(self, path: Path, reading: Reading, tally: Tally) -> None:
        self._path = path
        self._reading = reading
        self.tally = tally
        self.torn = False

    def limits(self) -> dict[str, int]:
        found = size(self._path)
        self.torn = found.torn
        if self.torn:
            self.tally.note("the gzip file has no end (yet), or is damaged: what unpacks of it is taken")
        return {carried(plain_name(self._path)): found.bytes}

    def part(self, name: str) -> CsvPart | JsonPart:
        kind = CsvPart if self._reading.format == "csv" else JsonPart
        return kind(self._path, self._reading, self.tally)

    def digest(self, limits: dict[str, int]) -> str:
        return digest(self._path, max(limits.values(), default=0)).hex()

    @property
    def finished(self) -> bool:
        return False


def csv_head(path: Path) -> tuple[str, list[str], list[dict[str, object]]]:
    """Delimiter, names and first rows. Raises BadData if there is no header."""
    with opened(path) as file:
        text = _head(file).decode("utf-8", "replace").lstrip(_SPECIAL)
    first = text.replace("\r", "\n").partition("\n")[0]
    delimiter = max(",\t;|", key=_QUOTED.sub("", first).count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names: list[str] = []
    try:
        names = distinct(next(rows, []))
        found = [
            dict[str, object](zip(names, row, strict=False)) for row in itertools.islice(rows, _HEAD_ROWS)
        ]
    except csv.Error:
        found = []
    if not first.strip():
        raise BadData(f"{path} has no first line with the names of columns")
    return delimiter, names, found


def _head(file: Bytes) -> bytes:
    pieces, left = [], _HEAD_BYTES
    while left > 0 and (block := file.read(left)):
        pieces.append(block)
        left -= len(block)
    return b"".join(pieces)


def json_head(path: Path) -> tuple[bool, list[str], list[dict[str, object]]]:
    """Whether it is verl's, the names, and the first rows. Raises BadData where no line is an object."""
    rows: list[dict[str, object]] = []
    nested = False
    for line in Lines(path).upto(4 * _HEAD_BYTES, whole=True):
        found = _loaded(line.data)
        if isinstance(found, dict):
            nested = nested or (isinstance(found.get("data"), dict) and "step" in found)
            rows.append(dict(flat(found)))
        if len(rows) >= _HEAD_ROWS:
            break
    if not rows:
        raise BadData(f"{path}: none of its first lines is a JSON object")
    return nested, list(dict.fromkeys(name for row in rows for name in row)), rows


def _loaded(data: bytes | None) -> object:
    try:
        return json.loads(data) if data is not None else None
    except (ValueError, RecursionError):
        return None


class _Cells:
    """One row's cells -> an item: what both kinds of files have in common."""

    def __init__(self, part: str, reading: Reading, tally: Tally) -> None:
        self._part, self._reading, self._tally = part, reading, tally
        r = reading
        self.special = {
            name
            for name in (r.step, r.time, r.rank, r.run_column, r.metric, r.value, r.task, r.stderr)
            if name is not None
        }

    def place(self, row: dict[str, Any], line: int) -> tuple[int | None, int | None, int | None, str]:
        """Step, time, rank and run of a row; what cannot be read of them is counted and left out."""
        r, get = self._reading, row.get
        step = time = rank = None
        if r.step is not None and (said := get(r.step)) not in (None, ""):
            step = step_of(said)
            if step is None:
                self._tally.refuse(self._part, line, "step", f"{r.step} {said!r} is no step: left out")
        if r.time is not None and (said := get(r.time)) not in (None, ""):
            time = instant(said, r.time_unit, r.time_zone)
        elif r.elapsed is not None and (said := get(r.elapsed)) not in (None, ""):
            passed = span(said, r.elapsed_unit)
            time = None if passed is None else r.start_us + passed
        else:
            said = None
        if said is not None and time is None:
            self._tally.refuse(self._part, line, "time", f"{said!r} is no time: that of the row before holds")
        if r.rank is not None and (said := get(r.rank)) not in (None, ""):
            rank = step_of(said)
            if rank is None or abs(rank) >= 1 << 31:
                rank = None
                self._tally.refuse(self._part, line, "rank", f"{said!r} is no rank: left out")
        run = "" if r.run_column is None else carried(str(get(r.run_column) or "").strip())
        return (r.step_given if step is None else step), time, rank, run

    def values(self, row: dict[str, Any], line: int, *, text: bool) -> list[tuple[str, float]]:
        """The numbers of a wide row, by name."""
        values = []
        for name, said in row.items():
            if name in self.special:
                continue
            found = (cell(said) if isinstance(said, str) else None) if text else plain(said)
            if isinstance(found, float):
                values.append((name, found))
            elif found is not None:
                self.refuse(name, said, found, line)
        return values

    def refuse(self, name: str, said: object, reason: str, line: int) -> None:
        self._tally.refuse(self._part, line, reason, f"{name}: {said!r}"[:200], once=name)

    def one(self, row: dict[str, Any], line: int, *, text: bool) -> tuple[str, float] | None:
        """Name and value of a row of the long form."""
        r = self._reading
        name, said = str(row.get(r.metric or "") or ""), row.get(r.value or "")
        if not name:
            self._tally.refuse(self._part, line, "name", "no name of a metric")
            return None
        found = cell(said) if text and isinstance(said, str) else plain(said)
        if isinstance(found, float):
            return name, found
        self.refuse(name, said, found or "none", line)
        return None


class _Rows:
    """Rows -> items of the reading's form; evaluations are rows that follow each other."""

    def __init__(self, part: str, reading: Reading, tally: Tally, *, text: bool) -> None:
        self._cells = _Cells(part, reading, tally)
        self._reading, self._text = reading, text
        self._open: Evaluated | None = None

    def add(self, row: dict[str, Any], line: int) -> Iterator[Item]:
        step, time, rank, run = self._cells.place(row, line)
        form = self._reading.form
        if form == "wide":
            if values := self._cells.values(row, line, text=self._text):
                yield Row(values, step, time, rank, run)
            return
        found = self._cells.one(row, line, text=self._text)
        if found is None:
            return
        if form == "long":
            yield Row([found], step, time, rank, run)
            return
        suite = carried(str(row.get(self._reading.task or "") or ""))
        metric = _metric((carried(found[0]), found[1]), row.get(self._reading.stderr or ""))
        held = self._open
        if held is not None and (held.suite, held.step, held.run) == (suite, step, run):
            held.metrics.append(metric)
            return
        yield from self.end()
        self._open = Evaluated(suite, [metric], step, time, run)

    def end(self) -> Iterator[Item]:
        if self._open is not None:
            yield self._open
            self._open = None


def _metric(found: tuple[str, float], stderr: object) -> events.Metric:
    error = cell(stderr) if isinstance(stderr, str) else plain(stderr)
    return metric_of(*found, error if isinstance(error, float) else None)


def metric_of(name: str, value: float, stderr: float | None, count: int = 0) -> events.Metric:
    """A number of an evaluation; the interval is the normal one, 1.96 standard errors to each side."""
    if stderr is None or not 0 <= stderr < float("inf"):
        return events.Metric(name=name, value=number(value), count=count)
    reach = 1.959963984540054 * stderr
    return events.Metric(
        name=name,
        value=number(value),
        stderr=stderr,
        low=number(value - reach),
        high=number(value + reach),
        count=count,
    )


class CsvPart:
    """The rows of one CSV file."""

    def __init__(self, path: Path, reading: Reading, tally: Tally) -> None:
        self._part, self._reading, self._tally = carried(plain_name(path)), reading, tally
        self._lines = Lines(path)
        self._names: list[str] | None = None
        self._header: list[str] = []
        self._joined: list[Line] = []
        self._quotes = self._bytes = 0
        self._rows = _Rows(self._part, reading, tally, text=True)

    @property
    def position(self) -> int:
        return self._lines.position

    def upto(self, limit: int, *, whole: bool) -> Iterator[Item]:
        for line in self._lines.upto(limit, whole=whole):
            for first, fields in self._fields(line):
                yield from self._row(first, fields)
        if whole and self._joined:
            yield from self._unfinished()
        _note_end(self._lines, self._joined, self._tally)
        yield from self._rows.end()

    def _fields(self, line: Line) -> Iterator[tuple[int, list[str]]]:
        """The fields of the rows that end with this line."""
        if line.data is None or b"\0" in line.data:
            what = "longer than 16 MiB" if line.data is None else "zero bytes"
            self._tally.refuse(self._part, line.number, "line", what)
            return
        self._joined.append(line)
        self._quotes += line.data.count(b'"')
        self._bytes += len(line.data)
        if self._quotes % 2 == 0:
            yield from self._parsed(self._taken())
        elif len(self._joined) > MAX_JOINED or self._bytes > MAX_LINE:
            yield from self._reopened()

    def _taken(self) -> list[Line]:
        joined, self._joined = self._joined, []
        self._quotes = self._bytes = 0
        return joined

    def _reopened(self) -> Iterator[tuple[int, list[str]]]:
        """The first of the joined lines has a quote that nobody closed: without it, the others again."""
        first, *others = self._taken()
        self._tally.refuse(self._part, first.number, "quotes", "a quote that is never closed")
        for line in others:
            yield from self._fields(line)

    def _unfinished(self) -> Iterator[Item]:
        while self._joined:
            for first, fields in self._reopened():
                yield from self._row(first, fields)

    def _parsed(self, joined: Sequence[Line]) -> Iterator[tuple[int, list[str]]]:
        text = self._decoded(b"\n".join(line.data or b"" for line in joined))
        if self._names is None:
            text = text.lstrip(_SPECIAL)
        if not text.strip():
            return
        rows = self._split(text, strict=True)
        if len(joined) > 1 and (len(rows) != 1 or (self._names and len(rows[0]) != len(self._names))):
            self._joined = list(joined)  # two quotes that do not belong together
            yield from self._reopened()
            return
        rows = rows or self._split(text, strict=False)
        if not rows:
            self._tally.refuse(self._part, joined[0].number, "line", "cannot be split into fields")
        for fields in rows:  # several where rows end with a carriage return alone
            yield joined[0].number, fields

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self._tally.note("bytes that are no UTF-8 become U+FFFD (convert it: iconv -f LATIN1 -t UTF-8)")
            return data.decode("utf-8", "replace")

    def _split(self, text: str, *, strict: bool) -> list[list[str]]:
        """The rows in the text, empty ones left out; none where it breaks the rules."""
        source = io.StringIO(text, newline="")
        try:
            return list(filter(None, csv.reader(source, delimiter=self._reading.delimiter, strict=strict)))
        except csv.Error:
            return []

    def _row(self, line: int, fields: list[str]) -> Iterator[Item]:
        if self._names is None:
            self._names, self._header = distinct(fields), fields
        elif fields == self._header:
            self._tally.note("the header comes again: skipped")
        elif len(fields) != len(self._names):
            what = f"{len(fields)} fields, the header has {len(self._names)}"
            self._tally.refuse(self._part, line, "fields", what)
        else:
            yield from self._rows.add(dict(zip(self._names, fields, strict=True)), line)


def _note_end(lines: Lines, joined: Sequence[Line], tally: Tally) -> None:
    if lines.unfinished or joined:
        tally.note("the last line has no end yet: left out; import again when it has")


def distinct(names: Sequence[str]) -> list[str]:
    """Names without repetition: the second "a" is "a#2", a column without a name is "column 3". Spaces around
    a name are of the file, not of the name.

    >>> distinct(["a", "", " a"])
    ['a', 'column 2', 'a#2']
    """
    made: dict[str, None] = {}
    for at, name in enumerate(names, 1):
        name = name.strip() or f"column {at}"
        key, number_of = name, 2
        while key in made:
            key, number_of = f"{name}#{number_of}", number_of + 1
        made[key] = None
    return list(made)


class JsonPart:
    """The objects of one file of JSON lines."""

    def __init__(self, path: Path, reading: Reading, tally: Tally) -> None:
        self._part, self._reading, self._tally = carried(plain_name(path)), reading, tally
        self._lines = Lines(path)
        self._rows = _Rows(self._part, reading, tally, text=False)

    @property
    def position(self) -> int:
        return self._lines.position

    def upto(self, limit: int, *, whole: bool) -> Iterator[Item]:
        for line in self._lines.upto(limit, whole=whole):
            found = self._object(line)
            if found is not None:
                yield from self._rows.add(found, line.number)
        _note_end(self._lines, (), self._tally)
        yield from self._rows.end()

    def _object(self, line: Line) -> dict[str, Any] | None:
        if line.data is not None and not line.data.strip(b" \t\0"):
            if line.data.strip():
                self._tally.refuse(self._part, line.number, "line", "zero bytes")
            return None
        try:
            found = json.loads((line.data or b"").lstrip(b"\xef\xbb\xbf")) if line.data is not None else None
        except (ValueError, RecursionError) as error:
            self._tally.refuse(self._part, line.number, "line", f"not JSON: {error}")
            return None
        if not isinstance(found, dict):
            self._tally.refuse(self._part, line.number, "line", "no JSON object")
            return None
        if self._reading.nested and isinstance(found.get("data"), dict):
            data = dict(flat(found.pop("data")))
            return data | dict(flat(found))
        return dict(flat(found))
