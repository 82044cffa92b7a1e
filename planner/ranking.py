"""In which order trials stand, for every policy.

The one rule: a trial with a finite metric ranks before one without a report, that before one whose last report was NaN or infinite,
and a failed one last of all; ties go to the smaller id, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.model import Mode, TrialView


def rank(trials: Iterable[TrialView], mode: Mode) -> list[TrialView]:
    """The trials, best first."""
    return sorted(trials, key=lambda trial: _key(trial, mode))


def _key(trial: TrialView, mode: Mode) -> tuple[int, float, str]:
    if trial.status == "failed":
        return 3, 0.0, trial.id
    if trial.reports == 0:
        return 1, 0.0, trial.id
    if trial.metric is None:
        return 2, 0.0, trial.id
    return 0, -trial.metric if mode == "max" else trial.metric, trial.id
