"""Begins, resumes and ends runs: from a spec or a run's folder to a daemon and its result.

The one rule: everything that a resumed run needs is written into its folder before it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Iterable
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from seerd.backends.backend import MARGIN_S
from seerd.backends.base import Leftovers, Quote
from seerd.backends.bundle import build_agent
from seerd.clock import wall
from seerd.core.events import RunFacts, RunStarted
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import incumbent
from seerd.core.rules import closing_s, shortest_s
from seerd.core.state import State, new_state
from seerd.errors import JournalError, UsageError
from seerd.runs import clusters, unstored, wiring
from seerd.runs.reading import replay
from seerd.shell import edits
from seerd.shell.daemon import Daemon, Watcher
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Journal
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.source_copy import CopyTerms, Say, copy_source, outputs
from seerd.spec.experiment import Experiment
from seerd.spec.spec import Spec
from seerd.units import format_duration

COPY_SHARE = 1 / 6  # most of the time until the run must close that copying the source takes
COPY_S = 0.5  # seconds that it may take however short the run is
DISCARD_S = 0.5  # seconds for which the removal of a folder is waited for
TOLD_S = 1.0  # a clock that is less behind the journal is not reported, seconds
BEHIND = (
    "this machine's clock is at least {} behind, since the run's last event is later than now: the "
    "run goes on from that event, and keeps its limits from there; set the clock (timedatectl)"
)
# files that a run's coordinator, and each agent on its machine, must be able to open
LEAST_FILES = 64
START_S = 1.0  # seconds from the copy to the first trial's start


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over."""

    state: State  # its state at the end
    # what still exists of it, looked up afresh; None: nothing is rented
    leftovers: Leftovers | None = None


def create(
    experiment: Experiment,
    facts: RunFacts,
    home: Home,
    quote: Quote,
    origin: float,
    say: Say = lambda line: None,
) -> tuple[RunFolder, State]:
    """Make a new run's folder, ready to begin; if that fails, no folder is left. Raises
    `LimitsError` if the deadline leaves too little time to copy the source, `UsageError` if too few
    files may be opened.

    facts   what was decided about the run, by `planning.plans.facts_of`
    quote   what its cluster offers
    origin  when the run began, wall clock, seconds since 1970
    say     prints one line for the user
    """
    _raise_files()
    folder = home.new(experiment.name)
    with contextlib.ExitStack() as failing:
        failing.callback(_discard, folder)
        deadline_s = facts.problem.limits.deadline_s
        left_s = origin + deadline_s - closing_s(deadline_s, 0.0, facts.cluster) - wall()
        # most of it is for training, and a trial must have the time to start
        copy_s = min(left_s * COPY_SHARE, left_s - shortest_s(deadline_s) - START_S)
        ends = time.monotonic() + max(COPY_S, copy_s)
        folder.spec.write_text(experiment.text)
        elsewhere = clusters.of(experiment).elsewhere
        own = [
            copy_job(folder, job, CopyTerms(say, ends - time.monotonic(), deadline_s, elsewhere))
            for job in experiment.jobs
        ]
        build_agent(folder.agent)
        sizes, until = facts.outline.allocations, origin + deadline_s + MARGIN_S
        setup = wiring.setup_of(experiment, folder, sizes, quote, until, own)
        wiring.save(setup, folder)
        with Journal.create(folder.journal, origin):
            state = new_state(msgspec.structs.replace(facts, run=folder.run))
        failing.pop_all()
        return folder, state


def _raise_files() -> None:
    """Raise the limit of open files to what a run needs. Raises `UsageError` if that is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_FILES:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_FILES, hard))
    except ValueError as error:
        raise UsageError(
            f"a process may open {hard} files here (`ulimit -n`), and a run's coordinator and its "
            f"agents need {LEAST_FILES}; nothing was started. Run `ulimit -n 4096` first; if that "
            "is refused, ask who set the limit, or open a new shell"
        ) from error


def copy_job(folder: RunFolder, job: Spec, terms: CopyTerms) -> list[str]:
    """Copy a job's source, and its spec in a shared run; return the files of which each attempt
    gets a copy. Raises as `copy_source`, and `OSError`.
    """
    if job.id:
        folder.specs.mkdir(exist_ok=True)
        (folder.specs / f"{job.id}.toml").write_text(job.text)
        folder.source.mkdir(exist_ok=True)
    without = {*job.exported(), folder.path.parent.resolve()}
    terms = replace(terms, follow=job.train.follow)
    copy_source(job.train.source, folder.source / job.id, without, terms)
    edits.keep(folder, job)
    return outputs(folder.source / job.id, job.train.script)


def begin(folder: RunFolder, state: State, watcher: Watcher) -> Ended:
    """Run a run that `create` has made, until it is over; if it cannot begin, no folder is left."""
    try:
        with folder.locked(), Journal.open(folder.journal) as journal:
            daemon = Daemon(state, journal, _environment(folder, state), watcher)
            first = RunStarted(at=daemon.clock.now(), facts=state.facts)
            asyncio.run(daemon.begin(first))
            return _ended(daemon)
    except BaseException:
        if state.clock.seq == 0:  # nothing was recorded, so nothing was started
            _discard(folder)
        raise


def _discard(folder: RunFolder) -> None:
    """Remove the folder of a run that has not begun; a process goes on if the disk is busy."""
    quiet = subprocess.DEVNULL
    remover = subprocess.Popen(
        ["rm", "-rf", folder.path], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        remover.wait(DISCARD_S)


def resume(folder: RunFolder, watcher: Watcher) -> Ended:
    """Continue a run whose daemon was killed, or that was interrupted, until it is over. Raises
    `UsageError` if the run is over for good.
    """
    return copy_context().run(_resume, folder, watcher)  # the run's `wall` is its own


def _resume(folder: RunFolder, watcher: Watcher) -> Ended:
    _raise_files()
    with folder.locked(), Journal.open(folder.journal) as journal:
        state = replay(journal)
        latest_s = max(state.now, journal.lost_until)
        steady, note = journal.is_steady, _take_up_clock(journal, latest_s)
        better: unstored.Better = {}
        if state.phase is RunPhase.OVER and not lacks_its_model(state):
            better = {} if can_go_on(state) else unstored.unstored(folder, state)
            if not better:
                _reopen(folder, journal, state)
        # A daemon that extended the rental may have died before it noted that, and the clock may
        # have been set.
        setup = _setup_of(folder)
        until = journal.origin + state.facts.problem.limits.deadline_s + MARGIN_S
        if abs(setup.until - until) > 1:
            wiring.save(msgspec.structs.replace(setup, until=until), folder)
        stored = unstored.store(folder, state, better)
        daemon = Daemon(state, journal, _environment(folder, state), watcher)
        asyncio.run(daemon.resume(note, stored, steady=steady))
        return _ended(daemon)


def cut(folder: RunFolder, up_to: int) -> None:
    """Cut a damaged journal to its first `up_to` events, from which `resume` goes on. Raises
    `UsageError` if they are not whole, or the journal is, and `JournalError`.
    """
    with folder.locked(), Journal.open(folder.journal, read_only=True) as journal:
        whole = sum(1 for _ in journal.entries())
        if not journal.damage:
            raise UsageError(f"the journal of {folder.run} is whole: seerd resume {folder.run}")
        if not 0 < up_to <= whole:
            raise UsageError(f"--up-to {up_to}: {whole} events of {folder.run} are whole")
        journal.cut(up_to)


def _ended(daemon: Daemon) -> Ended:
    matters = daemon.state.facts.cluster.per_instance or daemon.leftovers.costing
    return Ended(daemon.state, daemon.leftovers if matters else None)


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
    environment = wiring.environment_of(setup, wiring.site_of(setup, folder), folder, state.facts)
    jobs = environment.jobs or [environment.job]
    require_secrets([name for job in jobs for name in job.secrets], f"seerd resume {folder.run}")
    return environment


def require_secrets(names: Iterable[str], then: str) -> None:
    """Raise `UsageError` if one of these variables is not set here. `then`: the command to type."""
    if missing := [name for name in dict.fromkeys(names) if name not in os.environ]:
        raise UsageError(
            f"train.secrets: {', '.join(missing)}: not set here, and trials get the values "
            f"from this environment: export {missing[0]}=..., then {then}"
        )


def can_go_on(state: State) -> bool:
    """Return whether trials of a run that is over may train again."""
    return state.end.status == "interrupted" and state.now < state.facts.problem.limits.deadline_s


def lacks_its_model(state: State) -> bool:
    """Return whether a run that is over still has its best model only in the store."""
    lacking = [name for name in state.jobs if name not in state.result.of_jobs]
    return state.end.status != "interrupted" and any(
        incumbent(state, name) is not None for name in lacking
    )


def _take_up_clock(journal: Journal, last_s: float) -> str:
    """Move a clock that is behind to the run's last event; return a note for the user, or none."""
    journal.take_up_wall()  # on the same boot the wall clock of now does not count
    behind_s = max(0.0, last_s - (wall() - journal.origin))
    journal.origin -= behind_s
    return BEHIND.format(format_duration(round(behind_s))) if behind_s > TOLD_S else ""


def _reopen(folder: RunFolder, journal: Journal, state: State) -> None:
    """Restart the clock of an interrupted run where it stopped. Raises `UsageError`."""
    if state.end.status != "interrupted":
        raise UsageError(
            f"{folder.run} is over ({state.end.status}); its result: seerd best {folder.run}"
        )
    left_s = state.facts.problem.limits.deadline_s - state.now
    if left_s <= 0:
        has_model = state.result.published is not None
        best = f"; its model: seerd best {folder.run} --to DIR" if has_model else ""
        raise UsageError(f"{folder.run} cannot go on: its deadline has passed{best}")
    journal.origin = wall() - state.now
