"""A run in a thread of this process, and the caller's thread that waits for it. The caller's thread
only waits, shows and asks to stop: its event loop and its signals stay its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from seerd.api.notebook import NotebookView, in_a_notebook
from seerd.commands import on_end
from seerd.commands.common import say
from seerd.commands.exporting import exporting
from seerd.commands.report import RunReader
from seerd.core.events import StopAsked
from seerd.runs import runs
from seerd.runs.runs import Ended
from seerd.shell import edits
from seerd.shell.daemon import ENDING_SIGNALS, Watcher
from seerd.shell.home import RunFolder, takes_signals
from seerd.shell.inbox import Inbox
from seerd.telling.plain import lines_to
from seerd.telling.summary import leftover_lines

POLL_S = 0.2


class Worker(threading.Thread):
    """A thread in which a run goes on."""

    def __init__(self, work: Callable[[Worker], None]) -> None:
        super().__init__(name="seerd")
        self.folder: RunFolder | None = None  # the run's folder, once there is one
        self.stops = 0  # how often it was asked to stop
        self._work = work
        self._lock = threading.RLock()
        self._error: BaseException | None = None
        self._requests: list[tuple[Inbox, str]] = []

    def result(self) -> RunFolder:
        """Return the folder of the run that is over. Raises what the work has raised."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self.folder is not None
        return self.folder

    def stop(self) -> None:
        """Ask the run to stop in order; the second time, at once. Any thread may call this, also a
        handler of signals.
        """
        with self._lock:
            self.stops += 1
            if self.folder is not None:
                self._ask(self.folder)

    def made(self, folder: RunFolder) -> None:
        """Record the run's folder; it can be asked to stop from now on."""
        with self._lock:
            self.folder = folder
            if self.stops:
                self._ask(folder)

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if it was asked to stop before it had begun."""
        if self.stops:
            raise KeyboardInterrupt("nothing was started")

    def _ask(self, folder: RunFolder) -> None:
        inbox = Inbox(folder.requests)
        self._requests.append((inbox, inbox.put(StopAsked(at=0.0))))

    def run(self) -> None:
        """Do the work."""
        try:
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        finally:
            for inbox, name in self._requests:
                inbox.withdraw(name)


def resumed(folder: RunFolder, *, show: bool) -> Worker:
    """Return the thread of a run that goes on until it is over, as with `seerd resume`."""

    def work(worker: Worker) -> None:
        on_end.catch_up(folder)
        worker.check()
        if edited := edits.note(folder):
            say(edited)
        worker.made(folder)
        with exporting(folder):
            ended = runs.resume(folder, watcher(folder, show=show))
        end(folder, ended)

    return Worker(work)


def end(folder: RunFolder, ended: Ended) -> None:
    """Do what `seerd run` does at its end, and say what is left."""
    on_end.result_of(folder, ended)
    for line in leftover_lines(ended.leftovers):
        say(line)


def watcher(folder: RunFolder, *, show: bool) -> Watcher:
    """Return what prints lines where there is no other view."""
    if show and not in_a_notebook():
        return lines_to(folder, sys.stderr)
    return lambda state, now_s, entries: None


def wait(worker: Worker, *, show: bool) -> RunFolder:
    """Show the run until it is over, and return its folder. Raises what the run's thread raises,
    and `KeyboardInterrupt` if this process got a signal to end.
    """
    with _started(worker, show=show) as renew:
        while worker.is_alive():
            worker.join(POLL_S)
            renew()
    return _unless_interrupted(worker, KeyboardInterrupt)


async def wait_async(worker: Worker, *, show: bool) -> RunFolder:
    """Do what `wait` does, and let the event loop go on. Raises `asyncio.CancelledError` if this
    task was cancelled, or this process got a signal to end.
    """
    with _started(worker, show=show) as renew:
        while worker.is_alive():
            try:
                await asyncio.sleep(POLL_S)
            except asyncio.CancelledError:
                worker.stop()
            renew()
    return _unless_interrupted(worker, asyncio.CancelledError)


def _unless_interrupted(worker: Worker, error: type[BaseException]) -> RunFolder:
    folder = worker.result()
    if worker.stops:
        goes_on = f"was interrupted; it goes on with seerd.load({folder.run!r}).resume()"
        status = RunReader(folder).read().status
        how = goes_on if status == "interrupted" else "had come to its end"
        raise error(f"{folder.run} {how}")
    return folder


@contextlib.contextmanager
def _started(worker: Worker, *, show: bool) -> Iterator[Callable[[], None]]:
    """Start the run; yield what renews its view in a notebook. Signals that end `seerd run` in
    order end this run so. Only a main thread can take them; elsewhere they are left alone.
    """
    view = NotebookView() if show and in_a_notebook() else None
    numbers = [
        number
        for number in (ENDING_SIGNALS if takes_signals() else ())
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    ]

    def renew(*, last: bool = False) -> None:
        if view is not None and worker.folder is not None:
            view.show(worker.folder, last=last)

    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in numbers}
    try:
        worker.start()
        yield renew
    except BaseException:  # whatever it is, nobody waits for the run any more
        worker.stop()
        worker.join()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    renew(last=True)
