"""Hugging Face's ``trainer_state.json`` -> items: ``log_history`` is all that the trainer logged.

Each entry is what ``TrainerCallback.on_log`` would have given: ``step``, and numbers by name, ``epoch``
among them; nested ones are joined by "/". ``eval_loss`` and its like are metrics, as they would be in live
training: the file does not say how many items they rest on, nor which checkpoint. The file has no times.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driftline.errors import BadData
from driftline.importing.items import Item, Row, Tally
from driftline.importing.unpacked import MAX_DOCUMENT, content
from driftline.importing.values import flat, plain, step_of

NAME = "trainer_state.json"


def newest(folder: Path) -> Path | None:
    """The file of a training's output folder: its own, else that of the checkpoint with the highest step."""
    if (folder / NAME).is_file():
        return folder / NAME
    found = [
        (int(match[1]), path)
        for path in folder.glob(f"checkpoint-*/{NAME}")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.parent.name))
    ]
    return max(found)[1] if found else None


class StateSource:
    """One file. Its limit is a number of entries."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.tally = tally
        self._entries, self._finished = _entries(path)

    torn = False

    @property
    def finished(self) -> bool:
        return self._finished

    def digest(self, limits: dict[str, int]) -> str:
        entries = self._entries[: max(limits.values(), default=0)]
        return hashlib.blake2b(json.dumps(entries).encode(), digest_size=16).hexdigest()

    def limits(self) -> dict[str, int]:
        return {NAME: len(self._entries)}

    def part(self, name: str) -> StatePart:
        return StatePart(self._entries, self.tally)


class StatePart:
    """The entries, in their order."""

    def __init__(self, entries: list[Any], tally: Tally) -> None:
        self._entries, self._tally = entries, tally
        self.position = 0

    def upto(self, limit: int, *, whole: bool) -> Iterator[Item]:
        while self.position < min(limit, len(self._entries)):
            entry = self._entries[self.position]
            self.position += 1
            if not isinstance(entry, dict):
                self._tally.refuse(
                    NAME, self.position, "line", f"entry of log_history is no object: {entry!r}"
                )
                continue
            yield from self._row(entry)

    def _row(self, entry: dict[str, Any]) -> Iterator[Item]:
        step = step_of(entry.get("step"))
        values = []
        for name, said in flat(entry):
            if name == "step" and step is not None:
                continue
            found = plain(said)
            if isinstance(found, float):
                values.append((name, found))
            else:
                self._tally.refuse(NAME, self.position, found, f"{name}: {said!r}"[:200], once=name)
        if values:
            yield Row(values, step)


def _entries(path: Path) -> tuple[list[Any], bool]:
    """``log_history``, and whether the last step was reached."""
    try:
        found = json.loads(content(path, MAX_DOCUMENT))
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not whole JSON: {error}; is it being written? Try again") from error
    history = found.get("log_history") if isinstance(found, dict) else None
    if not isinstance(history, list):
        raise BadData(f"{path} has no log_history: it is no {NAME}")
    steps, wanted = step_of(found.get("global_step")), step_of(found.get("max_steps"))
    return history, steps is not None and wanted is not None and 0 < wanted <= steps
