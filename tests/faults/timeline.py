"""One time for everything, and event loops on it that can be stopped dead.

The one rule: what is due happens in the order of its moment, then of its asking; nothing else
decides. A process that is killed does nothing any more, not even what its `finally` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import inspect
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from typing import Any

from seerd import clock

EPOCH = 1_800_000_000.0
"""Wall clock when a run begins."""
MANY = 500


class Killed(KeyboardInterrupt):
    """This process ends here. Not an `Exception`, and not one that asyncio keeps for itself."""


class DeadlockError(AssertionError):
    """Nothing will ever happen again, and the run is not over."""


class Timeline:
    """The heap of what is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Let this happen at that moment, or now if it has passed."""
        self._asked += 1
        heapq.heappush(self._due, (max(when, self.now), self._asked, action))

    def after(self, wait_s: float, action: Callable[[], None]) -> None:
        """Let this happen so many seconds from now."""
        self.at(self.now + wait_s, action)

    def turn(self) -> None:
        """Let the next thing happen."""
        if not self._due:
            raise DeadlockError(f"nothing is due any more at {self.now:.3f}s")
        self.now, _, action = heapq.heappop(self._due)
        action()


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process. `before_step` is called before each of its steps, and may kill
    it: between two steps lies every await.

    busy_until  until then it is held up by something that takes long, and takes no step
    """

    def __init__(self, timeline: Timeline, before_step: Callable[[], None]) -> None:
        self.alive = True
        self.busy_until = 0.0
        self.failures: list[dict[str, Any]] = []
        self.signals: dict[int, Callable[[], None]] = {}
        self._timeline = timeline
        self._before_step = before_step
        self._tasks: list[asyncio.Task[Any]] = []

    def bury(self) -> None:
        """Close what was in the middle of something when it was killed, where its last words
        disturb nobody.
        """
        self.kill()
        asyncio._set_running_loop(self)
        try:
            for task in [task for task in self._tasks if not task.done()]:
                _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)

    def kill(self) -> None:
        """Nothing of it happens any more."""
        self.alive = False

    def time(self) -> float:
        """Seconds since the beginning of all."""
        return self._timeline.now

    def call_soon(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        handle = asyncio.Handle(callback, args, self, context)
        self._timeline.after(0.0, lambda: self._step(handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """There are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timeline.at(when, lambda: self._step(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """As asyncio's."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """As asyncio's."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > MANY:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """A thread's work takes no time here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- whatever it is, it belongs to who waits
            future.set_exception(error)
        return future

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Kept, for whoever plays the person at the keyboard."""
        self.signals[sig] = asyncio.Handle(callback, args, self)._run

    def remove_signal_handler(self, sig: int) -> bool:
        """As asyncio's."""
        return self.signals.pop(sig, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody has caught, while somebody could have."""
        if self.alive:
            self.failures.append(context)

    def is_running(self) -> bool:
        """As asyncio's."""
        return True

    def is_closed(self) -> bool:
        """As asyncio's."""
        return False

    def get_debug(self) -> bool:
        """Never."""
        return False

    def _step(self, handle: asyncio.Handle) -> None:
        if not self.alive or handle.cancelled():
            return
        if self.time() < self.busy_until:
            self._timeline.at(self.busy_until, lambda: self._step(handle))
            return
        asyncio._set_running_loop(self)  # as `running`, which is slower
        try:
            self._before_step()
            handle._run()
        except Killed:
            self.kill()
        finally:
            asyncio._set_running_loop(None)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Code that runs in this process; where it is killed, the rest of it is left out."""
        asyncio._set_running_loop(self)
        try:
            yield
        except Killed:
            self.kill()
        finally:
            asyncio._set_running_loop(None)

    def spawn(
        self, work: Coroutine[Any, Any, Any], done: Callable[[asyncio.Task[Any]], None]
    ) -> None:
        """The process's main coroutine."""
        with self.running():
            self.create_task(work).add_done_callback(done)


def _close(work: Any) -> None:
    """End a coroutine for good, from the inside: one that awaits something in a `finally` has to be
    told again.
    """
    for _ in range(100):
        try:
            if inspect.iscoroutine(work.cr_await):
                _close(work.cr_await)
            work.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                return
        except BaseException:  # noqa: BLE001 -- whatever it says now, it says to nobody
            return
        else:
            return


@contextlib.contextmanager
def surroundings(wall: Callable[[], float], steady: Callable[[], float]) -> Iterator[None]:
    """What this interpreter's clocks show meanwhile, and a terminal that Ctrl-C can be pressed at
    (there is none for what runs in the background): patched where everybody reads them, so that no
    reading can be forgotten.
    """
    real = time.time, time.monotonic, time.clock_gettime, clock.began_at, signal.getsignal
    taken_up, clock._zero = clock._zero, ContextVar("zero")  # a command of an earlier test's
    time.time, time.monotonic = wall, steady
    time.clock_gettime = lambda which: steady()
    clock.began_at = EPOCH
    signal.getsignal = lambda number: signal.SIG_DFL
    try:
        yield
    finally:
        time.time, time.monotonic, time.clock_gettime, clock.began_at, signal.getsignal = real
        clock._zero = taken_up
