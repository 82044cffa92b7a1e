"""What a run hands back: of each job its best model or, if its script saves none by design, its
best configuration.

The one rule: a job whose checkpoints were promised and did not come has no result.
"""

from __future__ import annotations

from typing import Literal

from seerd.core.failures import has_failed, tried
from seerd.core.metrics import best_report, chosen, saves_no_model
from seerd.core.state import State, Trial
from seerd.planner.model import Report

ResultKind = Literal["model", "configuration"]


def result_of(state: State, job: str | None = None) -> ResultKind | None:
    """Return what a job (None: the first one) has to hand back now; None: nothing."""
    if chosen(state, job) is not None:
        return "model"
    return None if best_configuration(state, job) is None else "configuration"


def best_configuration(state: State, job: str | None = None) -> tuple[Trial, Report] | None:
    """Return the best report of a job (None: the first one) and its trial, once the run is over and
    if its script saves no model by design; else None.
    """
    name = next(iter(state.jobs)) if job is None else job
    if not state.finished or chosen(state, name) is not None or is_promised(state, name):
        return None
    if all(has_failed(trial) for trial in tried(state, name)):
        return None
    return best_report(state, name)


def is_promised(state: State, job: str) -> bool:
    """Return whether the job's script was to save checkpoints. Journals in which agents do not
    report that: whether a trial has called `running()`, where checkpoints are saved.
    """
    goal, kept = state.facts.goals[job], state.jobs[job]
    if goal.saves_to or kept.promised:
        return True
    if kept.saved:
        return not saves_no_model(state, job)
    is_reported = state.facts.promises or bool(goal.patterns)
    return not is_reported and any(trial.trained for trial in state.trials_of(job))
