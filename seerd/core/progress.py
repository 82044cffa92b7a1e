"""What trials have done: reports and checkpoints.

The one rule: training goes on from what is stored; a report that was made after it, by an attempt
that was lost, is taken back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from seerd.core.events import Checkpoint, TrialCheckpointed, TrialReported, TrialTraining
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State, Trial
from seerd.planner.model import Report


def reporting(
    state: State, event: TrialTraining | TrialReported | TrialCheckpointed
) -> Trial | None:
    """The trial of which this is so, if its present attempt can still say so: node 0 speaks for
    all.
    """
    trial = state.trials.get(event.trial)
    if trial is None or trial.held is None or trial.attempt != event.attempt:
        return None
    return (
        trial if trial.held[0].node == event.instance and event.instance not in trial.ends else None
    )


def rewind(trial: Trial, reports: int) -> None:
    """Training goes on after so many `reports`: later ones, made by an attempt that was lost, are
    taken back.
    """
    while trial.history and trial.history[-1].reports > reports:
        trial.history.pop()


def fill(state: State, event: TrialReported) -> None:
    """A report that comes when its instance is gone, and its trial has gone on from what was found
    in the store.
    """
    trial = state.trials.get(event.trial)
    if trial is None or event.attempt != trial.attempt:
        return
    place = bisect_left(trial.history, event.reports, key=attrgetter("reports"))
    if place < len(trial.history) and trial.history[place].reports != event.reports:
        trial.history.insert(place, Report(event.happened, event.reports, event.metric))


def take_saved(state: State, saved: Sequence[Checkpoint]) -> None:
    """Checkpoints that nobody had told of, oldest first: training goes on from the newest."""
    for one in saved:
        trial = state.trials.get(one.trial)
        if trial is None or trial.held is None or trial.attempt != one.attempt:
            continue
        if one.reports > trial.reports:
            trial.history.append(Report(state.now, one.reports, one.metric))
        confirm(state, trial, one)


def confirm(state: State, trial: Trial, new: Checkpoint) -> None:
    """It is in the store; told again, it changes nothing."""
    if any(known.name == new.name for known in trial.checkpoints):
        return
    trial.checkpoints = (new, *trial.checkpoints)
    state.agenda.saved.append(trial.id)
    # What is told late, after a model had been handed back, may be a better one.
    state.agenda.stirred = (
        state.agenda.stirred or state.result.no_model or state.phase is RunPhase.RELEASING
    )
    state.result.no_model = False


def took(state: State, seconds: float) -> None:
    """A unit of work or a save: the slowest one decides how early trials are asked to stop."""
    if seconds > state.end.slowest_s:
        state.end.slowest_s = seconds
        state.agenda.stirred = True
