"""A process that is not heard of while others of its attempt still report.

Judged at ticks. A process is silent when its last record is more than ``silent_s`` old and it has not
ended. It gets an alert of its own if another process was heard of within half of ``silent_s``; if all that
have not ended are silent, one alert speaks of the run. Resolved when it is heard again, ends, or is no
longer tracked. Holes in the ticks are already taken out of ``last_seen_us`` by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from driftline.config import DetectorSpec
from driftline.streams.detectors.base import Detector, figure, lifecycle_of, named
from driftline.streams.detectors.lifecycle import Finding
from driftline.streams.views import AlertChange, Liveness, Watched

_RUN = "*"
SILENT_MAX = 10_000


class SilentState(msgspec.Struct):
    """Subjects with an alert (a process id, or "*" for the run), and since when they are silent."""

    silent: dict[str, int] = {}


class SilentRank(Detector[SilentState]):
    """See the module."""

    state_type = SilentState

    def __init__(self, spec: DetectorSpec) -> None:
        self.alerts, params = lifecycle_of(spec)
        self._silent_us = int(params["silent_s"] * 1_000_000)
        self.state = SilentState()

    def tick(self, now_us: int, processes: Sequence[Liveness]) -> list[AlertChange]:
        since_us = now_us - self._silent_us
        if not self.state.silent and isinstance(processes, Watched) and processes.heard_since(since_us):
            return []
        alive = [process for process in processes if not process.ended]
        silent = [process for process in alive if now_us - process.last_seen_us > self._silent_us]
        newest_us = max((process.last_seen_us for process in alive), default=now_us)
        changes = self._heard(now_us, processes, silent)
        if silent and len(silent) == len(alive):
            changes += self._run_silent(now_us, alive, newest_us)
        elif now_us - newest_us <= self._silent_us // 2:
            for process in silent:
                changes += self._process_silent(now_us, process, len(alive) - len(silent))
        return changes

    def end(self, now_us: int) -> list[AlertChange]:
        self.state.silent.clear()
        return super().end(now_us)

    def _heard(self, now_us: int, processes: Sequence[Liveness], silent: list[Liveness]) -> list[AlertChange]:
        """Resolves what is silent no more."""
        if not self.state.silent:
            return []
        known = {process.process: process for process in processes}
        still = {process.process for process in silent}
        changes: list[AlertChange] = []
        for subject in list(self.state.silent):
            if subject in still or (subject == _RUN and still and len(still) == _alive(processes)):
                continue
            since_us = self.state.silent.pop(subject)
            process = known.get(subject)
            if subject == _RUN:
                text = "the run reports again" if _alive(processes) else "all processes have ended"
            elif process is None:
                text = "it is no longer tracked"
            else:
                what = "has ended" if process.ended else "reports again"
                text = f"{_who(process)} {what} after {_seconds(now_us - since_us)} of silence"
            changes += self.alerts.calm(subject, now_us, text)
        return changes

    def _process_silent(self, now_us: int, process: Liveness, others: int) -> list[AlertChange]:
        if process.process not in self.state.silent:
            if len(self.state.silent) >= SILENT_MAX:
                return []
            self.state.silent[process.process] = process.last_seen_us
        quiet_us = now_us - process.last_seen_us
        step = "" if process.last_step is None else f", last at step {process.last_step}"
        finding = Finding(
            position=process.last_seen_us,
            metric=None,
            rank=process.rank,
            step=process.last_step,
            last_step=process.last_step,
            value=quiet_us / 1_000_000,
            expected=self._silent_us / 1_000_000,
            score=quiet_us / self._silent_us,
            text=(
                f"{_who(process)} was not heard of for {_seconds(quiet_us)}{step}, "
                f"while {others} other{'s report' if others != 1 else ' reports'}"
            ),
            evidence={"process": process.process, "host": process.host, "role": process.role},
        )
        return self.alerts.found(process.process, finding, now_us)

    def _run_silent(self, now_us: int, alive: list[Liveness], newest_us: int) -> list[AlertChange]:
        self.state.silent.setdefault(_RUN, newest_us)
        quiet_us = now_us - newest_us
        steps = [process.last_step for process in alive if process.last_step is not None]
        last = max(steps, default=None)
        who = "the only process" if len(alive) == 1 else f"all {len(alive)} processes"
        if len(alive) == 1:
            who = f"{who}, {_who(alive[0])},"
        finding = Finding(
            position=newest_us,
            metric=None,
            rank=alive[0].rank if len(alive) == 1 else None,
            step=last,
            last_step=last,
            value=quiet_us / 1_000_000,
            expected=self._silent_us / 1_000_000,
            score=quiet_us / self._silent_us,
            text=f"{who} of the run went silent: nothing for {_seconds(quiet_us)}, last step {last}",
            evidence={"processes": len(alive)},
        )
        return self.alerts.found(_RUN, finding, now_us)


def _alive(processes: Sequence[Liveness]) -> int:
    return sum(not process.ended for process in processes)


def _who(process: Liveness) -> str:
    label = f"{process.role} {process.process}" if process.rank is None else f"rank {process.rank}"
    return f"{label} ({named(process.host)})" if process.host else label


def _seconds(duration_us: int) -> str:
    return f"{figure(duration_us / 1_000_000)} s"
