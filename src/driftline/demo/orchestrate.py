"""``driftline demo``: starts all parts and a training, shows what happens, ends all, tells what was found.

Nothing here is simulated: the parts are the commands that one would start by hand, each a process of its own,
and the training knows of them only through the SDK. Everything that is written lies under ``root``:

    runs/RUN/        settings, checkpoints, report.html, report.png
    logs/RUN/        what each process printed
    samples/, ...    the tables, and catalog.duckdb: shared with all other runs

End in order: the ranks finish by themselves; then every evaluation asked for is waited for, then the tables;
then evaluator, scheduler, stream worker, sink and broker are ended, in this order, so that nothing is lost.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape

from driftline import identity
from driftline.admin import ensure_topics
from driftline.broker import EmbeddedBroker
from driftline.cli.watch import Stop
from driftline.cli.watch_feed import Feed
from driftline.clock import SystemClock
from driftline.connection import KafkaSettings
from driftline.demo import settings as demo_settings
from driftline.demo.drain import Drain
from driftline.demo.parts import Part, PartDied, Parts
from driftline.demo.readiness import Seen
from driftline.demo.screen import LineScreen, LiveScreen, Screen
from driftline.errors import BadData, DriftlineError
from driftline.settings import load
from driftline.storage.root import local

RANKS = 4
STEPS = 1100
SECONDS_MAX = 420.0
READY_SECONDS = 300.0
EVALUATED_SECONDS = 300.0
STORED_SECONDS = 180.0
"""Only for what hangs: a part that ended is noticed at once, and on a busy machine importing torch alone has
taken 50 s."""
EVALUATOR_NICE = 15
STOPPED = 130
PIPE_COLUMNS = 120
PREFIX = "driftline-demo."
"""Of the topics on a broker that is not ours: the demonstration never touches those of real runs."""


class Plan(NamedTuple):
    """One run of the demonstration."""

    root: Path
    run: str
    steps: int
    seconds_max: float
    checkpoint_every: int

    @property
    def folder(self) -> Path:
        return self.root / "runs" / self.run

    @property
    def logs(self) -> Path:
        return self.root / "logs" / self.run

    @property
    def config(self) -> Path:
        return self.folder / "driftline.yaml"


class Stopped(DriftlineError):
    """Someone asked to stop (Ctrl-C, SIGTERM)."""


def run_demo(
    *,
    root: str | Path = "./driftline-data",
    steps: int = STEPS,
    seconds_max: float = SECONDS_MAX,
    bootstrap: str | None = None,
    plain: bool | None = None,
    check: bool = False,
    console: Console | None = None,
) -> int:
    """Runs the demonstration and prints what came of it; returns the exit code.

    Args:
        root: folder for tables, checkpoints, logs and the report; runs of before stay in it.
        steps: training steps; 1,100 take about two minutes on two free cores.
        seconds_max: the training ends in order after so long, however few steps it has done.
        bootstrap: a Kafka broker to use (topics ``driftline-demo.*``); None starts the embedded one.
        plain: lines instead of the live view; None: where the output is no terminal.
        check: afterwards compare what was found with what was caused, and fail if something is missing.

    Exit codes: 0; 1 when a part died, something did not come in time, or a check failed; 130 after Ctrl-C.

    Raises:
        SettingsError: the broker's settings or an extra are missing, or ``root`` is no local folder.
        Unavailable: no broker answers.
        BadData: ``root`` cannot be written to.
    """
    # Where no terminal says how wide it is, rich assumes 80 columns: too few for a log that people read.
    console = console or Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    plan = Plan(
        root=_writable(local(root)),
        run=identity.new_run_id(now_us=SystemClock().now_us(), entropy=os.urandom(16)),
        steps=steps,
        seconds_max=seconds_max,
        checkpoint_every=max(1, min(50, steps // 8)),
    )
    live = console.is_terminal if plain is None else not plain
    screen: Screen = (LiveScreen if live else LineScreen)(console, plan.run, plan.steps)
    try:
        with Stop().on_signals() as stop:
            _run(plan, bootstrap, screen, stop)
    except (Stopped, KeyboardInterrupt):
        console.print(
            f"Stopped. What was stored until then is in {escape(str(plan.root))}",
            highlight=False,
            soft_wrap=True,
        )
        return STOPPED
    except PartDied as error:
        console.print(f"[red]{escape(str(error))}[/]", highlight=False, soft_wrap=True)
        return 1
    from driftline.demo.report import present
    from driftline.demo.verify import verify

    present(plan.root, plan.run, console=console)
    return verify(plan.root, plan.run, console=console) if check else 0


def _run(plan: Plan, bootstrap: str | None, screen: Screen, stop: Stop) -> None:
    plan.logs.mkdir(parents=True, exist_ok=True)
    broker = nullcontext() if bootstrap else EmbeddedBroker(log=plan.logs / "broker.log")
    with screen, broker as embedded:
        screen.say("starting the broker")
        demo_settings.write(
            plan.config,
            root=plan.root,
            embedded=embedded is not None,
            evaluate_every=2 * plan.checkpoint_every,
        )
        environment = _environment(embedded.bootstrap if embedded else str(bootstrap), embedded is None)
        kafka = load(plan.config, environment).kafka
        ensure_topics(kafka)
        with Parts(plan.logs, environment) as parts, _feed(kafka) as feed:
            Conductor(plan, screen, stop, parts, feed, embedded).conduct()


class Conductor:
    """Starts and ends the parts in order, and shows what comes by meanwhile."""

    def __init__(
        self,
        plan: Plan,
        screen: Screen,
        stop: Stop,
        parts: Parts,
        feed: Feed,
        broker: EmbeddedBroker | None,
    ) -> None:
        self._plan = plan
        self._screen = screen
        self._stop = stop
        self._parts = parts
        self._feed = feed
        self._broker = broker
        self._seen = Seen()

    def conduct(self) -> None:
        """The whole run. Raises PartDied, Stopped, Unavailable."""
        roles = {name: self._role(name) for name in ("streams", "scheduler", "sink", "evaluator")}
        ranks = [self._rank(rank) for rank in range(RANKS)]
        try:
            self._follow(ranks)
            self._settle(roles)
        except Stopped:
            self._screen.say("ending the training")
            self._parts.stop(ranks)
            raise
        finally:
            self._screen.say("ending the parts")
            for name in ("evaluator", "scheduler", "streams", "sink"):
                self._parts.stop([roles[name]])

    def _role(self, name: str) -> Part:
        return self._parts.start(name, ["-m", "driftline.cli", name, "--config", str(self._plan.config)])

    def _rank(self, rank: int) -> Part:
        plan = self._plan
        options = {
            "folder": str(plan.folder),
            "name": "addition",
            "steps": plan.steps,
            "checkpoint_every": plan.checkpoint_every,
            "seconds_max": plan.seconds_max,
            "seed": len(list(plan.folder.parent.iterdir())) - 1,
        }
        return self._parts.start(
            f"rank-{rank}",
            ["-m", "driftline.demo.training", msgspec.json.encode(options).decode()],
            finite=True,
            environment={
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "DRIFTLINE_RUN_ID": plan.run,
                "DRIFTLINE_CONFIG": str(plan.config),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )

    def _follow(self, ranks: list[Part]) -> None:
        """Until all ranks have ended."""
        self._screen.say("starting stream worker, scheduler, sink, evaluator and four training ranks")
        started = time.monotonic()
        said = False
        while any(rank.code is None for rank in ranks):
            self._watch()
            missing = self._seen.not_ready()
            if missing and time.monotonic() - started > READY_SECONDS:
                raise PartDied(
                    f"{missing[0]} did not start its work within {READY_SECONDS:.0f} s; "
                    f"its log is {self._plan.logs / missing[0]}.log"
                )
            if not missing and not said:
                said = True
                self._screen.say("all parts are at work")

    def _settle(self, roles: dict[str, Part]) -> None:
        """Until what was asked for is evaluated, and what was said is stored."""
        self._screen.say("training has ended; waiting for the last evaluations")
        self._until(self._evaluated, EVALUATED_SECONDS, lambda: roles["evaluator"])
        self._screen.say("waiting for the tables")
        drain = Drain(self._plan.root, self._plan.run, self._seen)
        self._until(drain.done, STORED_SECONDS, lambda: roles["sink"])

    def _evaluated(self) -> bool:
        """Whether the run has ended and no evaluation is owed, that of the last checkpoint included."""
        view = self._seen.runs.get(self._plan.run)
        if view is None or not view.outcome:
            return False
        last = {entry.suite for entry in view.results if entry.step == view.checkpoint_step}
        return len(view.results) == len(view.evaluations) and last >= set(demo_settings.SUITES)

    def _until(self, done: Callable[[], bool], seconds: float, waits_for: Callable[[], Part]) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            self._watch()
            if time.monotonic() > deadline:
                part = waits_for()
                raise PartDied(f"{part.name} did not finish within {seconds:.0f} s; its log is {part.log}")

    def _watch(self) -> None:
        """Takes in what came, shows it, and looks after the parts."""
        self._feed.poll(self._seen, 0.2)
        view = self._seen.runs.get(self._plan.run)
        self._screen.show(self._seen, steps=(view.step or 0) if view else 0)
        self._parts.check()
        if self._broker is not None and not self._broker.running():
            raise PartDied(f"the embedded broker ended; its log is {self._plan.logs / 'broker.log'}")
        if self._stop.asked:
            raise Stopped


@contextmanager
def _feed(kafka: KafkaSettings) -> Iterator[Feed]:
    feed = Feed(kafka, since_us=SystemClock().now_us() - 1_000_000, newest_per_partition=None)
    try:
        yield feed
    finally:
        feed.close()


def _environment(bootstrap: str, foreign: bool) -> dict[str, str]:
    """Ours, with the broker in it, and without settings that would speak against the settings file."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DRIFTLINE_") or name.startswith("DRIFTLINE_KAFKA__")
    }
    kept.pop("DRIFTLINE_KAFKA__BOOTSTRAP", None)
    kept["DRIFTLINE_BOOTSTRAP"] = bootstrap
    if foreign and "DRIFTLINE_KAFKA__PREFIX" not in kept:
        kept["DRIFTLINE_PREFIX"] = PREFIX
    return kept


def _writable(root: Path) -> Path:
    """Makes the folder. Raises BadData if nothing can be written there."""
    try:
        (root / "runs").mkdir(parents=True, exist_ok=True)
        probe = root / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise BadData(
            f"{root} cannot be written to ({error.strerror}): choose another folder with --root"
        ) from error
    return root
