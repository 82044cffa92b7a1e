"""`seerd.run` and `seerd.run_async`: the run of `seerd run`, in a thread of this process.

The one rule: the caller's thread only waits, shows and asks to stop. Its event loop and its signals
stay its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from seerd.api.handle import Run, home_of
from seerd.api.notebook import NotebookView, in_a_notebook
from seerd.commands import beginning, on_end
from seerd.commands.exporting import exporting
from seerd.commands.options import KEYS, Minimize
from seerd.runs import edits, runs
from seerd.runs.runs import Ended
from seerd.shell.daemon import ENDING_SIGNALS, Watcher
from seerd.shell.home import RunFolder, takes_signals
from seerd.shell.inbox import Inbox, StopRequest
from seerd.spec.dicts import toml_of
from seerd.spec.experiment import load, require_limits
from seerd.spec.reader import Override
from seerd.telling.harmless import harmless
from seerd.telling.summary import leftover_lines
from seerd.telling.watch import lines_to

SpecLike = str | os.PathLike[str] | Mapping[str, Any]
"""A spec's file, or a dict as its TOML would be."""
Time = str | float | timedelta
"""Text with a unit as on the command line, a number of seconds, or a timedelta."""
Money = str | float
"""Text with a unit as on the command line, or a number of USD."""
UNITS = {"deadline": "{:.6f}s", "budget": "{:.6f}gpu-s", "cost": "{:.6f}usd"}
"""How numbers are written with the unit that they stand for."""
POLL_S = 0.2


def run(
    spec: SpecLike,
    *,
    deadline: Time | None = None,
    budget: Time | None = None,
    cost: Money | None = None,
    max_gpus: int | None = None,
    policy: str | None = None,
    provider: str | None = None,
    seed: int | None = None,
    like: list[str] | None = None,
    minimize: Minimize | None = None,
    ideal: bool = False,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the name of the option
    home: str | os.PathLike[str] | None = None,
    show: bool = True,
) -> Run:
    """Tune within the deadline and the budget, as `seerd run` does, and return the finished run.

    It also works in a notebook, whose event loop runs already. Ctrl-C, or the stop button, ends the
    run in order: trials save, everything is given back, then `KeyboardInterrupt` is raised; the run
    goes on with `seerd.load("last").resume()`. The second time ends it at once.

    Args:
        spec: the file of a spec, or a dict as its TOML would be; `train.script` of a dict is
            relative to the working directory.
        deadline: until the best model is in hand: "30m", seconds, or a timedelta.
        budget: GPU time: "480gpu-min", GPU-seconds, or a timedelta.
        cost: money: "$40", or USD.
        max_gpus: most GPUs at one moment.
        policy: the search policy.
        provider: where to run: "local", "hosts" or "ec2".
        seed: the seed of the search.
        like: earlier runs to learn from: names, or "last".
        minimize: "cost" or "time": give each stage of the policy sha the GPUs that do.
        ideal: plan to the letter of the paper, whatever is billed.
        set: any key of the spec: {"policy.eta": 2}.
        home: the folder of all runs; None: SEERD_HOME, or the XDG state folder.
        show: show the run while it goes on: in a notebook as a view that renews itself, elsewhere
            as one line per event on stderr.

    Returns:
        The run, over.

    Raises:
        seerd.errors.SpecError: the spec has mistakes; all of them are in the message.
        seerd.errors.LimitsError: the limits cannot be met; nothing was started.
        seerd.errors.CloudError: the cloud refuses; nothing was started.
        seerd.errors.UsageError: what else keeps a run from starting.
        KeyboardInterrupt: the run was interrupted, and has ended in order.

    Example:
        >>> run = seerd.run("spec.toml", deadline="1m", budget="4gpu-min", show=False)
        >>> run.state
        'done'
    """
    work = _work_of(**locals())
    return wait(work, show=show)


async def run_async(
    spec: SpecLike,
    *,
    deadline: Time | None = None,
    budget: Time | None = None,
    cost: Money | None = None,
    max_gpus: int | None = None,
    policy: str | None = None,
    provider: str | None = None,
    seed: int | None = None,
    like: list[str] | None = None,
    minimize: Minimize | None = None,
    ideal: bool = False,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the name of the option
    home: str | os.PathLike[str] | None = None,
    show: bool = True,
) -> Run:
    """Do what `run` does, with the same arguments, while the caller's event loop goes on.

    Raises:
        asyncio.CancelledError: the task was cancelled, or Ctrl-C was pressed; the run has ended in
            order.

    Example:
        >>> run = asyncio.run(seerd.run_async("spec.toml", deadline="1m", show=False))
        >>> run.best.trial in list(run.trials()["trial"])
        True
    """
    work = _work_of(**locals())
    return await wait_async(work, show=show)


def resume(folder: RunFolder, *, show: bool) -> Run:
    """Go on with a run until it is over, as `seerd resume` does."""
    return wait(Worker(_resumed(folder, show=show)), show=show)


async def resume_async(folder: RunFolder, *, show: bool) -> Run:
    """Go on with a run until it is over, as `seerd resume` does."""
    return await wait_async(Worker(_resumed(folder, show=show)), show=show)


# ------------------------------------------------------------ in the run's thread


class Worker:
    """A thread in which a run goes on."""

    def __init__(self, work: Callable[[Worker], None]) -> None:
        self.folder: RunFolder | None = None  # the run's folder, once there is one
        self.stops = 0  # how often it was asked to stop
        self._work = work
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._requests: list[tuple[Inbox, str]] = []
        self._thread = threading.Thread(target=self._run, name="seerd")

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()

    def is_over(self, patience_s: float | None = 0.0) -> bool:
        """Tell whether the work is over, after waiting for that so long at most; None: until it
        is.
        """
        return self._over.wait(patience_s)

    def result(self) -> Run:
        """Return the run that is over. Raises what the work has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self.folder is not None
        return Run(self.folder)

    def stop(self) -> None:
        """Ask the run to stop in order; the second time, at once. To be called from any thread,
        also by a handler of signals.
        """
        with self._lock:
            self.stops += 1
            if self.folder is not None:
                self._ask(self.folder)

    def made(self, folder: RunFolder) -> None:
        """Note the run's folder; it can be asked to stop from now on."""
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
        self._requests.append((inbox, inbox.put(StopRequest())))

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        finally:
            for inbox, name in self._requests:
                inbox.withdraw(name)
            self._over.set()


def _work_of(spec: SpecLike, **arguments: Any) -> Worker:
    """Return the thread of a run that these arguments of `run` ask for."""
    home, show, more = (arguments.pop(name) for name in ("home", "show", "set"))
    minimize, ideal = arguments.pop("minimize"), arguments.pop("ideal")
    origin, where = time.time(), home_of(home)

    def work(worker: Worker) -> None:
        say = _say if show else _keep_quiet
        asked = load(
            spec if isinstance(spec, Mapping) else [Path(spec)],
            overrides_of(arguments, more or {}),
        )
        require_limits(asked, minimize)
        placed, quote = beginning.placed(asked, where, say)
        facts = beginning.planned(placed, where, quote, ideal=ideal, minimize=minimize)
        worker.check()
        folder, state = beginning.create(placed, facts, where, quote, origin, say)
        worker.made(folder)
        with exporting(folder):
            ended = runs.begin(folder, state, _watcher(folder, show=show))
        _end(folder, ended)

    return Worker(work)


def overrides_of(arguments: Mapping[str, Any], more: Mapping[str, Any]) -> list[Override]:
    """List what arguments change in the spec, as the options of the same names do; None: nothing.

    more  any keys of the spec, by their path
    """
    keys = {**KEYS, "like": "policy.like"}
    changes = [
        Override(keys[name], _with_unit(name, value), name)
        for name, value in arguments.items()
        if value is not None
    ]
    return changes + [Override(key, _plain(key, value), key) for key, value in more.items()]


def _with_unit(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if name in UNITS and isinstance(value, int | float):
        return UNITS[name].format(value)
    return _plain(name, value)


def _plain(name: str, value: Any) -> Any:
    """Return a value as TOML has it; text is read as `--set` reads it."""
    return value if isinstance(value, str) else tomllib.loads(toml_of({name: value}))[name]


def _resumed(folder: RunFolder, *, show: bool) -> Callable[[Worker], None]:
    def work(worker: Worker) -> None:
        on_end.catch_up(folder)
        worker.check()
        if edited := edits.note(folder):
            _say(edited)
        worker.made(folder)
        with exporting(folder):
            ended = runs.resume(folder, _watcher(folder, show=show))
        _end(folder, ended)

    return work


def _end(folder: RunFolder, ended: Ended) -> None:
    """Do what `seerd run` does at its end, and say what is left."""
    on_end.result_of(folder, ended)
    for line in leftover_lines(ended.leftovers):
        _say(harmless(line))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _keep_quiet(line: str) -> None:
    """Say nothing."""


def _watcher(folder: RunFolder, *, show: bool) -> Watcher:
    """Write lines where there is no other view."""
    if show and not in_a_notebook():
        return lines_to(folder, sys.stderr)
    return lambda state, now_s, entries: None


# ------------------------------------------------------------ in the caller's thread


def wait(worker: Worker, *, show: bool) -> Run:
    """Show the run until it is over, and return it. Raises what the run's thread raises, and
    `KeyboardInterrupt` if this process was told to end meanwhile.
    """
    view = NotebookView() if show and in_a_notebook() else None
    with _signals_stop(worker):
        worker.start()
        while not worker.is_over(POLL_S):
            _show(view, worker)
    _show(view, worker, last=True)
    return _unless_interrupted(worker, KeyboardInterrupt)


async def wait_async(worker: Worker, *, show: bool) -> Run:
    """Do what `wait` does, and let the event loop go on. Raises `asyncio.CancelledError` if this
    task was cancelled, or this process told to end.
    """
    view = NotebookView() if show and in_a_notebook() else None
    with _signals_stop(worker):
        worker.start()
        while not worker.is_over():
            try:
                await asyncio.sleep(POLL_S)
            except asyncio.CancelledError:
                worker.stop()
            _show(view, worker)
    _show(view, worker, last=True)
    return _unless_interrupted(worker, asyncio.CancelledError)


def _show(view: NotebookView | None, worker: Worker, *, last: bool = False) -> None:
    if view is not None and worker.folder is not None:
        view.show(worker.folder, last=last)


def _unless_interrupted(worker: Worker, error: type[BaseException]) -> Run:
    found = worker.result()
    if worker.stops:
        goes_on = f"was interrupted; it goes on with seerd.load({found.id!r}).resume()"
        how = goes_on if found.state == "interrupted" else "had come to its end"
        raise error(f"{found.id} {how}")
    return found


@contextlib.contextmanager
def _signals_stop(worker: Worker) -> Iterator[None]:
    """Have the signals that end `seerd run` in order end this run so, whatever they did before.

    Only a main thread can; elsewhere they are left alone.
    """
    numbers = [
        number
        for number in (ENDING_SIGNALS if takes_signals() else ())
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    ]
    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in numbers}
    try:
        yield
    except BaseException:  # whatever it is, nobody waits for the run any more
        worker.stop()
        worker.is_over(None)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
