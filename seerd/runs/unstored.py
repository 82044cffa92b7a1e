"""Better models of a run on this machine that its checkpoint store had no room for (full, not
writable, over its quota). They stay in the run's folder, and can be stored once there is room.
"""

from __future__ import annotations

from pathlib import Path

from seerd.agent.manifest import CheckpointError, Comparison, Manifest
from seerd.agent.transfer import Directory, good
from seerd.core.events import Checkpoint
from seerd.core.metrics import as_it_counts, chosen, saves_no_model, sign_of, violated_by
from seerd.core.state import State
from seerd.errors import StoreError
from seerd.planner.trial_ids import job_of
from seerd.shell.home import RunFolder

Better = dict[str, tuple[Path, Checkpoint]]  # by job: a model that is only in this folder


def unstored(folder: RunFolder, state: State) -> Better:
    """Return each job's best whole model that is not stored, if it is better than its result."""
    better: Better = {}
    for path in folder.instances.glob("*/trials/*/checkpoints/[!.]*.json"):
        trial = state.trials.get(path.parent.parent.name)
        if trial is None or saves_no_model(state, job_of(trial.id)):
            continue
        if any(path.stem == stored.name for stored in trial.checkpoints):
            continue
        from seerd.shell.left_behind import saved_of  # many modules, and few runs get here

        job, goal = job_of(trial.id), state.facts.goal_of(trial.id)
        try:
            manifest = Manifest.read(path)
        except CheckpointError:
            continue
        saved = saved_of(trial.id, trial.attempt, manifest, goal.metric)
        best = better[job][1] if job in better else chosen(state, job)
        worth = None if violated_by(manifest.metrics, goal) else as_it_counts(state, saved)
        if worth is None or (best and sign_of(goal) * (worth - (best.metric or 0.0)) <= 0):
            continue
        if good(path.parent, path.stem):
            better[job] = path.parent, saved
    return better


def store(folder: RunFolder, state: State, better: Better) -> tuple[Checkpoint, ...]:
    """Put these models into the store; return them. Raises `StoreError` if there still is no room,
    `JournalError` if the store is unknown.
    """
    from seerd.runs import wiring

    for local, saved in better.values():
        goal = state.facts.goal_of(saved.trial)
        to = Path(wiring.load(folder).store) / saved.trial
        try:
            Directory(to, Comparison(goal.metric, goal.mode)).put(local, saved.name)
        except CheckpointError as error:
            raise StoreError(
                f"the better model of {saved.trial} still cannot be stored: {error}; make room, "
                f"then: seerd resume {folder.run}"
            ) from error
    return tuple(saved for _, saved in better.values())


def note(folder: RunFolder, state: State) -> list[str]:
    """List which better models could not be stored, and what to do."""
    return [
        f"a model of {saved.trial} ({state.facts.goal_of(saved.trial).metric} {saved.metric:.6g}, "
        f"{saved.reports} reports) is better, and was not stored: it is in {local}; if the store "
        f"is full or cannot be written, mend that, then: seerd resume {folder.run}"
        for local, saved in unstored(folder, state).values()
    ]
