"""Virtual time and processes on one thread: an asyncio loop that never waits, and lives that end or pause.

The loop's clock jumps to the next timer as soon as nothing is ready, and what is ready runs in the order in
which it became so; hence a run is a function of its seed. Whatever runs on behalf of a simulated process runs
in that process's :class:`Life`, which travels in a context variable:

- a *dead* life (``kill -9``) never runs again: neither its callbacks nor its ``finally`` blocks;
- a *paused* one (``SIGSTOP``) keeps what falls due and goes on with it when it wakes up;
- a plain callback may :meth:`VirtualLoop.block`, as a thread does that waits: the others go on meanwhile.

Every effect of a process on the world outside of it calls :meth:`Life.touch` before and :meth:`Life.touched`
after, which is where it can be killed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

EPOCH_US = 1_700_000_000_000_000
"""The wall clock when a simulation begins."""
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)


class Killed(BaseException):
    """Unwinds what a process was doing when it was killed; nothing may catch it."""


class Stuck(Exception):
    """Virtual time reached its limit, or nothing is left that could happen."""


class Life:
    """One simulated process, from its start to its end."""

    def __init__(self, loop: VirtualLoop, name: str, judge: Callable[[Life, str, str], None]) -> None:
        self.loop = loop
        self.name = name
        self.dead = False
        self._judge = judge
        self._pauses = 0
        self._parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.mourners: list[Callable[[], None]] = []
        """Called once, outside of this life, when it is killed."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine in this life."""
        return self.loop.create_task(work, context=self._context())

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        """Calls a plain function in this life."""
        self.loop.call_later(max(0, delay_us) / 1e6, call, context=self._context())

    def _context(self) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(LIFE.set, self)
        return context

    def touch(self, effect: str) -> None:
        """Before an effect outside of the process: raises Killed if it does not come to that."""
        if not self.dead:
            self._judge(self, "before", effect)
        self.check()

    def touched(self, effect: str) -> None:
        """After the effect: raises Killed if the process does not live to know of it."""
        if not self.dead:
            self._judge(self, "after", effect)
        self.check()

    def hears(self, when: str, effect: str) -> None:
        """Something became true outside of the process, which may be its end; does not raise."""
        self._judge(self, when, effect)

    def check(self) -> None:
        if self.dead:
            raise Killed(self.name)

    def kill(self) -> None:
        """Ends the process now; whoever is in the middle of something in it must :meth:`check` next."""
        if self.dead:
            return
        self.dead = True
        self._parked.clear()
        for mourner in self.mourners:
            self.loop.call_soon(mourner, context=contextvars.Context())

    @property
    def paused(self) -> bool:
        return self._pauses > 0

    def pause(self) -> None:
        self._pauses += 1

    def resume(self) -> None:
        """Ends one pause; what fell due meanwhile happens now, in its order."""
        self._pauses -= 1
        if not self._pauses and not self.dead:
            parked, self._parked = self._parked, []
            self.loop.ready_again(parked)

    def park(self, handle: asyncio.Handle) -> None:
        self._parked.append(handle)


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module's docstring. ``limit_us`` bounds the virtual time of a run."""

    def __init__(self, *, limit_us: int) -> None:
        super().__init__()
        self.now_us = 0
        self.limit_us = limit_us
        self.steps = 0
        self.crashes: list[str] = []
        """Exceptions that nobody handled: bugs of the code under test or of the simulation."""
        self._ready: deque[asyncio.Handle]
        self._scheduled: list[asyncio.TimerHandle]
        self._order = itertools.count()
        self.set_exception_handler(self._unhandled)
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self.now_us / 1e6

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.order = next(self._order)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        # As a timer even where the delay is 0, and rounded to whole microseconds.
        return self.call_at(
            (self.now_us + max(0, round(delay * 1e6))) / 1e6, callback, *args, context=context
        )

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """There are no other threads: the call happens now."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  belongs to whoever awaits it
            future.set_exception(error)
        return future

    def ready_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def block(self, for_us: int) -> None:
        """What a thread that waits does: everything else goes on until the time is over.

        Only from plain callbacks, not from coroutines. Raises Killed if the process was killed meanwhile.
        """
        life = LIFE.get()
        over = [False]
        self.call_at(
            (self.now_us + max(1, for_us)) / 1e6,
            lambda: over.__setitem__(0, True),
            context=contextvars.Context(),
        )
        if life is not None:
            life.pause()
        while not over[0]:
            self._run_once()
        if life is not None:
            life.resume()
            life.check()

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            life = handle._context.get(LIFE)  # type: ignore[attr-defined]
            if life is not None:
                if life.dead:
                    continue
                if life.paused:
                    life.park(handle)
                    continue
            self.steps += 1
            handle._run()  # type: ignore[attr-defined]
            if not ready:
                return  # a nested block() may have run what was counted above

    def _advance(self) -> None:
        """To the next timer; everything that is due then becomes ready in order."""
        scheduled = self._scheduled
        while scheduled and (scheduled[0]._cancelled or _dead(scheduled[0])):  # type: ignore[attr-defined]
            heapq.heappop(scheduled)._scheduled = False
        if not scheduled:
            raise Stuck("nothing is left that could happen")
        self.now_us = max(self.now_us, round(scheduled[0]._when * 1e6))  # type: ignore[attr-defined]
        if self.now_us > self.limit_us:
            raise Stuck(f"virtual time is over ({self.limit_us / 1e6:.0f} s)")
        while scheduled and round(scheduled[0]._when * 1e6) <= self.now_us:  # type: ignore[attr-defined]
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            self._ready.append(timer)

    def _unhandled(self, _loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed) or error is None or "Future exception" in str(context.get("message")):
            return  # (a producer's future that nobody waits for any more is no news)
        if isinstance(error, Stuck):
            raise error
        import traceback

        self.crashes.append(
            f"{context.get('message')}: " + "".join(traceback.format_exception(error))[-3000:]
        )

    def _check_closed(self) -> None: ...  # coroutines that are finalised late may still say something

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def _timer_handle_cancelled(self, handle: Any) -> None: ...


class _Timer(asyncio.TimerHandle):
    """Timers of the same moment in the order in which they were set."""

    __slots__ = ("order",)

    def __lt__(self, other: Any) -> bool:
        return (self._when, self.order) < (other._when, other.order)  # type: ignore[attr-defined]


def _dead(timer: Any) -> bool:
    life = timer._context.get(LIFE)
    return life is not None and life.dead


def _make_task(loop: Any, work: Any, context: Any = None) -> asyncio.Task[Any]:
    """Tasks are kept by their life: what a kill leaves behind must not be finalised at a random moment."""
    task = asyncio.Task(work, loop=loop, context=context)
    life = (context if context is not None else contextvars.copy_context()).get(LIFE)
    if life is not None:
        life.tasks.append(task)
        if len(life.tasks) > 64:
            life.tasks = [kept for kept in life.tasks if not kept.done()]
    return task


def lay_to_rest(lives: list[Life]) -> None:
    """At the end of a run: closes the coroutines of the dead, whose ``finally`` blocks can do nothing now."""
    for life in lives:
        life.dead = True
        for task in life.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if task.done():
                if not task.cancelled():
                    task.exception()
                continue
            try:
                task.get_coro().close()  # type: ignore[union-attr]
            except (RuntimeError, Killed):
                pass  # it would have waited for something in a finally block
            except Exception as error:  # noqa: BLE001  told, it is only about the end
                print(f"while closing {life.name}: {error!r}", file=sys.stderr)


class SimClock:
    """The clocks of one host: the loop's time, with a skew of the wall clock that may change."""

    def __init__(self, loop: VirtualLoop, skew_us: int = 0) -> None:
        self._loop = loop
        self.skew_us = skew_us

    def now_us(self) -> int:
        return EPOCH_US + self._loop.now_us + self.skew_us

    def steady_us(self) -> int:
        return self._loop.now_us
