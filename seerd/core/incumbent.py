"""Which model would be handed back now.

The one rule: only a confirmed checkpoint with a finite metric can win. A failed trial's wins only
if there is no other. Of equal ones, the one with more reports wins, then the trial that is older.

The metric of a checkpoint is what whoever saved it says, so all who compare checkpoints compare the
same: the last report's, or with `RunFacts.smooth` the mean of the last ones.
"""

from __future__ import annotations

import math

from seerd.core.events import Checkpoint
from seerd.core.lifecycle import TrialPhase
from seerd.core.state import Incumbent, State, Trial


def incumbent(state: State) -> Incumbent | None:
    """Return the best confirmed model that is not known to be unreadable, or None."""
    sign = sign_of(state)
    best: tuple[tuple[bool, float, int], Incumbent] | None = None
    for trial in state.trials.values():
        found = best_checkpoint(state, trial)
        if found is None or found.metric is None:
            continue
        worth = (trial.phase is not TrialPhase.FAILED, sign * found.metric, found.reports)
        if best is None or worth > best[0]:
            best = (worth, Incumbent(trial.id, found, found.metric))
    return best[1] if best else None


def best_checkpoint(state: State, trial: Trial) -> Checkpoint | None:
    """Return the trial's best confirmed checkpoint that is not known to be unreadable, or None."""
    sign, best, worth = sign_of(state), None, (-math.inf, 0)
    for one in trial.checkpoints:
        if one.metric is None or f"{trial.id}/{one.name}" in state.result.unreadable:
            continue
        if best is None or (sign * one.metric, one.reports) > worth:
            best, worth = one, (sign * one.metric, one.reports)
    return best


def better_report(state: State, metric: float) -> tuple[str, float] | None:
    """Return the trial and metric of the best report, if it is better than `metric`; else None.

    No checkpoint that was kept has such a model. With `RunFacts.smooth` it is None: `metric` is a
    mean, and some report is better than every mean.
    """
    if state.facts.smooth > 1:
        return None
    sign = sign_of(state)
    best, found = sign * metric, None
    for trial in state.trials.values():
        for report in trial.history:
            if report.metric is not None and sign * report.metric > best:
                best, found = sign * report.metric, (trial.id, report.metric)
    return found


def averaged(state: State, checkpoint: Checkpoint) -> int:
    """Return how many reports the metric of this checkpoint is the mean of."""
    return min(state.facts.smooth, max(1, checkpoint.reports))


def metric_name(state: State, best: Incumbent) -> str:
    """Name what the metric of this model is, for people: a report's, or the mean of several."""
    reports = averaged(state, best.checkpoint)
    mean = f" (mean of the last {reports} reports)" if reports > 1 else ""
    return f"{state.facts.metric}{mean}"


def good_enough(state: State, metric: float | None) -> bool:
    """Return whether a metric is as good as the run's target, if the run has one."""
    target = state.facts.target
    if metric is None or target is None:
        return False
    sign = sign_of(state)
    return sign * metric >= sign * target


def sign_of(state: State) -> float:
    """Return 1 if more of the metric is better, else -1."""
    return 1.0 if state.facts.mode == "max" else -1.0
