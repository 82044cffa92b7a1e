"""Reports and checkpoints of trials. Training goes on from what is stored: a report that a lost
attempt made after that is taken back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from seerd.core import events
from seerd.core.attempts import current
from seerd.core.events import Checkpoint
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import as_it_counts, good_enough, keep
from seerd.core.state import GOES_ON, State, Trial
from seerd.planner.model import Report
from seerd.planner.trial_ids import job_of

# a unit of work that takes so many times as long as the slowest of late brings the end forward at
# once; for less, the next event that leaves something to decide is soon enough
LONGER = 1.25


def training(event: events.TrialTraining, state: State) -> None:
    """Record that an attempt has reached its training loop."""
    trial = _reporting(state, event)
    if trial is not None:
        trial.training_s, trial.trained = event.happened, True
        rewind(trial, event.reports)


def reported(event: events.TrialReported, state: State) -> None:
    """Record a report."""
    trial = _reporting(state, event)
    if trial is None:
        return
    rewind(trial, event.reports - 1)
    metric = keep(state, trial, event)
    trial.history.append(Report(event.happened, event.reports, metric))
    signs, agenda, job = state.signs, state.agenda, state.jobs[job_of(trial.id)]
    agenda.reported = trial.id
    if trial.ordered_s is not None:
        signs.first_s = min(signs.first_s, event.happened - trial.ordered_s)
        trial.ordered_s = None
    signs.reported, signs.named = True, signs.named or event.named
    for what in GOES_ON:
        if (complaint := signs.complaints.get(what)) and complaint.trial == trial.id:
            del signs.complaints[what]
    signs.finite = signs.finite or event.metric is not None
    job.finite = job.finite or event.metric is not None
    if not job.finite:
        agenda.doubt = agenda.stirred = True
    if job.extra == trial.id:  # it trains beside the others: nothing is in the way any more
        job.block, job.extra, agenda.stirred = None, None, True
    trial.blocked_s.clear()
    if state.facts.goal_of(trial.id).target is not None:
        agenda.stirred |= job.empty or not state.facts.problem_of(job_of(trial.id)).saves
    agenda.stirred |= event.unit_s > LONGER * state.end.seen.unit_s
    state.end.seen.add_unit(event.unit_s, state.now)
    _took(state, event.unit_s)
    if trial.until is not None and event.reports >= trial.until:
        trial.reached, trial.until = trial.until, None
        state.plan.reached[trial.id] = None
        agenda.ask, agenda.about = "reports", trial.id
        agenda.stirred = True


def checkpointed(event: events.TrialCheckpointed, state: State) -> None:
    """Record a checkpoint that the agent has confirmed."""
    state.signs.outage = None
    trial = _reporting(state, event)
    if trial is None:
        return
    fields: dict[str, Any] = {name: getattr(event, name) for name in Checkpoint.__struct_fields__}
    confirm(state, trial, Checkpoint(**fields))
    trial.unstored = tuple(pair for pair in trial.unstored if pair[0] != event.instance)
    state.signs.free = event.free
    state.signs.save_s = max(state.signs.save_s, event.save_s)
    state.end.seen.saves.add(event.save_s)
    _took(state, event.save_s)


def fetched(event: events.CheckpointFetched, state: State) -> None:
    """Record a checkpoint that was fetched from an instance that could not store it."""
    trial = state.trials.get(event.checkpoint.trial)
    if trial is not None:
        trial.unstored = tuple(pair for pair in trial.unstored if pair[0] != event.instance)
        confirm(state, trial, event.checkpoint)


def _reporting(state: State, event: events.AttemptFact) -> Trial | None:
    """Return an event's trial, if its present attempt can still report. Only node 0 reports."""
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is None or trial.held is None or trial.held[0].node != event.instance:
        return None
    return trial


def rewind(trial: Trial, reports: int) -> None:
    """Take back a lost attempt's reports after the first `reports`: training goes on from there."""
    while trial.history and trial.history[-1].reports > reports:
        trial.others.pop(trial.history.pop().reports, None)


def fill(state: State, event: events.TrialReported) -> None:
    """Add a late report of a lost instance, if later reports show that it was not in vain."""
    trial = state.trials.get(event.trial)
    if trial is None or event.attempt != trial.attempt:
        return
    place = bisect_left(trial.history, event.reports, key=attrgetter("reports"))
    if place < len(trial.history) and trial.history[place].reports != event.reports:
        metric = keep(state, trial, event)
        trial.history.insert(place, Report(event.happened, event.reports, metric))


def take_saved(state: State, saved: Sequence[Checkpoint]) -> None:
    """Confirm checkpoints that no agent had reported, oldest first, and reports that they imply."""
    for checkpoint in saved:
        trial = state.trials.get(checkpoint.trial)
        if trial is None or trial.held is None or trial.attempt != checkpoint.attempt:
            continue
        if checkpoint.reports > trial.reports:
            trial.history.append(Report(state.now, checkpoint.reports, checkpoint.metric))
        confirm(state, trial, checkpoint)


def confirm(state: State, trial: Trial, new: Checkpoint) -> None:
    """Record that a checkpoint is in the store, behind newer ones, once."""
    if any(kept.name == new.name for kept in trial.checkpoints):
        return
    new = msgspec.structs.replace(new, metric=as_it_counts(state, new))
    newer = sum(kept.name > new.name for kept in trial.checkpoints)
    trial.checkpoints = (*trial.checkpoints[:newer], new, *trial.checkpoints[newer:])
    state.agenda.saved.append(trial.id)
    state.jobs[job_of(trial.id)].saved = True
    # A checkpoint that is reported after a model was handed back may be a better one.
    state.agenda.stirred = (
        state.agenda.stirred
        or job_of(trial.id) in state.result.no_model
        or state.phase is RunPhase.RELEASING
        or good_enough(state.facts.goal_of(trial.id), new.metric)
    )
    state.result.no_model.discard(job_of(trial.id))


def _took(state: State, seconds: float) -> None:
    """Note the seconds of a unit of work or a save; the slowest sets the grace period."""
    if seconds > state.end.slowest_s:
        state.end.slowest_s = seconds
        state.agenda.stirred = True
