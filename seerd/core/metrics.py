"""Every metric that trials report, and which model would be handed back now.

A report that violates a constraint counts in decisions as one that is not finite, and is shown as
it was. Only a confirmed checkpoint with a finite metric, all constraints of which hold, can win. Of
equal ones, that of a trial that has not failed wins, then the one with more reports, then the older
trial. A metric may be the mean of the last reports (`Goal.averages`).
"""

from __future__ import annotations

from collections.abc import Mapping

from seerd.core.events import Checkpoint, Objective, TrialReported
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import Incumbent, State, Trial
from seerd.planner.model import MetricConstraint, Report
from seerd.planner.trial_ids import job_of


def violated_by(metrics: Mapping[str, float | None], goal: Objective) -> list[MetricConstraint]:
    """Return the constraints that do not hold, or whose metric is missing or not finite. In a
    script's output a metric that is not printed yet violates nothing.
    """
    counting = (c for c in goal.constraints if not goal.patterns or c.metric in metrics)
    return [constraint for constraint in counting if not constraint.holds(metrics)]


def keep(state: State, trial: Trial, event: TrialReported) -> float | None:
    """Keep what a report had beside the metric; return the metric as it counts for decisions: None,
    kept beside the others, if the report violates a constraint.
    """
    state.signs.names.update(dict.fromkeys(event.others))
    goal = state.facts.goal_of(trial.id)
    others, name = dict(event.others), goal.metric
    broken = violated_by({**others, name: event.metric}, goal)
    if broken and event.metric is not None:
        others[name] = event.metric
    if others:
        trial.others[event.reports] = others
    return None if broken else event.metric


def as_it_counts(state: State, checkpoint: Checkpoint) -> float | None:
    """Return a checkpoint's metric; None if one of its reports is known to violate a constraint."""
    trial, goal = state.trials[checkpoint.trial], state.facts.goal_of(checkpoint.trial)
    counted = goal.averages(checkpoint.reports) if goal.constraints else 0
    for reports in range(max(1, checkpoint.reports - counted + 1), checkpoint.reports + 1):
        metrics = metrics_of(state, trial, reports)
        if metrics and violated_by(metrics, goal):
            return None
    return checkpoint.metric


def metrics_of(state: State, trial: Trial, reports: int) -> dict[str, float | None]:
    """Return all metrics of a report of the trial, by name; empty if it is not known."""
    report = next((each for each in reversed(trial.history) if each.reports == reports), None)
    if report is None:
        return {}
    return {state.facts.goal_of(trial.id).metric: report.metric, **trial.others.get(reports, {})}


def value_of(state: State, trial: Trial, report: Report, name: str) -> float | None:
    """Return what a report had under this name; None if it had nothing finite."""
    others, own = trial.others.get(report.reports, {}), state.facts.goal_of(trial.id).metric
    return others.get(name, report.metric if name == own else None)


def last_value(state: State, trial: Trial, name: str) -> float | None:
    """Return what the trial's last report had under this name; None if it had nothing finite."""
    return value_of(state, trial, trial.history[-1], name) if trial.history else None


def best_value(state: State, trial: Trial) -> float | None:
    """Return the best finite metric that the trial has reported, or None."""
    finite = (report.metric for report in trial.history if report.metric is not None)
    return (max if state.facts.goal_of(trial.id).mode == "max" else min)(finite, default=None)


def names_of(state: State) -> list[str]:
    """Return the names of all reported metrics; those that decide come first."""
    own = (goal.metric for goal in state.facts.goals.values())
    return list(dict.fromkeys((*own, *state.signs.names)))


def violations_of(state: State, trial: Trial) -> list[str]:
    """Return the constraints that the trial's last report violates, as a spec has them."""
    if not trial.history:
        return []
    metrics = metrics_of(state, trial, trial.reports)
    return [str(constraint) for constraint in violated_by(metrics, state.facts.goal_of(trial.id))]


def saves_no_model(state: State, job: str) -> bool:
    """Return whether what the job's script saves is no model: nothing is in its checkpoints, and
    nothing was to be. Journals of versions that handed these back are read as they were.
    """
    kept, is_named = state.jobs[job], bool(state.facts.goals[job].saves_to)
    return state.facts.promises and kept.empty and not (kept.promised or is_named)


def incumbent(state: State, job: str | None = None) -> Incumbent | None:
    """Return the best readable confirmed model of a job (None: the first job), or None."""
    name = next(iter(state.jobs)) if job is None else job
    if saves_no_model(state, name):
        return None
    sign = sign_of(state.facts.goals[name])
    best: tuple[tuple[float, bool, int], Incumbent] | None = None
    for trial in state.trials_of(name):
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
    sign, unreadable = sign_of(state.facts.goal_of(trial.id)), state.result.unreadable
    finite = (saved for saved in trial.checkpoints if saved.metric is not None)
    usable = (saved for saved in finite if f"{trial.id}/{saved.name}" not in unreadable)
    return max(usable, key=lambda best: (sign * (best.metric or 0.0), best.reports), default=None)


def best_saved(state: State, trial: Trial) -> float | None:
    """Return the metric of the trial's best checkpoint, None if it has none."""
    saved = best_checkpoint(state, trial)
    return None if saved is None else saved.metric


def better_report(state: State, best: Incumbent) -> tuple[str, float] | None:
    """Return trial and metric of the best report of this job that no kept checkpoint has, if it is
    better than the model; else None.
    """
    goal, job = state.facts.goal_of(best.trial), job_of(best.trial)
    if goal.averages(2) > 1:  # with a mean of several: some report is better than every mean
        return None
    sign = sign_of(goal)
    better = None
    for trial in state.trials_of(job):
        saved = {checkpoint.reports for checkpoint in trial.checkpoints}
        for metric in (each.metric for each in trial.history if each.reports not in saved):
            most = best.metric if better is None else better[1]
            if metric is not None and sign * metric > sign * most:
                better = trial.id, metric
    return better


def best_report(state: State, job: str) -> tuple[Trial, Report] | None:
    """Return a job's best report, the first of equal ones, with its trial, or None."""
    sign = sign_of(state.facts.goals[job])
    reports = ((trial, report) for trial in state.trials_of(job) for report in trial.history)
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
