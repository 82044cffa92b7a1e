"""Every metric that trials report, and what must hold of them for a model to be the best. A report
that violates a constraint counts in decisions as one that is not finite, and is shown as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from seerd.core.events import Checkpoint, Objective, TrialReported
from seerd.core.state import State, Trial
from seerd.planner.model import MetricConstraint, Report


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
    for reports in range(checkpoint.reports - counted + 1, checkpoint.reports + 1):
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
