"""What the SDK counts, and the lines in which it says something once.

:data:`COUNTERS` is the complete list (``refused_<reason>`` with the reasons of :mod:`.values` included).
Counters only grow. Those of :data:`EXCEPTIONAL` travel in the metadata of frames when they have changed; all
of them travel in heartbeats and in the last event.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque

from driftline.visible import visible

COUNTERS: dict[str, str] = {
    "samples_logged": "samples accepted and turned into frames",
    "samples_delivered": "samples that the broker has acknowledged",
    "samples_spooled": "samples that the process left in the spool when it ended, for the next one to send",
    "dropped_queue": "samples dropped because the queue was full (`queue_samples`)",
    "dropped_buffer": "samples dropped because too many frames waited in memory (`buffer_bytes`) and on disk",
    "dropped_broker": "samples in frames that the broker refused for good",
    "dropped_spool": "samples that came back damaged from the spool, or not at all",
    "dropped_end": "samples that neither the broker nor the disk had taken when the process ended",
    "dropped_finished": "samples logged after `finish`",
    "dropped_device": "samples on a device that did not arrive before the end",
    "dropped_error": "samples lost to an error inside the SDK",
    "refused_text": 'values refused: text, also "nan"',
    "refused_none": "values refused: None",
    "refused_elements": "values refused: arrays and tensors that do not have exactly one element",
    "refused_nested": "values refused: dicts, lists, tuples, sets",
    "refused_complex": "values refused: complex numbers",
    "refused_range": "values refused: integers too large for a float64",
    "refused_device": "values refused: tensors on no real device, distributed, captured, or unreadable",
    "refused_type": "values refused: any other type",
    "refused_name": "values refused: the name is not text",
    "refused_weight": "samples refused: the weight is not a finite number above 0",
    "refused_call": "calls of `log` refused: what was passed is no mapping",
    "steps_refused": "entries stored without a step: it was no integer, or did not fit into 64 bits",
    "definitions_refused": "calls of `define` refused: a name, goal, unit or reduce that cannot be",
    "events_dropped": "events dropped because even their reserve in the buffer was full",
    "names_cut": "names that were longer than 600 bytes (or no valid text) and were cut",
    "frames_made": "frames encoded",
    "frames_split": "frames cut in two because of their size",
    "records_sent": "records handed to the broker's client, those sent again included",
    "records_acknowledged": "records that the broker has acknowledged",
    "records_resent": "records handed over again after a failure",
    "records_refused": "records that the broker refused for good",
    "connections": "connections made to the broker",
    "connection_failures": "attempts to reach the broker that failed",
    "send_failures": "failures reported for records on their way",
    "spool_written": "samples written to the spool because the broker was away",
    "spool_errors": "operations on the spool that failed",
    "spool_recovered": "samples that dead processes of the run left in their spools, now acknowledged",
    "spool_refused": "samples of dead processes in frames that the broker refused for good",
    "spool_damaged": "places at which the spool of a dead process was damaged",
    "checkpoints_saved": "checkpoints announced",
    "checkpoints_refused": "checkpoints that could not be announced (missing, unreadable, not local)",
    "checkpoints_protected": "announced checkpoints whose files are kept from the trainer's rotation",
    "checkpoints_unprotected": "announced checkpoints whose files could not be kept",
    "checkpoints_released": "kept checkpoints that were removed: too old, too many, too large",
    "host_unsupported": "host readings that this machine does not offer (absent, never 0)",
    "errors": "errors inside the SDK, contained",
}
EXCEPTIONAL = frozenset(
    name
    for name in COUNTERS
    if name.startswith(("dropped_", "refused_"))
    or name
    in (
        "steps_refused",
        "names_cut",
        "definitions_refused",
        "events_dropped",
        "frames_split",
        "records_resent",
        "records_refused",
        "connection_failures",
        "send_failures",
        "spool_errors",
        "spool_refused",
        "spool_damaged",
        "checkpoints_refused",
        "checkpoints_unprotected",
        "host_unsupported",
        "errors",
    )
)
SAID_ONCE_MAX = 1000

log = logging.getLogger("driftline")


def words(value: object, limit: int = 200) -> str:
    """``repr`` of anything, cut; never raises, whatever the object does.

    >>> words("abcdef", 4), words(ValueError("x"))
    ("'abc", "ValueError('x')")
    """
    try:
        if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
            return f"<{type(value).__name__} on a device>"[:limit]  # to show it would wait for the device
        return repr(value)[:limit]
    except Exception as error:  # noqa: BLE001  objects of trainers may do anything
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"[:limit]


class Counters:
    """Counts by name, from any thread and from signal handlers (hence a lock that can be taken twice)."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._exceptional = 0

    def add(self, name: str, count: int = 1) -> None:
        """Adds to a counter of :data:`COUNTERS`."""
        assert name in COUNTERS, name
        if not count:
            return
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count
            if name in EXCEPTIONAL:
                self._exceptional += 1

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All counters that are not 0, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def exceptional(self) -> tuple[int, str]:
        """A number that changes when they do, and the exceptional counters as a JSON object ("" if none)."""
        with self._lock:
            if not self._exceptional:
                return 0, ""
            counts = {name: n for name, n in sorted(self._counts.items()) if name in EXCEPTIONAL}
            return self._exceptional, json.dumps(counts, separators=(",", ":"))


class Notes:
    """Warnings that are said once per subject, collected by any thread and written by the SDK's thread.

    At most 1,000 subjects are named; after that one line says that there are more (the counters go on).
    """

    def __init__(self) -> None:
        self._said: set[object] = set()
        self._waiting: deque[str] = deque(maxlen=SAID_ONCE_MAX + 1)

    def once(self, subject: object, text: str) -> None:
        """Has ``text`` written, unless something was said about ``subject`` before."""
        if subject in self._said or len(self._said) > SAID_ONCE_MAX:
            return
        self._said.add(subject)
        if len(self._said) > SAID_ONCE_MAX:
            text = f"{SAID_ONCE_MAX} warnings were written; further ones are only counted"
        self._waiting.append(text)

    def again(self, subject: object) -> None:
        """The subject may be spoken of once more."""
        self._said.discard(subject)

    def write(self) -> None:
        """Writes what waits to the logger "driftline"."""
        while self._waiting:
            log.warning("driftline: %s", visible(self._waiting.popleft()))
