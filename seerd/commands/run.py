"""`seerd run`, `resume` and `profile`: from what was asked for to the end of the run.

The one rule: what a run is told and asked in a terminal is here; how it begins is in
`seerd/commands/beginning.py`, which `seerd.run` shares.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from seerd.commands import beginning
from seerd.commands.common import STARTED, quickly, say, tell
from seerd.commands.options import Shown, SpecOptions
from seerd.units import SLOW_S

if TYPE_CHECKING:
    from rich.console import RenderableType

    from seerd.backends.base import Quote
    from seerd.core.events import RunFacts
    from seerd.core.state import State
    from seerd.runs.runs import Ended
    from seerd.shell.daemon import Watcher
    from seerd.shell.home import Home, RunFolder
    from seerd.shell.journal import Entry
    from seerd.spec.experiment import Experiment

DEADLINE = "5m"
"""The deadline of `seerd profile`, if none is given."""


def run(asked: SpecOptions, home: Home, shown: Shown, *, unless_running: bool = False) -> None:
    """Tune within the limits.

    unless_running  do nothing if a run of the same name is under way

    Raises `typer.Exit` with the exit code, and `SeerdError` if no run begins.
    """
    if not unless_running:
        _run(asked, home, shown)
        return
    from seerd.commands.alone import alone

    with alone(home, asked.load().name) as other:
        if other is None:
            _run(asked, home, shown)
            return
        tell(
            {"started": False, "why": other},
            lambda told: f"nothing was started: {told['why']}",
            json=shown.json,
        )


def _run(asked: SpecOptions, home: Home, shown: Shown) -> None:
    experiment = asked.complete()
    with _in_time(experiment.limits.deadline_s):
        experiment, quote = beginning.placed(experiment, home, say)
        folder, state = _create(experiment, home, quote, asked)
    _begin(folder, state, shown)


@contextlib.contextmanager
def _in_time(deadline_s: float | None) -> Iterator[None]:
    """End the block, and the command, when it is too late for a trial to start by the deadline.
    Raises `LimitsError` then.
    """
    if deadline_s is None:
        yield
        return
    least_s = beginning.latest_s(deadline_s)

    def too_late(*_: object) -> None:
        raise beginning.too_late(deadline_s, time.time() - STARTED)

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


def resume(folder: RunFolder, shown: Shown, up_to: int | None = None) -> None:
    """Continue a run, from so many events of a damaged journal if `up_to` is given.

    Raises `typer.Exit` with the exit code, `SeerdError` if it cannot go on.
    """
    from seerd.commands import on_end
    from seerd.runs import edits, runs

    if up_to is not None:
        runs.cut(folder, up_to)
    on_end.catch_up(folder)
    if edited := edits.note(folder):
        say(edited)
    _follow(folder, shown, lambda watcher: runs.resume(folder, watcher))


def profile(asked: SpecOptions, home: Home, shown: Shown) -> None:
    """Measure a script, and keep its profile. Raises what `run` raises."""
    asked = replace(asked, deadline=asked.deadline or DEADLINE, ideal=True)
    spec = asked.job()
    from seerd.commands import profiling
    from seerd.runs import clusters
    from seerd.spec.experiment import of_one

    clusters.of(spec).check(spec)
    quote = clusters.quote(spec, home)
    spec = profiling.profiling_spec(spec, quote.facts, budget_given=asked.budget is not None)
    folder, state = _create(of_one(spec), home, quote, asked)
    profiling.aim(folder, spec, quote)
    _begin(folder, state, shown)


def _create(
    experiment: Experiment, home: Home, quote: Quote, asked: SpecOptions
) -> tuple[RunFolder, State]:
    """Plan a run and make its folder; report how long planning took, if that was long."""
    from seerd.shell.aside import aside

    def planned() -> RunFacts:  # what this imports is of no use to the run's daemon
        with quickly():
            return beginning.planned(
                experiment, home, quote, ideal=asked.ideal, minimize=asked.minimize
            )

    began = time.monotonic()
    facts = aside(planned)
    took_s = time.monotonic() - began
    if took_s >= SLOW_S:
        say(f"planning took {took_s:.1f}s, and counts towards the deadline: this machine is busy")
    return beginning.create(experiment, facts, home, quote, STARTED, say)


def _begin(folder: RunFolder, state: State, shown: Shown) -> None:
    from seerd.runs import runs

    _follow(folder, shown, lambda watcher: runs.begin(folder, state, watcher))


def _follow(folder: RunFolder, shown: Shown, work: Callable[[Watcher], Ended]) -> None:
    """Show the run, then its result and what is left of it. Raises `typer.Exit` with the exit
    code.
    """
    from seerd.commands.exporting import exporting
    from seerd.runs import unstored

    with exporting(folder), _watcher(folder, shown) as watcher:
        ended = work(watcher)
    code = _tell_result(folder, ended, shown)
    sys.stdout.flush()
    for line in unstored.note(folder, ended.state):
        say(line)
    if ended.leftovers is None:
        raise typer.Exit(code)
    from seerd.telling.summary import leftover_lines

    for line in leftover_lines(ended.leftovers):
        say(line)
    raise typer.Exit(1 if ended.leftovers.costing else code)


def _tell_result(folder: RunFolder, ended: Ended, shown: Shown) -> int:
    """Show what came of the run; return its exit code."""
    from seerd.commands import on_end
    from seerd.telling import run_json

    state = ended.state
    code = run_json.exit_code(state)
    if folder.target.is_file() and code != run_json.EXIT_INTERRUPTED:
        from seerd.commands import profiling
        from seerd.telling.profile_table import profile_view

        tell(profiling.finish(folder, state), profile_view, json=shown.json)
        return 0
    tell(on_end.result_of(folder, ended), lambda _: _summary(state), json=shown.json)
    return code


def _summary(state: State) -> RenderableType:
    from seerd.telling.summary import summary

    return summary(state)


@contextlib.contextmanager
def _watcher(folder: RunFolder, shown: Shown) -> Iterator[Watcher]:
    """Choose how a run is shown: a live view on a terminal, else lines (on stderr if stdout has
    JSON).
    """
    from seerd.commands.watch import drawable

    if shown.json or shown.plain or not drawable():
        from seerd.telling.watch import lines_to

        lines = lines_to(folder, sys.stderr if shown.json else sys.stdout)
        yield lines if shown.json else _ready_for_its_end(lines)
        return
    from seerd.telling.live.viewer import (
        live_watcher,  # rich costs more to import than lines need
    )

    with live_watcher(folder) as watcher:
        yield watcher


def _ready_for_its_end(watcher: Watcher) -> Watcher:
    """Import what shows the result while trials save: later, a busy machine has no time for it."""
    from seerd.core.lifecycle import RunPhase

    def watch(state: State, now_s: float, entries: list[Entry]) -> None:
        if state.phase is not RunPhase.RUNNING:
            import rich.console  # noqa: F401

            import seerd.telling.summary  # noqa: F401
        watcher(state, now_s, entries)

    return watch
