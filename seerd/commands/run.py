"""`seerd run`, `resume` and `profile`: from what was asked for to the end of the run.

The one rule: what can be refused is refused before anything is started. So that a mistake is told
at once, only what looks for it is imported before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from seerd.commands.common import STARTED, SpecOptions, tell
from seerd.view.harmless import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType

    from seerd.core.state import State
    from seerd.planning.facts import Intended, Place
    from seerd.runs.runs import Ended
    from seerd.shell.daemon import Watcher
    from seerd.shell.home import Home, RunFolder
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


def run(asked: SpecOptions, home: Home, shown: Shown) -> None:
    """Tune within the limits.

    Raises `SystemExit` with the exit code, and `SeerdError` if no run begins.
    """
    spec = asked.complete()
    from seerd.runs import clusters, earlier
    from seerd.spec.clusters import Ec2Cluster

    spec = earlier.informed(spec, home)
    for line in offered(spec, home):
        print(line, file=sys.stderr)
    place = clusters.quoted(spec, home)
    if isinstance(spec.cluster, Ec2Cluster):
        from seerd.commands import sweep

        for line in sweep.before_a_run(home, spec.cluster.region, place.quote.owner):
            print(line, file=sys.stderr)
    _begin(*_create(spec, home, place, asked), shown)


def offered(spec: Spec, home: Home) -> list[str]:
    """Say that there are runs to learn from; nothing if there are none, or some are named."""
    from seerd.runs import earlier

    found = [] if spec.like or spec.policy.name == "grid" else earlier.alike(spec, home)
    if not found:
        return []
    runs = "1 earlier run" if len(found) == 1 else f"{len(found)} earlier runs"
    return [f"{runs} of this script; to learn from the newest: --like {found[-1]}"]


def resume(folder: RunFolder, shown: Shown) -> None:
    """Continue a run. Raises `SystemExit` with the exit code, `SeerdError` if it cannot go on."""
    from seerd.runs import runs

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
    from seerd.runs import clusters, runs
    from seerd.shell.aside import aside

    intended = aside(lambda: _intended(spec, place, asked))
    clusters.of(spec).check_quota(intended)
    return runs.create(spec, intended, home, STARTED, place.quote)


def _intended(spec: Spec, place: Place, asked: SpecOptions) -> Intended:
    """Plan a run. What this imports is of no use to its daemon."""
    from seerd.planning import plans
    from seerd.planning.facts import Intended

    planned = plans.of_spec(spec, place, ideal=asked.ideal, minimize=asked.minimize)
    return Intended(planned.problem, planned.outline, planned.cluster)


def _begin(folder: RunFolder, state: State, shown: Shown) -> None:
    from seerd.runs import runs

    _follow(folder, shown, lambda watcher: runs.begin(folder, state, watcher))


def _follow(folder: RunFolder, shown: Shown, work: Callable[[Watcher], Ended]) -> None:
    """Show the run, then its result and what is left of it. Raises `SystemExit` with the exit
    code.
    """
    with _watcher(folder, shown) as watcher:
        ended = work(watcher)
    code = _tell_result(folder, ended, shown)
    sys.stdout.flush()
    if ended.leftovers is None:
        raise SystemExit(code)
    from seerd.view.summary import leftover_lines

    for line in leftover_lines(ended.leftovers):
        print(harmless(line), file=sys.stderr)
    raise SystemExit(1 if ended.leftovers.costing else code)


def _tell_result(folder: RunFolder, ended: Ended, shown: Shown) -> int:
    """Show what came of the run; return its exit code."""
    from seerd.view import run_json

    state = ended.state
    code = run_json.exit_code(state)
    if folder.target.is_file() and code != run_json.EXIT_INTERRUPTED:
        from seerd.commands import profiling
        from seerd.view.profile_table import profile_view

        tell(profiling.finish(folder, state), profile_view, json=shown.json)
        return 0
    status = run_json.status_of(state, folder.owner() is not None)
    told = {**run_json.result(state, status), **run_json.leftovers(ended.leftovers)}
    tell(told, lambda _: _summary(state), json=shown.json)
    return code


def _summary(state: State) -> RenderableType:
    from seerd.view.summary import summary

    return summary(state)


@contextlib.contextmanager
def _watcher(folder: RunFolder, shown: Shown) -> Iterator[Watcher]:
    """Choose how a run is shown: a live view on a terminal, else lines (on stderr if stdout has
    JSON).
    """
    from seerd.view.watch import lines_to, live_watcher

    if shown.json or shown.plain or not sys.stdout.isatty():
        yield lines_to(folder, sys.stderr if shown.json else sys.stdout)
        return
    with live_watcher(folder) as watcher:
        yield watcher
