"""Begins, resumes and reads runs: from a spec or a run's folder to a daemon, or to the state at the end of its journal.

The one rule: everything that a resumed run needs is written into its folder before it begins.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path

import msgspec

from agent.protocol import Job
from seerd.core.events import RunFacts, RunStarted
from seerd.core.lifecycle import RunPhase
from seerd.core.limits import LEASE_S
from seerd.core.state import State, new_state
from seerd.errors import LimitsError, UsageError
from seerd.facts import Slots, local_slots
from seerd.machine import this_machine
from seerd.planning import Planned
from seerd.replay import replay
from seerd.shell.bundle import build_agent, copy_source
from seerd.shell.daemon import Daemon, Watcher
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Journal
from seerd.shell.providers.local import LocalProvider
from seerd.shell.stores.directory import DirectoryStore
from seerd.shell.world import World
from seerd.spec import Spec

GRACE_S = 10.0
CHECKPOINT_EVERY_S = 10.0


class Setup(msgspec.Struct, frozen=True):
    """What the daemon needs beyond the journal, kept as `setup.json` in the run's folder."""

    job: Job
    slots: Slots
    metric: str


def create(spec: Spec, planned: Planned, home: Home, origin: float) -> tuple[RunFolder, State]:
    """A new run's folder, ready to begin. `check_runnable` says before whether it can be."""
    slots = local_slots(spec.cluster.gpus, this_machine())
    folder = home.new(spec.name)
    facts = facts_of(spec, folder.run, planned)
    folder.spec.write_text(spec.text)
    copy_source(spec.train.source, folder.source)
    build_agent(folder.agent)
    store = Path(spec.cluster.store) / folder.run if spec.cluster.store else folder.store
    job = _job(spec, folder, store, slots, planned.outline.allocations)
    folder.setup.write_bytes(msgspec.json.encode(Setup(job, slots, spec.metric.name)))
    state = new_state(facts)
    with Journal.create(folder.journal, origin):
        return folder, state


def facts_of(spec: Spec, run: str, planned: Planned) -> RunFacts:
    """What the journal of a run begins with."""
    return RunFacts(
        run=run,
        name=spec.name,
        metric=spec.metric.name,
        mode=spec.metric.mode,
        problem=planned.problem,
        cluster=planned.cluster,
    )


def check_runnable(spec: Spec) -> None:
    """Raise `UsageError` for what the spec may say but this version cannot do."""
    if spec.cluster.provider != "local":
        raise UsageError(
            f"this version runs on this machine only; provider = {spec.cluster.provider!r} can be planned, not run"
        )
    if spec.cluster.store is not None and spec.cluster.store.startswith("s3://"):
        raise UsageError(f"this version keeps checkpoints in a directory, not in {spec.cluster.store}")
    if spec.train.data:
        raise UsageError(
            "train.data is for rented instances; on this machine, name the folder in the script or in train.args"
        )


def _job(spec: Spec, folder: RunFolder, store: Path, slots: Slots, allocations: list[int]) -> Job:
    return Job(
        source=str(folder.source.resolve()),
        script=spec.train.script,
        args=list(spec.train.args),
        launcher=spec.train.launcher,
        python=spec.train.python or sys.executable,
        env=dict(spec.train.env),
        setup=list(spec.train.setup),
        store=str(store.resolve()),
        metric=spec.metric.name,
        mode=spec.metric.mode,
        allocations=allocations,
        threads=slots.threads,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
    )


def begin(folder: RunFolder, state: State, watcher: Watcher) -> State:
    """Run a run that `create` made until it is over."""
    with folder.locked(), Journal.open(folder.journal) as journal:
        daemon = Daemon(state, journal, _world(folder, state), watcher)
        first = RunStarted(at=daemon.clock.now(), facts=state.facts)
        asyncio.run(daemon.begin(first))
        return daemon.state


def resume(folder: RunFolder, watcher: Watcher) -> State:
    """Go on with a run whose daemon was killed, or that was interrupted, until it is over."""
    with folder.locked(), Journal.open(folder.journal) as journal:
        state = replay(journal)
        if state.phase is RunPhase.OVER:
            _reopen(folder, journal, state)
        daemon = Daemon(state, journal, _world(folder, state), watcher)
        asyncio.run(daemon.resume())
        return daemon.state


def _reopen(folder: RunFolder, journal: Journal, state: State) -> None:
    """The clock of an interrupted run goes on from where it stopped; other runs that are over stay so."""
    if state.ending != "interrupted":
        raise UsageError(f"{folder.run} is over ({state.ending}); its result: seerd best {folder.run}")
    left_s = state.facts.problem.limits.deadline_s - state.now
    if left_s <= 0:
        raise LimitsError(f"the deadline of {folder.run} has passed", state.now, 0.0)
    journal.origin = time.time() - state.now


def _world(folder: RunFolder, state: State) -> World:
    setup = msgspec.json.decode(folder.setup.read_bytes(), type=Setup)
    folder.instances.mkdir(mode=0o700, exist_ok=True)
    provider = LocalProvider(
        folder=folder.instances,
        run=folder.run,
        bundle=folder.agent,
        gpus=setup.slots.gpus,
        cuda=setup.slots.cuda,
        lease_s=LEASE_S,
        grace_s=GRACE_S,
    )
    return World(
        provider=provider,
        store=DirectoryStore(Path(setup.job.store)),
        job=setup.job,
        run=folder.run,
        metric=state.facts.metric,
        result=folder.best,
    )


def read(folder: RunFolder) -> State:
    """The state at the end of a run's journal, whether its daemon lives or not."""
    return read_with_origin(folder)[0]


def read_with_origin(folder: RunFolder) -> tuple[State, float]:
    """The same, and when the run began, in seconds since 1970."""
    with Journal.open(folder.journal, read_only=True) as journal:
        return replay(journal), journal.origin


def copy_result(folder: RunFolder, to: Path) -> Path:
    """Copy the best model's checkpoint and configuration; where the checkpoint lies then."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "checkpoint.pt"):
            shutil.copyfile(folder.best / name, to / name)
    except OSError as error:
        raise UsageError(f"the model cannot be copied to {to}: {error.strerror} ({error.filename})") from error
    return to / "checkpoint.pt"
