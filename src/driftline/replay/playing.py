"""Plays partitions of a log and collects what the pipeline says of them, for a proof.

    play_part(source, task, folder, ...) -> Progress
    play_all(source, tasks, folder, jobs=N, ...) -> one Progress for each task, in their order

Partitions do not depend on each other (a run lives in one), so ``jobs`` of them are played at once, each by a
process of its own. With ``keep``, progress is written down every so often and taken up again: a replay that
was killed gives what one that was not killed gives.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from driftline.errors import BadData, Unavailable
from driftline.replay import checkpoint
from driftline.replay.ahead import ahead
from driftline.replay.checkpoint import Progress
from driftline.replay.outputs import Outputs
from driftline.replay.player import Player, Source, samples_in
from driftline.storage.recorded.compare import OutputTable, Reach
from driftline.storage.recorded.source import Hole, Part, TableLog
from driftline.streams import extensions

Tell = Callable[[int, int], None]
"""Called with the samples of a stretch, and the microseconds of log time that were passed so far."""


class Task(NamedTuple):
    """One partition to be played: outputs caused in ``reach`` count, of those behind ``cut`` how many."""

    number: int
    part: Part
    reach: Reach
    cut: int
    oldest: int = 0
    """The first offset from which the log is still there."""


class Keep(NamedTuple):
    """How often progress is written down; ``clock`` in seconds."""

    every_s: float = 20.0
    clock: Callable[[], float] = time.monotonic


def play_part(
    source: Source,
    task: Task,
    folder: Path,
    *,
    runs: Sequence[str],
    columns: dict[OutputTable, list[str]],
    keep: Keep | None,
    tell: Tell = lambda samples, log_us: None,
) -> Progress:
    """One partition to its end, from where ``folder`` says. Raises BadData, Unavailable."""
    part, end = task.part, task.reach.end
    outputs = Outputs(folder, runs, columns, f"part-{task.number}-")
    saved = checkpoint.read(folder, task.number) if keep else None
    if saved is not None:
        if saved.over:
            tell(saved.samples, part.last_us - part.first_us)
            return saved
        outputs.take_up(saved.collected)
        tell(saved.samples, 0)
    begin = saved.next if saved else part.start
    if begin < task.oldest:
        raise BadData(
            f"partition {part.partition}: what comes before offset {task.oldest} is gone by now, the replay "
            f"was at {begin}: remove {folder} to begin it anew"
        )
    player = Player(part, source.configurations(part), state=saved.state if saved else None)
    samples, records = (saved.samples, saved.records) if saved else (0, 0)
    notes, told_before = list(saved.notes) if saved else [], len(source.notes)

    def progress(upto: int, over: bool) -> Progress:
        told = [*notes, *source.notes[told_before:], *(player.told() if over else [])]
        collected = outputs.put_down(durable=keep is not None)
        state = b"" if over else player.dump()
        return Progress(task.number, upto, over, state, samples, records + player.records, told, collected)

    last_s = keep.clock() if keep else 0.0
    upto = begin
    with ahead(source.stretches(part, saved.next if saved else None, end)) as items:
        for item in items:
            outputs.add(player.play(item), task.reach, task.cut)
            upto = item.end if isinstance(item, Hole) else item[-1].offset + 1 if item else upto
            some = samples_in(item)
            samples += some
            if isinstance(item, list) and item:
                tell(some, max(0, item[-1].time_ms * 1000 - part.first_us))
                if item[-1].offset > part.last and player.over():
                    break
            if keep and keep.clock() >= last_s + keep.every_s:
                checkpoint.write(folder, progress(upto, over=False))
                last_s = keep.clock()
    done = progress(upto, over=True)
    if keep:
        checkpoint.write(folder, done)
    return done


def play_all(
    source: Source,
    tasks: Sequence[Task],
    folder: Path,
    *,
    runs: Sequence[str],
    columns: dict[OutputTable, list[str]],
    keep: Keep | None,
    jobs: int,
    tell: Tell,
) -> list[Progress]:
    """All partitions; several at once of tables only. Raises BadData, Unavailable."""
    if jobs <= 1 or len(tasks) <= 1 or not isinstance(source, TableLog):
        return [
            play_part(source, task, folder, runs=runs, columns=columns, keep=keep, tell=tell)
            for task in tasks
        ]
    done: dict[int, Progress] = {}
    with _pool(min(jobs, len(tasks))) as pool:
        largest_first = sorted(tasks, key=lambda task: -task.part.samples)
        every_s = keep.every_s if keep else None
        futures = [
            pool.submit(_play_elsewhere, source.reopened(), task, folder, tuple(runs), columns, every_s)
            for task in largest_first
        ]
        for task, future in zip(largest_first, futures, strict=True):
            done[task.number] = future.result()
            tell(done[task.number].samples, task.part.last_us - task.part.first_us)
    return [done[task.number] for task in tasks]


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, however it ends, and at once if the block fails."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(extensions.trusted(),)
    ) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                remedy = "a process was killed, perhaps for want of memory: start it again, with fewer --jobs"
                raise Unavailable(remedy) from error
            raise


def _begin(trusted: frozenset[bytes]) -> None:
    """Of each process: trusts what its parent does, and ends with it."""
    extensions.trust_likewise(trusted)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="driftline-replay-parent", daemon=True).start()


def _play_elsewhere(
    open_source: Callable[[], TableLog],
    task: Task,
    folder: Path,
    runs: tuple[str, ...],
    columns: dict[OutputTable, list[str]],
    every_s: float | None,
) -> Progress:
    source = open_source()
    try:
        keep = None if every_s is None else Keep(every_s)
        return play_part(source, task, folder, runs=runs, columns=columns, keep=keep)
    finally:
        source.close()
