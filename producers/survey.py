"""What waits in a place for spools, for people: read without touching anything, whoever owns it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from driftline.producers import spool_format
from driftline.producers.disk import Disk, Folder
from driftline.producers.spool_format import Header, Segment


class Standing(msgspec.Struct, kw_only=True):
    """One spool, as it was found."""

    folder: str
    header: Header | None = None
    """None: no segment of it has a readable one."""
    alive: bool = False
    """Its owner lives, and sends it by itself."""
    records: int = 0
    samples: int = 0
    bytes: int = 0
    """On disk, records that the broker has already included."""
    first_us: int | None = None
    last_us: int | None = None
    """When the first and the last of the records were spooled."""
    changed_us: int = 0
    """When a file of it was last written."""
    troubles: list[str] = []
    """What is damaged or not readable, one line each."""


def survey(disk: Disk) -> Iterator[Standing]:
    """All spools of a place, in the order of their names. One that goes away meanwhile is left out."""
    for name in disk.names():
        if not spool_format.is_folder(name):
            continue
        found = Standing(folder=name)
        try:
            found.alive = disk.owned(name)
            folder = disk.look(name)
        except OSError as error:  # another user's
            found.troubles.append(f"{name}: {error.strerror or error}")
            yield found
            continue
        if _read(folder, found):
            yield found


def _read(folder: Folder, found: Standing) -> bool:
    """Fills in what the files say; False if there are none."""
    files: list[str] = []
    with contextlib.suppress(OSError):
        files = folder.names()
        found.changed_us = folder.changed_us()
    for file in files:
        try:
            data = folder.read(file, 0, spool_format.SEGMENT_BYTES_MAX)
        except FileNotFoundError:
            continue  # sent and deleted while we read
        except OSError as error:
            found.troubles.append(f"{found.folder}/{file}: {error.strerror or error}")
            continue
        found.bytes += len(data)
        _add(found, file, spool_format.read(data))
    folder.release()
    return bool(files)


def _add(found: Standing, file: str, segment: Segment) -> None:
    found.header = found.header or segment.header
    found.records += len(segment.entries)
    found.samples += sum(entry.samples for entry in segment.entries)
    times = [entry.time_us for entry in segment.entries]
    if times:
        found.first_us = min(times) if found.first_us is None else min(found.first_us, *times)
        found.last_us = max(times) if found.last_us is None else max(found.last_us, *times)
    where = f"{found.folder}/{file}"
    if segment.trouble:
        found.troubles.append(f"{where}: {segment.trouble}")
    for damage in segment.damages:
        found.troubles.append(f"{where}: {damage.size} damaged bytes at {damage.offset}")
    if segment.torn and not found.alive:  # a living owner may just be writing
        found.troubles.append(f"{where}: its last record was not finished ({segment.torn} bytes)")
