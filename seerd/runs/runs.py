"""Begins, resumes and ends runs: from a spec or a run's folder to a daemon, and to what it leaves.

The one rule: everything that a resumed run needs is written into its folder before it begins.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from seerd.core.events import RunFacts, RunStarted
from seerd.core.incumbent import incumbent
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State, new_state
from seerd.errors import JournalError, UsageError
from seerd.planning.facts import Intended, Quote
from seerd.runs import clusters, wiring
from seerd.runs.reading import replay
from seerd.shell.bundle import build_agent, copy_source
from seerd.shell.clock import wall
from seerd.shell.daemon import Daemon, Watcher
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Journal
from seerd.shell.providers.base import Leftovers
from seerd.shell.run_environment import RunEnvironment
from seerd.spec.spec import Spec


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over.

    state      its state at the end
    leftovers  what there still is of it, asked afresh; None: nothing is rented
    """

    state: State
    leftovers: Leftovers | None = None


def create(
    spec: Spec, intended: Intended, home: Home, origin: float, quote: Quote
) -> tuple[RunFolder, State]:
    """Make a new run's folder, ready to begin; if that fails, no folder is left.

    origin  when the run began, wall clock, seconds since 1970
    quote   what its cluster offers; `clusters.quoted` has checked that the spec can be run
    """
    folder = home.new(spec.name)
    try:
        return folder, _fill(folder, spec, intended, origin, quote)
    except (OSError, JournalError):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _fill(folder: RunFolder, spec: Spec, intended: Intended, origin: float, quote: Quote) -> State:
    facts = facts_of(spec, folder.run, intended)
    folder.spec.write_text(spec.text)
    copy_source(spec.train.source, folder.source)
    build_agent(folder.agent)
    until = origin + facts.problem.limits.deadline_s + wiring.MARGIN_S
    setup = wiring.setup_of(spec, folder, intended.outline.allocations, quote, until)
    wiring.save(setup, folder)
    state = new_state(facts)
    with Journal.create(folder.journal, origin):
        return state


def facts_of(spec: Spec, run: str, intended: Intended) -> RunFacts:
    """Collect what the journal of a run begins with."""
    return RunFacts(
        run=run,
        name=spec.name,
        metric=spec.metric.name,
        mode=spec.metric.mode,
        target=spec.metric.target,
        smooth=spec.metric.smooth,
        problem=intended.problem,
        cluster=intended.cluster,
        outline=intended.outline,
    )


def begin(folder: RunFolder, state: State, watcher: Watcher) -> Ended:
    """Run a run that `create` has made, until it is over."""
    with folder.locked(), Journal.open(folder.journal) as journal:
        daemon = Daemon(state, journal, _environment(folder, state), watcher)
        first = RunStarted(at=daemon.clock.now(), facts=state.facts)
        asyncio.run(daemon.begin(first))
        return _ended(daemon)


def resume(folder: RunFolder, watcher: Watcher) -> Ended:
    """Continue a run whose daemon was killed, or that was interrupted, until it is over.

    Raises `UsageError` if the run is over for good.
    """
    with folder.locked(), Journal.open(folder.journal) as journal:
        state = replay(journal)
        if state.phase is RunPhase.OVER and not lacks_its_model(state):
            _reopen(folder, journal, state)
        daemon = Daemon(state, journal, _environment(folder, state), watcher)
        asyncio.run(daemon.resume())
        return _ended(daemon)


def _ended(daemon: Daemon) -> Ended:
    told = daemon.state.facts.cluster.per_instance or daemon.leftovers.costing
    return Ended(daemon.state, daemon.leftovers if told else None)


def _setup_of(folder: RunFolder) -> wiring.Setup:
    """Read the setup of a run that is where it began. Raises `JournalError` for any other."""
    setup, is_in = wiring.load(folder), folder.path.resolve()
    made_in = Path(setup.job.source).parent
    if made_in.is_absolute() and made_in != is_in:
        raise JournalError(
            f"{folder.run} cannot go on here: its scripts and checkpoints are looked for in "
            f"{made_in}, where it began, and it is in {is_in} now; move it back to resume it"
        )
    return setup


def _environment(folder: RunFolder, state: State) -> RunEnvironment:
    setup = _setup_of(folder)
    return wiring.environment_of(setup, clusters.site_of(setup, folder), folder, state.facts)


def lacks_its_model(state: State) -> bool:
    """Tell whether a run that is over still has its best model only in the store."""
    return (
        state.end.status != "interrupted"
        and state.result.published is None
        and incumbent(state) is not None
    )


def _reopen(folder: RunFolder, journal: Journal, state: State) -> None:
    """Restart the clock of an interrupted run where it stopped.

    Raises `UsageError` for other runs that are over, and if the deadline has passed.
    """
    if state.end.status != "interrupted":
        raise UsageError(
            f"{folder.run} is over ({state.end.status}); its result: seerd best {folder.run}"
        )
    left_s = state.facts.problem.limits.deadline_s - state.now
    if left_s <= 0:
        best = (
            ""
            if state.result.published is None
            else f"; its model: seerd best {folder.run} --to DIR"
        )
        raise UsageError(f"{folder.run} cannot go on: its deadline has passed{best}")
    setup = _setup_of(folder)
    journal.origin = wall() - state.now
    wiring.save(wiring.prolonged(setup, wall() + left_s + wiring.MARGIN_S), folder)
