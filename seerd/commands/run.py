"""`seerd run`, `resume` and `profile` in a terminal; how a run begins is in `beginning.py`, which
`seerd.run` shares.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from seerd import telling
from seerd.commands import beginning
from seerd.commands.common import STARTED, quickly, say, tell
from seerd.commands.options import Shown, SpecOptions
from seerd.units import SLOW_S

if TYPE_CHECKING:
    from seerd.backends.base import Quote
    from seerd.core.events import RunFacts
    from seerd.core.state import State
    from seerd.runs.runs import Ended
    from seerd.shell.daemon import Watcher
    from seerd.shell.home import Home, RunFolder
    from seerd.spec.experiment import Experiment

DEADLINE = "5m"  # the deadline of `seerd profile`, if none is given
NAMED = re.compile(r"(.+)-\d{8}-\d{6}-[0-9a-f]{4}")  # the id of a run: its name comes first


def run(
    asked: SpecOptions,
    home: Home,
    shown: Shown,
    *,
    unless_running: bool = False,
    need_model: bool = False,
) -> None:
    """Tune within the limits. Raises `typer.Exit` with the code, `SeerdError` if no run begins."""
    with alone(home, asked.load().name) if unless_running else contextlib.nullcontext() as other:
        if other is not None:
            nothing = {"started": False, "why": other}
            tell(nothing, lambda _: f"nothing was started: {other}", json=shown.json)
            return
        experiment = asked.complete()
        with _in_time(experiment.limits.deadline_s):
            experiment, quote = beginning.placed(experiment, home, say)
            folder, state = _create(experiment, home, quote, asked)
        _begin(folder, state, shown, need_model=need_model)


@contextlib.contextmanager
def alone(home: Home, name: str) -> Iterator[str | None]:
    """Yield None if no run of this name goes on in this home, and keep others that ask from
    beginning until the block ends; else yield a sentence on the one that does.

    The lock is the system's: it ends with the process, however that ends. A run that was begun
    without asking is found by its own lock. Raises `UsageError` if the home cannot be used.
    """
    path = home.path / ".names" / name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        from seerd.errors import UsageError

        raise UsageError(
            f"the folder of all runs, {home.path}, cannot be used: {error.strerror}; name "
            "another one with --home or SEERD_HOME"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _running(home, name) or f"a run of the name {name} is just beginning"
            return
        yield _running(home, name)


def _running(home: Home, name: str) -> str | None:
    for folder in home.runs():
        named = NAMED.fullmatch(folder.run)
        if named and named[1] == name and (owner := folder.owner()) is not None:
            return f"{folder.run} is running (process {owner})"
    return None


@contextlib.contextmanager
def _in_time(deadline_s: float | None) -> Iterator[None]:
    """End the command with `LimitsError` when no trial could start by the deadline any more."""
    if deadline_s is None:
        yield
        return

    def too_late(*_: object) -> None:
        raise beginning.too_late(deadline_s, time.time() - STARTED)

    least_s = beginning.latest_s(deadline_s)
    # A deadline that is too short for any machine is refused by the plan, which says how long it
    # must be.
    latest_s = deadline_s - (least_s if deadline_s > least_s + 0.5 else 0.0)
    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, STARTED + latest_s - time.time()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def resume(
    folder: RunFolder, shown: Shown, up_to: int | None = None, *, need_model: bool = False
) -> None:
    """Continue a run; `up_to`: from so many events of a damaged journal. Raises `typer.Exit` with
    the exit code, `SeerdError` if it cannot go on.
    """
    from seerd.commands import on_end
    from seerd.runs import runs
    from seerd.shell import edits

    if up_to is not None:
        runs.cut(folder, up_to)
    on_end.catch_up(folder)
    if edited := edits.note(folder):
        say(edited)
    _follow(folder, shown, lambda watcher: runs.resume(folder, watcher), need_model=need_model)


def profile(asked: SpecOptions, home: Home, shown: Shown) -> None:
    """Measure a script, and keep its profile. Raises what `run` raises."""
    asked = replace(asked, deadline=asked.deadline or DEADLINE, ideal=True)
    spec = asked.job()
    from seerd.commands import profiling
    from seerd.runs import clusters
    from seerd.spec.experiment import of_one

    clusters.of(spec).check(spec)
    quote = clusters.quote(spec)
    spec = profiling.profiling_spec(spec, quote.facts, budget_given=asked.budget is not None)
    folder, state = _create(of_one(spec), home, quote, asked)
    profiling.aim(folder, spec, quote)
    _begin(folder, state, shown)


def _create(
    experiment: Experiment, home: Home, quote: Quote, asked: SpecOptions
) -> tuple[RunFolder, State]:
    """Plan a run and make its folder; report how long planning took, if that was long."""
    from seerd.shell.aside import aside

    def planned() -> tuple[RunFacts, Quote]:  # what this imports is of no use to the run's daemon
        quickly()
        from seerd.planning.cheapest import cheapest_first
        from seerd.planning.plans import facts_of

        minimize = asked.minimize
        chosen = cheapest_first(experiment, home, quote, minimize)
        facts = facts_of(experiment, home, chosen, ideal=asked.ideal, minimize=minimize)
        return facts, chosen

    def prepared() -> None:
        from seerd.runs import runs  # noqa: F401 - half of what comes before a run's first second

    began = time.monotonic()
    facts, quote = aside(planned, prepared)
    took_s = time.monotonic() - began
    if took_s >= SLOW_S:
        say(f"planning took {took_s:.1f}s, and counts towards the deadline: this machine is busy")
    return beginning.create(experiment, facts, home, quote, STARTED, say)


def _begin(folder: RunFolder, state: State, shown: Shown, *, need_model: bool = False) -> None:
    from seerd.runs import runs

    begun = functools.partial(runs.begin, folder, state)
    _follow(folder, shown, begun, need_model=need_model)


def _follow(
    folder: RunFolder, shown: Shown, work: Callable[[Watcher], Ended], *, need_model: bool
) -> None:
    """Show the run, its result and what is left. Raises `typer.Exit` with the exit code."""
    from seerd.commands.exporting import exporting
    from seerd.runs import unstored

    with exporting(folder), _watcher(folder, shown) as watcher:
        ended = work(watcher)
    code = _print_result(folder, ended, shown, need_model=need_model)
    sys.stdout.flush()
    for line in unstored.note(folder, ended.state):
        say(line)
    if ended.leftovers is None:
        raise typer.Exit(code)
    from seerd.telling.summary import leftover_lines

    for line in leftover_lines(ended.leftovers):
        say(line)
    raise typer.Exit(1 if ended.leftovers.costing else code)


def _print_result(folder: RunFolder, ended: Ended, shown: Shown, *, need_model: bool) -> int:
    """Print the result; return the exit code."""
    from seerd.commands import on_end
    from seerd.telling import run_json

    state = ended.state
    code = run_json.exit_code(state, need_model=need_model)
    if folder.target.is_file() and code != run_json.EXIT_INTERRUPTED:
        from seerd.commands import profiling

        profile = profiling.finish(folder, state)
        tell(profile, lambda _: telling.tables.profile_view(profile), json=shown.json)
        return 0
    result = on_end.result_of(folder, ended)
    tell(result, lambda _: telling.summary.summary(state), json=shown.json)
    return code


@contextlib.contextmanager
def _watcher(folder: RunFolder, shown: Shown) -> Iterator[Watcher]:
    """Choose how a run is shown: a live view, or lines (on stderr if stdout has JSON)."""
    from seerd.commands.running import drawable

    if shown.json or shown.plain or not drawable():
        from seerd.telling.plain import lines_to

        yield lines_to(folder, sys.stderr if shown.json else sys.stdout)
        return
    from seerd.telling.live.viewer import live_watcher  # rich costs more than lines need

    with live_watcher(folder) as watcher:
        yield watcher
