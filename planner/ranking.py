"""In which order trials stand, for every policy.

The one rule: a trial with a finite metric ranks before one without a report, that before one whose last report was NaN or infinite,
and a failed one last of all; ties go to the smaller id, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.model import Mode, TrialView


def rank(trials: Iterable[TrialView], mode: Mode) -> list[TrialView]:
    """The trials, best first."""
    return sorted(trials, key=lambda trial: _key(trial, mode))


@dataclass(frozen=True, slots=True, order=True)
class Standing:
    """How a trial stood when it had made so many reports; the smaller, the better."""

    key: tuple[int, float, str]
    trial: str


def standing_at(trial: TrialView, reports: int, mode: Mode) -> Standing:
    """Its standing by the report with this number, or by the last one before it."""
    if trial.status == "failed" or not trial.history:
        return Standing(_key(trial, mode), trial.id)
    at = next((report for report in reversed(trial.history) if report.epoch <= reports), trial.history[0])
    return Standing(_metric_key(at.metric, trial.id, mode), trial.id)


def _key(trial: TrialView, mode: Mode) -> tuple[int, float, str]:
    if trial.status == "failed":
        return 3, 0.0, trial.id
    if trial.reports == 0:
        return 1, 0.0, trial.id
    return _metric_key(trial.metric, trial.id, mode)


def _metric_key(metric: float | None, trial: str, mode: Mode) -> tuple[int, float, str]:
    if metric is None:
        return 2, 0.0, trial
    return 0, -metric if mode == "max" else metric, trial
