"""Which model would be handed back now.

The one rule: only a confirmed checkpoint with a finite metric, all constraints of which hold, can
win. Of equal ones, that of a trial that has not failed wins, then the one with more reports, then
the older trial. A metric may be the mean of the last reports (`Goal.averages`).
"""

from __future__ import annotations

import math

from seerd.core.events import Checkpoint, Objective
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import Incumbent, State, Trial
from seerd.planner.model import Report
from seerd.planner.trial_ids import job_of


def incumbent(state: State, job: str | None = None) -> Incumbent | None:
    """Return the best readable confirmed model of a job (None: the first job), or None."""
    name = next(iter(state.jobs)) if job is None else job
    sign = sign_of(state.facts.goals[name])
    best: tuple[tuple[float, bool, int], Incumbent] | None = None
    for trial in state.trials.values():
        if job_of(trial.id) != name:
            continue
        checkpoint = best_checkpoint(state, trial)
        if checkpoint is None or checkpoint.metric is None:
            continue
        worth = (sign * checkpoint.metric, trial.phase is not TrialPhase.FAILED, checkpoint.reports)
        if best is None or worth > best[0]:
            best = (worth, Incumbent(trial.id, checkpoint, checkpoint.metric))
    return best[1] if best else None


def chosen(state: State, job: str | None = None) -> Incumbent | None:
    """Return the model of a job that is in its place, or else would be now (as `incumbent`)."""
    name = next(iter(state.jobs)) if job is None else job
    published = state.result.of_jobs.get(name)
    return incumbent(state, name) if published is None else published.incumbent


def best_checkpoint(state: State, trial: Trial) -> Checkpoint | None:
    """Return the trial's best confirmed checkpoint that is not known to be unreadable, or None."""
    sign, best, worth = sign_of(state.facts.goal_of(trial.id)), None, (-math.inf, 0)
    for checkpoint in trial.checkpoints:
        if checkpoint.metric is None or f"{trial.id}/{checkpoint.name}" in state.result.unreadable:
            continue
        if best is None or (sign * checkpoint.metric, checkpoint.reports) > worth:
            best, worth = checkpoint, (sign * checkpoint.metric, checkpoint.reports)
    return best


def best_saved(state: State, trial: Trial) -> float | None:
    """Return the metric of the trial's best checkpoint, None if it has none."""
    saved = best_checkpoint(state, trial)
    return None if saved is None else saved.metric


def better_report(state: State, best: Incumbent) -> tuple[str, float] | None:
    """Return trial and metric of the best report of this job that no kept checkpoint has, if it is
    better than the model; else None.
    """
    goal, job = state.facts.goal_of(best.trial), job_of(best.trial)
    if goal.averages(2) > 1:  # some report is better than every mean
        return None
    sign = sign_of(goal)
    most, better = sign * best.metric, None
    for trial in state.trials.values():
        saved = {checkpoint.reports for checkpoint in trial.checkpoints}
        for report in trial.history if job_of(trial.id) == job else ():
            if report.metric is None or report.reports in saved:
                continue
            if sign * report.metric > most:
                most, better = sign * report.metric, (trial.id, report.metric)
    return better


def best_report(state: State, job: str) -> tuple[Trial, Report] | None:
    """Return a job's best report, the first of equal ones, with its trial, or None."""
    sign = sign_of(state.facts.goals[job])
    trials = [trial for trial in state.trials.values() if job_of(trial.id) == job]
    reports = ((trial, report) for trial in trials for report in trial.history)
    finite = (pair for pair in reports if pair[1].metric is not None)
    return max(finite, key=lambda pair: sign * (pair[1].metric or 0.0), default=None)


def averaged(state: State, checkpoint: Checkpoint) -> int:
    """Return how many reports the metric of this checkpoint is the mean of."""
    return state.facts.goal_of(checkpoint.trial).averages(checkpoint.reports)


def metric_name(state: State, best: Incumbent) -> str:
    """Name the metric of this model for display: a report's, or the mean of several."""
    return mean_name(state.facts.goal_of(best.trial), averaged(state, best.checkpoint))


def mean_name(goal: Objective, reports: int) -> str:
    """Name the metric of so many reports for display."""
    return goal.metric + f" (mean of the last {reports} reports)" * (reports > 1)


def good_enough(goal: Objective, metric: float | None) -> bool:
    """Return whether a metric is as good as the target, if there is one."""
    target = goal.target
    if metric is None or target is None:
        return False
    sign = sign_of(goal)
    return sign * metric >= sign * target


def sign_of(goal: Objective) -> float:
    """Return 1 if more of the metric is better, else -1."""
    return 1.0 if goal.mode == "max" else -1.0
