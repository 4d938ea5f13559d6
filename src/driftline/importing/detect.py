"""Paths -> sources: what a file is, is told by what it contains, never by its name alone.

    folder   event files of TensorBoard below it; trainer_state.json in it or in the newest checkpoint-N;
             results of lm-evaluation-harness below it
    file     records of TensorBoard; a JSON document (trainer_state.json, results); JSON lines; else CSV

Where a folder has event files and a ``trainer_state.json``, both of the same training, the event files are
taken, since they have times.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from driftline.errors import BadData, SettingsError
from driftline.identity import safe_id
from driftline.importing import columns, lm_eval, tables, tensorboard, trainer_state
from driftline.importing.items import Source, Tally, carried
from driftline.importing.reading import FORMATS, Format, Options, Reading, slug
from driftline.importing.unpacked import MAX_DOCUMENT, content, is_gzip, opened, plain_name

_HEAD = 64 * 1024


class Found(NamedTuple):
    """Files that belong together, and what they are."""

    format: Format
    path: Path
    """The file or folder that names them."""
    files: tuple[Path, ...]
    name: str
    notes: tuple[str, ...] = ()


class Opened(NamedTuple):
    """A source that can be read."""

    source: Source
    reading: Reading
    key: str
    """Names the source, and so its log, in every later import."""
    changed_s: float
    """When the newest of its files was last written."""


Earlier = Callable[[str], Reading | None]
"""How the source of a key was read by an earlier import."""


def find(path: Path, options: Options) -> list[Found]:
    """The sources at a path. Raises SettingsError if it is not there, BadData if nothing is known in it."""
    if options.format is not None and options.format not in FORMATS:
        raise SettingsError("--format", options.format, f"one of {', '.join(FORMATS)}")
    if not path.exists():
        raise SettingsError("SOURCE", str(path), "there is no such file or folder")
    if path.is_dir():
        return _folder(path, options)
    if not path.is_file():
        remedy = "a pipe or device can be read once only, an import reads several times: write it to a file"
        raise SettingsError("SOURCE", str(path), remedy)
    kind = options.format or _kind(path)
    if kind == "tensorboard":
        return [Found(kind, path, (path,), path.parent.name)]
    if kind == "trainer_state":
        return [Found(kind, path, (path,), _folder_name(path.parent))]
    return [Found(kind, path, (path,), Path(plain_name(path)).stem)]


def _folder_name(folder: Path) -> str:
    """Of the training, not of one of its checkpoints."""
    folder = folder.absolute()
    return folder.parent.name if re.fullmatch(r"checkpoint-\d+", folder.name) else folder.name


def _folder(path: Path, options: Options) -> list[Found]:
    wanted = options.format
    found: list[Found] = []
    if wanted in (None, "tensorboard"):
        for root, files in tensorboard.runs(path, one=options.run is not None).items():
            found.append(Found("tensorboard", root, files, root.absolute().name))
    state = trainer_state.newest(path) if wanted in (None, "trainer_state") else None
    if state is not None and not found:
        found.append(Found("trainer_state", path, (state,), _folder_name(path)))
    elif state is not None:
        note = f"{state.relative_to(path)} is left out: the event files have the same with times"
        found = [one._replace(notes=(note,)) for one in found]
    if wanted in (None, "lm_eval"):
        results = lm_eval.results_files(path)
        if results:
            found.append(Found("lm_eval", path, results, path.absolute().name))
    if not found:
        what = wanted or "event files of TensorBoard, trainer_state.json or results of lm-evaluation-harness"
        raise BadData(f"{path}: no {what} in this folder (name files to import CSV and JSON lines)")
    return found


def _kind(path: Path) -> Format:
    with opened(path) as file:
        head = file.read(_HEAD)
    if not head:
        raise BadData(f"{path} is empty" if not is_gzip(path) else f"{path}: nothing of it unpacks (gzip -t)")
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise BadData(f"{path} is {what}")
    if tensorboard.looks_like(head):
        if is_gzip(path):
            raise BadData(f"{path} is a packed event file: unpack it first (gunzip -k {path.name})")
        return "tensorboard"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if not text.startswith((b"{", b"[")):
        if b"\0" in head.partition(b"\n")[0]:
            raise BadData(f"{path} is neither text nor a file that is known here (--format names one)")
        return "csv"
    first, _, others = text.partition(b"\n")
    if others.strip() and _is_object(first):
        return "jsonl"
    document = _document(path)
    if isinstance(document, list):
        raise BadData(f"{path} is one JSON list: write an object a line (jq -c '.[]' {path.name})")
    if isinstance(document, dict):
        if isinstance(document.get("log_history"), list):
            return "trainer_state"
        if lm_eval.looks_like(document):
            return "lm_eval"
        if b"\n" in head.strip() and not _is_object(text.split(b"\n", 1)[0]):
            raise BadData(
                f"{path} is a JSON document, but neither a trainer_state.json nor results of "
                f"lm-evaluation-harness"
            )
    return "jsonl"


def _document(path: Path) -> Any:
    """The one JSON value in the file; None where it has several, or none."""
    try:
        return json.loads(content(path, MAX_DOCUMENT))
    except (ValueError, RecursionError, BadData):
        return None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


_OTHERS = {
    b"\xff\xfe": "UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first (unzstd), or pack it with gzip",
    b"BZh": "packed with bzip2: unpack it first (bunzip2 -k), or pack it with gzip",
    b"\xfd7zXZ": "packed with xz: unpack it first (unxz -k), or pack it with gzip",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "Parquet, which is not read: write it as CSV or JSON lines",
    b"ARROW1": "Arrow, which is not read: write it as CSV or JSON lines",
}


# --- opening -----------------------------------------------------------------------------------------------


def key_of(found: Found, options: Options) -> str:
    """What a source is known by: its path, or the given run and its name in it. Packed or not, it is the
    same."""
    path = found.path.resolve()
    name = plain_name(path) if path.is_file() else path.name
    if options.run is None:
        return str(path.with_name(name)) if name else str(path)
    return f"{options.run}\0{options.source or name}"


def distinct(found: Sequence[Found], options: Options) -> None:
    """Raises SettingsError where two sources would be taken for one."""
    known: dict[str, Path] = {}
    if options.source is not None and options.run is None:
        raise SettingsError("--source", options.source, "it names a source of one run: give --run, too")
    for one in found:
        before = known.setdefault(key_of(one, options), one.path)
        if before != one.path:
            remedy = (
                f"it is {before} in another form, packed or not: name one of them"
                if options.run is None
                else f"it has the name of {before}, and with --run a source is known by its name: import "
                "them one by one, each with a --source of its own"
            )
            raise SettingsError("SOURCE", str(one.path), remedy)


def open_source(found: Found, options: Options, earlier: Earlier) -> Opened:
    """The source with its reading; guesses are notes of its tally. Raises SettingsError, BadData."""
    tally = Tally()
    for note in found.notes:
        tally.note(note)
    key = key_of(found, options)
    before = earlier(key)
    name = carried(options.name or found.name or "import")
    changed_s = max(file.stat().st_mtime for file in found.files)
    start_us = options.start_us if options.start_us is not None else int(changed_s) * 1_000_000
    if before is not None and options.start_us is None:
        start_us = before.start_us
    reading = Reading(
        format=found.format,
        run=safe_id(options.run) if options.run is not None else _run_id(name, key),
        name=before.name if before is not None and options.name is None else name,
        given_run=options.run is not None,
        step_given=options.step,
        start_us=start_us,
    )
    if before is not None:
        reading = msgspec.structs.replace(reading, run=before.run)
    reading = _columns(found, reading, options, tally)
    if before is not None:
        _same(before, reading, found.path)
    return Opened(_source(found, reading, tally), reading, key, changed_s)


def _run_id(name: str, key: str) -> str:
    return safe_id(f"{slug(name)}-{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:8]}")


def _columns(found: Found, reading: Reading, options: Options, tally: Tally) -> Reading:
    if found.format == "csv":
        delimiter, names, rows = tables.csv_head(found.path)
        reading = msgspec.structs.replace(reading, delimiter=delimiter)
        table = columns.Table(names, rows)
    elif found.format == "jsonl":
        nested, names, rows = tables.json_head(found.path)
        reading = msgspec.structs.replace(reading, nested=nested)
        table = columns.Table(names, rows)
    else:
        columns.check_zone(options.time_zone)
        if found.format == "trainer_state":
            tally.note(_no_times(reading))
        return reading
    reading, said = columns.guess(reading, table, options)
    for line in said:
        tally.note(line)
    if reading.time is None and reading.elapsed is None:
        tally.note(_no_times(reading))
    return reading


def _no_times(reading: Reading) -> str:
    from datetime import UTC, datetime

    start = datetime.fromtimestamp(reading.start_us // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
    return f"no times: one second for each step from {start} on (--start, --time-column, --elapsed-column)"


def _same(before: Reading, now: Reading, path: Path) -> None:
    """Raises SettingsError where a source would be read in another way than before."""
    other = [
        name
        for name in Reading.__struct_fields__
        if name not in ("run", "name") and getattr(before, name) != getattr(now, name)
    ]
    if other:
        was = ", ".join(f"{name} {getattr(before, name)!r}, now {getattr(now, name)!r}" for name in other)
        another = (
            "name it with --source if it is another source of the same run"
            if now.given_run
            else "another --run for a second import of it"
        )
        raise SettingsError(
            "",
            None,
            f"{path} was imported before in another way ({was}): give the same options again, or {another}",
        )


def _source(found: Found, reading: Reading, tally: Tally) -> Source:
    if found.format in ("csv", "jsonl"):
        return tables.TableSource(found.path, reading, tally)
    if found.format == "tensorboard":
        return tensorboard.EventSource(found.path, found.files, tally)
    if found.format == "trainer_state":
        return trainer_state.StateSource(found.files[0], tally)
    return lm_eval.ResultsSource(found.path, found.files, reading, tally)
