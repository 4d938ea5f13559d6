"""The timed block of :meth:`.run.Run.span`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from driftline.metric_names import SPAN_PREFIX
from driftline.producers.counters import words

if TYPE_CHECKING:
    from driftline.producers.run import Run


class Span:
    """A timed block; see :meth:`Run.span`. ``seconds`` holds the time afterwards."""

    __slots__ = ("_name", "_run", "_start", "_step", "seconds")

    def __init__(self, run: Run, name: str, step: int | None) -> None:
        self._run, self._name, self._step = run, name, step
        self._start = 0.0
        self.seconds: float | None = None

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        run = self._run
        try:
            name = f"{SPAN_PREFIX}{self._name}"
        except Exception:  # noqa: BLE001  never into the training loop
            name = f"{SPAN_PREFIX}{words(self._name)}"
        run.log({name: self.seconds}, run.current_step if self._step is None else self._step)
