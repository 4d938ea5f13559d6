"""The loop: choose a process and a fault, strike, wait until all works again, strike again; then judge.

A fault waits for progress, never for time: the next one comes when every process works and has read all that
the topics held when it came back, and when so many further frames are in the log. Three in ten do not wait:
they strike while another process recovers. What is random comes from the seed; what it meets does not.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack

from driftline.admin import ensure_topics

from . import judge
from .brokers import Brokers
from .plan import ROLES, Plan, Report
from .progress import Progress
from .schedule import Fault, faults
from .world import Actor, RawRanks, Trainers, write_settings

SLACK = 40
"""Records that a group's offset, or a table, may lack: ticks alone are saved and stored seldom."""
TRAINER_STEPS = 300
SKIPPED = 1_500
"""Records at least that a group skips, so that its worker has something to read from the log."""
STOP_S = 120.0
"""The longest that a process may take to end after SIGTERM."""


class Stuck(RuntimeError):
    """Something did not come about; the message has the ends of the logs."""


def run(plan: Plan) -> Report:
    """Does the plan; every process that it started has ended afterwards. Raises Stuck."""
    with ExitStack() as stack:
        loop = Loop(plan, stack)
        loop.begin()
        for fault in faults(plan):
            loop.strike(fault)
        taken, said = loop.settle()
    began = time.monotonic()
    plan.say(f"all is quiet after {loop.report.seconds:.0f} s; comparing")
    judge.judge(plan, loop.report, taken=taken, said=said)
    loop.report.judge_seconds = time.monotonic() - began
    return loop.report


class Loop:
    """The processes and what is under way with them."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self.plan = plan
        self.report = Report(seed=plan.seed)
        self._stack = stack
        self._began = time.monotonic()
        (plan.folder / "logs").mkdir(parents=True, exist_ok=True)
        write_settings(plan.folder, plan.kafka)
        self._uuids = ensure_topics(plan.kafka)
        self._progress = Progress(plan.kafka, self._uuids, plan.folder / "tables")
        stack.callback(self._progress.close)
        self._actors: list[Actor] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._marks: dict[Actor, tuple[list[int], int]] = {}
        """What the topics held when an actor came back, until it has read it."""
        self._struck_at = 0
        """Frames in the log at the last fault."""
        self._looked = self._told = 0.0
        self._brokers = Brokers(plan.cluster, plan.kafka) if plan.cluster is not None else None
        self._first: tuple[float, int] | None = None
        """When the first fault struck, and the frames in the log then."""
        self._second = plan.of_each == 2
        self._ranks: RawRanks | None = None
        self._trainers: Trainers | None = None
        """Those that still send."""
        if self._brokers is not None:
            stack.callback(self._brokers.close)

    # --- life -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """One of each role (or two), then the ranks, once all works."""
        self._add(0)
        if self._second:
            self._add(1)
        self._wait(lambda: all(actor.ready for actor in self._actors), "all processes work")
        self._ranks = ranks = RawRanks(self.plan.folder, self.plan.frames_per_s)
        self._stack.callback(ranks.kill)
        self._trainers = trainers = Trainers(self.plan.folder, TRAINER_STEPS)
        self._stack.callback(trainers.kill)
        self._wait(lambda: sum(self._progress.stored) > self.plan.between, "the first frames are stored")
        self.plan.say(f"all works after {time.monotonic() - self._began:.0f} s")

    def strike(self, fault: Fault) -> None:
        """One fault more, when it is its turn."""
        if not self._second and self.report.kills >= self.plan.second_from:
            self._second = True
            self._wait_until_well()
            self._add(1)
            self._wait(lambda: all(actor.ready for actor in self._actors), "the second of each works")
            self.plan.say("from here on two of each")
        if self.report.kills == 1 and not self._second:  # a worker tells its counts every ten seconds
            self._wait(
                lambda: self._filled() >= SKIPPED, "a worker tells that it read what its group skipped"
            )
        if fault.haste_s is None or not self.report.kills:
            self._wait_until_well()
            self._wait(lambda: self._frames() >= self._struck_at + self.plan.between, "frames come in")
        else:
            self._pass(fault.haste_s)
        self._first = self._first or (time.monotonic(), self._frames())
        if fault.role == "broker":
            assert self._brokers is not None
            self._brokers.strike(fault)
            self._struck(fault, f"broker-{fault.number}", at_work=True)
            return
        actor = next(a for a in self._actors if (a.role, a.number) == (fault.role, fault.number))
        self._wait(lambda: actor.state == "up", f"{actor.name} is up")
        at_work = actor.ready and actor not in self._marks
        {"kill": self._kill, "pause": self._pause, "restart": self._restart}[fault.kind](actor, fault)
        self._struck(fault, actor.name, at_work=at_work)

    def _struck(self, fault: Fault, name: str, *, at_work: bool) -> None:
        self._struck_at = self._frames()
        self.report.kills += 1
        self.report.at_work += at_work
        self.report.kinds[fault.name] += 1
        self.report.behind_at_strikes.append(self._progress.behind)
        self.plan.say(
            f"{self.report.kills}/{self.plan.kills} {fault.kind} {name}"
            f"{'' if at_work else ' (recovering)'}: {self._frames()} records in the log, "
            f"{self._progress.behind} behind, after {time.monotonic() - self._began:.0f} s"
        )

    def settle(self) -> tuple[dict[str, int], list[dict[str, object]]]:
        """Ranks end, what they sent is worked off, all processes end in order. What the ranks say."""
        assert self._ranks is not None
        assert self._trainers is not None
        self._wait_until_well()
        trainers, self._trainers = self._trainers, None
        self._wait(lambda: not trainers.turn(go_on=False), "the ranks that use the SDK end")
        ranks, self._ranks = self._ranks, None
        taken = ranks.end()
        self._progress.update()
        if self._first is not None:
            at, frames = self._first
            self.report.frames_per_s = (self._frames() - frames) / (time.monotonic() - at)
        self.report.held_seconds = ranks.held_s
        ends, evals_end = self._progress.ends, self._progress.evals_end
        self.plan.say(f"ranks have ended; {self._progress.behind} records behind")
        self._wait(lambda: self._has_read(ends, evals_end), "everything is read and stored")
        self._wait(lambda: not self._progress.open_requests(), "every request is answered")
        self.report.filled = self._filled()
        for role in ("evaluator", "scheduler", "streams", "sink"):
            of_role = [actor for actor in self._actors if actor.role == role]
            for actor in of_role:
                self._end(actor)
        self.report.problems += trainers.failed
        self.report.seconds = time.monotonic() - self._began
        return taken, list(trainers.said)

    def _end(self, actor: Actor) -> None:
        actor.ask_to_stop()
        self._wait(actor.stopped, f"{actor.name} ends", limit_s=STOP_S)
        self._judge_exit(actor)

    def _add(self, number: int) -> None:
        for role in ROLES:
            actor = Actor(role, number, self.plan.folder)
            self._stack.callback(_bury, actor)
            self._actors.append(actor)
            actor.start()

    # --- faults -----------------------------------------------------------------------------------------

    def _kill(self, actor: Actor, fault: Fault) -> None:
        actor.kill()
        self._after(fault.away_s, lambda: self._start(actor, fault))

    def _pause(self, actor: Actor, fault: Fault) -> None:
        actor.pause()
        self._after(fault.away_s, lambda: self._resume(actor))

    def _restart(self, actor: Actor, fault: Fault) -> None:
        actor.ask_to_stop()
        limit = time.monotonic() + STOP_S
        self._after(0.2, lambda: self._start_when_stopped(actor, fault, limit))

    def _start(self, actor: Actor, fault: Fault | None = None) -> None:
        alone = all(a.state == "down" for a in self._actors if a.role == actor.role)
        if fault is not None and fault.skips and alone and not self._skip():
            self._after(0.5, lambda: self._start(actor, fault))
            return
        self._marks[actor] = self._mark()
        actor.start()

    def _skip(self) -> bool:
        """False if its session has not ended yet, or if too few records have come since."""
        missed = sum(self._progress.ends) - sum(self._progress.applied)
        return missed >= SKIPPED and self._progress.skip_to_the_end()

    def _filled(self) -> int:
        return sum(actor.counted("filled") for actor in self._actors if actor.role == "streams")

    def _resume(self, actor: Actor) -> None:
        self._marks[actor] = self._mark()
        actor.resume()

    def _start_when_stopped(self, actor: Actor, fault: Fault, limit: float) -> None:
        if actor.stopped():
            self._judge_exit(actor)
            self._start(actor, fault)
        elif time.monotonic() > limit:
            raise Stuck(f"{actor.name} did not end within {STOP_S:g} s:\n{actor.text()[-3000:]}")
        else:
            self._after(0.2, lambda: self._start_when_stopped(actor, fault, limit))

    def _judge_exit(self, actor: Actor) -> None:
        code = actor.running.returncode
        if code == -signal.SIGTERM and not actor.text():
            return  # told while Python was still importing: it had no handler yet, and has done nothing
        if code:
            self.report.problems.append(
                f"{actor.name} ended with {code} after SIGTERM: {actor.text()[-600:]}"
            )

    # --- waiting ----------------------------------------------------------------------------------------

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, act))

    def _mark(self) -> tuple[list[int], int]:
        return list(self._progress.ends), self._progress.evals_end

    def _frames(self) -> int:
        return sum(self._progress.ends)

    def _has_read(self, ends: list[int], evals_end: int, roles: tuple[str, ...] = ROLES) -> bool:
        seen = self._progress
        far = {
            "streams": all(a >= e - SLACK for a, e in zip(seen.applied, ends, strict=True)),
            "sink": all(s >= e - SLACK for s, e in zip(seen.stored, ends, strict=True)),
            "scheduler": seen.scheduled >= evals_end - SLACK,
            "evaluator": True,
        }
        return all(far[role] for role in roles)

    def _well(self) -> bool:
        """Whether every process works and has read what there was when it came back."""
        for actor, (ends, evals_end) in list(self._marks.items()):
            known = actor.role != "evaluator" or actor.evaluator() in self._progress.present
            if actor.ready and known and self._has_read(ends, evals_end, (actor.role,)):
                del self._marks[actor]
        brokers = self._brokers is None or self._brokers.well()
        return brokers and not self._marks and all(actor.state == "up" for actor in self._actors)

    def _wait_until_well(self) -> None:
        self._wait(self._well, "every process works again")

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= end, "time goes by")

    def _wait(self, condition: Callable[[], bool], what: str, *, limit_s: float | None = None) -> None:
        end = time.monotonic() + (limit_s or self.plan.limit_s)
        while not condition():
            if time.monotonic() > end:
                tails = "\n".join(
                    f"--- {actor.name} ({actor.state})\n{actor.text()[-1500:]}" for actor in self._actors
                )
                raise Stuck(
                    f"not within {limit_s or self.plan.limit_s:g} s: {what}; {self._where()}\n{tails}"
                )
            self._turn()
            time.sleep(0.1)

    def _turn(self) -> None:
        """What is due; what ended by itself; how far all is."""
        now = time.monotonic()
        due = [act for at, act in self._later if at <= now]
        self._later = [(at, act) for at, act in self._later if at > now]
        for act in due:
            act()
        for actor in self._actors:
            if (code := actor.ended_by_itself()) is not None:
                tail = actor.text()[-1500:]
                self.report.problems.append(f"{actor.name} ended by itself with {code}: {tail}")
                self._after(1.0, lambda actor=actor: self._start(actor))
        if now - self._looked >= 1.0:
            self._looked = now
            self._progress.update()
            if self._ranks is not None:
                self._ranks.hold(self._progress.behind > self.plan.ahead)
                if self._ranks.died():
                    raise Stuck("the raw ranks ended by themselves, see logs/ranks.log")
            if self._trainers is not None:
                self._trainers.turn(go_on=True)
        if now - self._told >= 60.0:
            self._told = now
            self.plan.say(self._where())

    def _where(self) -> str:
        seen = self._progress
        waiting = ", ".join(sorted(f"{actor.name} ({actor.state})" for actor in self._marks)) or "nobody"
        return (
            f"in the log {seen.ends}, applied {seen.applied}, stored {seen.stored}, "
            f"evals {seen.scheduled} of {seen.evals_end}, "
            f"{len(seen.open_requests())} of {len(seen.requests)} requests open, waiting for {waiting}"
        )


def _bury(actor: Actor) -> None:
    """At the end, however it came: no process stays."""
    if actor.process is not None and actor.process.poll() is None:
        actor.process.kill()
        actor.process.wait()
    actor.state = "down"
