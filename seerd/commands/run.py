"""`seerd run`, `resume` and `profile`: from what was asked for to the end of the run.

The one rule: what a run is told and asked in a terminal is here; how it begins is in
`seerd/commands/beginning.py`, which `seerd.run` shares.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from seerd.commands import beginning
from seerd.commands.common import STARTED, SpecOptions, quickly, say, tell
from seerd.view.harmless import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType

    from seerd.core.state import State
    from seerd.planning.facts import Intended, Place
    from seerd.runs.runs import Ended
    from seerd.shell.daemon import Watcher
    from seerd.shell.home import Home, RunFolder
    from seerd.spec.group import JobGroup
    from seerd.spec.spec import Spec

DEADLINE = "5m"
"""The deadline of `seerd profile`, if none is given."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a run is shown; both False: as a live view, if stdout is a terminal.

    plain  as one line per event
    json   as one JSON object at its end
    """

    plain: bool
    json: bool


def run(asked: SpecOptions, home: Home, shown: Shown, *, unless_running: bool = False) -> None:
    """Tune within the limits.

    unless_running  do nothing if a run of the same name is under way

    Raises `typer.Exit` with the exit code, and `SeerdError` if no run begins.
    """
    if not unless_running:
        _run(asked, home, shown)
        return
    from seerd.commands.alone import alone

    name = asked.group().lead.name if asked.is_group else asked.load().name
    with alone(home, name) as other:
        if other is None:
            _run(asked, home, shown)
            return
        tell(
            {"started": False, "why": other},
            lambda told: f"nothing was started: {told['why']}",
            json=shown.json,
        )


def _run(asked: SpecOptions, home: Home, shown: Shown) -> None:
    if asked.is_group:
        _run_group(asked.group(), home, shown)
        return
    spec, place = beginning.placed(asked.complete(), home, say)
    _begin(*_create(spec, home, place, asked), shown)


def _run_group(group: JobGroup, home: Home, shown: Shown) -> None:
    from seerd.shell.aside import aside

    group, place = beginning.placed_group(group, home, say)
    intended = aside(lambda: _intended_group(group, place))
    _begin(*beginning.create_group(group, home, place, intended, STARTED, say), shown)


def _intended_group(group: JobGroup, place: Place) -> Intended:
    with quickly():
        return beginning.intended_group(group, place)


def resume(folder: RunFolder, shown: Shown) -> None:
    """Continue a run. Raises `typer.Exit` with the exit code, `SeerdError` if it cannot go on."""
    from seerd.commands import on_end
    from seerd.runs import edits, runs

    on_end.catch_up(folder)
    if edited := edits.note(folder):
        print(edited, file=sys.stderr)
    _follow(folder, shown, lambda watcher: runs.resume(folder, watcher))


def profile(asked: SpecOptions, home: Home, shown: Shown) -> None:
    """Measure a script, and keep its profile. Raises what `run` raises."""
    asked = replace(asked, deadline=asked.deadline or DEADLINE, ideal=True)
    spec = asked.load()
    from seerd.commands import profiling
    from seerd.runs import clusters

    place = clusters.quoted(spec, home)
    spec = profiling.profiling_spec(spec, place.quote.facts, budget_given=asked.budget is not None)
    folder, state = _create(spec, home, place, asked)
    profiling.aim(folder, spec, place)
    _begin(folder, state, shown)


def _create(
    spec: Spec,
    home: Home,
    place: Place,
    asked: SpecOptions,
) -> tuple[RunFolder, State]:
    """Plan a run and make its folder."""
    from seerd.shell.aside import aside

    intended = aside(lambda: _intended(spec, place, asked))
    return beginning.create(spec, home, place, intended, STARTED, say)


def _intended(spec: Spec, place: Place, asked: SpecOptions) -> Intended:
    """Plan a run. What this imports is of no use to its daemon."""
    with quickly():
        return beginning.intended(spec, place, ideal=asked.ideal, minimize=asked.minimize)


def _begin(folder: RunFolder, state: State, shown: Shown) -> None:
    from seerd.runs import runs

    _follow(folder, shown, lambda watcher: runs.begin(folder, state, watcher))


def _follow(folder: RunFolder, shown: Shown, work: Callable[[Watcher], Ended]) -> None:
    """Show the run, then its result and what is left of it. Raises `typer.Exit` with the exit
    code.
    """
    from seerd.commands.exporting import exporting

    with exporting(folder), _watcher(folder, shown) as watcher:
        ended = work(watcher)
    code = _tell_result(folder, ended, shown)
    sys.stdout.flush()
    if ended.leftovers is None:
        raise typer.Exit(code)
    from seerd.view.summary import leftover_lines

    for line in leftover_lines(ended.leftovers):
        print(harmless(line), file=sys.stderr)
    raise typer.Exit(1 if ended.leftovers.costing else code)


def _tell_result(folder: RunFolder, ended: Ended, shown: Shown) -> int:
    """Show what came of the run; return its exit code."""
    from seerd.commands import on_end
    from seerd.view import run_json

    state = ended.state
    code = run_json.exit_code(state)
    if folder.target.is_file() and code != run_json.EXIT_INTERRUPTED:
        from seerd.commands import profiling
        from seerd.view.profile_table import profile_view

        tell(profiling.finish(folder, state), profile_view, json=shown.json)
        return 0
    tell(on_end.result_of(folder, ended), lambda _: _summary(state), json=shown.json)
    return code


def _summary(state: State) -> RenderableType:
    from seerd.view.summary import summary

    return summary(state)


@contextlib.contextmanager
def _watcher(folder: RunFolder, shown: Shown) -> Iterator[Watcher]:
    """Choose how a run is shown: a live view on a terminal, else lines (on stderr if stdout has
    JSON).
    """
    from seerd.commands.watch import drawable

    if shown.json or shown.plain or not drawable():
        from seerd.view.watch import lines_to

        yield lines_to(folder, sys.stderr if shown.json else sys.stdout)
        return
    from seerd.live.run_view import live_watcher  # rich costs more to import than lines need

    with live_watcher(folder) as watcher:
        yield watcher
