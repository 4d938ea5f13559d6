"""Records that turn out too large for the topic, cut smaller after they were encoded and numbered. Pure.

A metric frame becomes frames of fewer samples; the event that a process started goes without its config, the
one of a checkpoint without the list of its files. What is left may still be too large: one sample is not cut.
"""

from __future__ import annotations

import msgspec

from driftline import events, frames, records
from driftline.errors import BadRecord
from driftline.producers.framer import halves
from driftline.producers.spool import Waiting


def cut(payload: bytes, limit_bytes: int) -> list[tuple[bytes, int]]:
    """Payloads of at most ``limit_bytes`` where that can be, in order, each with the samples that it holds.

    Raises BadRecord for what is no record of an SDK process.
    """
    found = records.decode(payload)
    if isinstance(found, frames.Frame):
        return _cut_frame(found, payload, limit_bytes)
    if len(payload) > limit_bytes:
        if isinstance(found, events.ProcessStarted):
            text = f"left out: the topic takes no more than {limit_bytes} bytes"
            found = msgspec.structs.replace(found, config={"...": text})
        elif isinstance(found, events.CheckpointSaved):
            files = found.checkpoint.files
            less = msgspec.structs.replace(
                found.checkpoint, files=[], count=len(files), size=sum(entry.size for entry in files)
            )
            found = msgspec.structs.replace(found, checkpoint=less) if files else found
    return [(events.encode(_of_process(found)), 0)]


def numbered(payload: bytes, seq: int) -> bytes:
    """The same record with another number. Raises BadRecord."""
    found = records.decode(payload)
    if isinstance(found, frames.Frame):
        return frames.encode(found._replace(seq=seq))
    return events.encode(msgspec.structs.replace(_of_process(found), seq=seq))


def renumbered(waiting: list[Waiting], limit_bytes: int) -> list[Waiting]:
    """Records that wait in order, each cut where it is too large, numbered on from the first one's number.

    Raises BadRecord.
    """
    made: list[Waiting] = []
    for record in waiting:
        small = len(record.payload) <= limit_bytes
        parts = [(record.payload, record.samples)] if small else cut(record.payload, limit_bytes)
        for payload, samples in parts:
            seq = waiting[0].seq + len(made)
            made.append(Waiting(seq, numbered(payload, seq), samples))
    return made


def _cut_frame(frame: frames.Frame, payload: bytes, limit_bytes: int) -> list[tuple[bytes, int]]:
    if len(payload) <= limit_bytes or len(frame.metric) < 2:
        return [(payload, len(frame.metric))]
    return [part for half in halves(frame) for part in _cut_frame(half, frames.encode(half), limit_bytes)]


def _of_process(found: object) -> events.FromProcess:
    if not isinstance(found, events.FromProcess):
        raise BadRecord("no record of an SDK process")
    return found
