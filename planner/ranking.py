"""The order of trials, best first, for every policy: finite metrics, then trials without a report,
then those whose last report was NaN or infinite, then failed ones. Ties go to the smaller id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from seerd.planner.model import Compared, Mode, TrialView, Tried


def rank(trials: Iterable[TrialView], mode: Mode) -> list[TrialView]:
    """Order the trials, best first."""
    return sorted(trials, key=lambda trial: _key(trial, mode))


def compared(ordered: Sequence[TrialView], best: int, bracket: int) -> list[Compared]:
    """Return how each trial stands by its last report; `ordered`: best first, `best` may go on."""
    of = len(ordered)
    return [
        Compared(t.id, t.metric, t.reports, place, of, best, bracket)
        for place, t in enumerate(ordered, 1)
    ]


# a key to compare trials by, (class, value, trial's id): the smaller, the better
RankKey = tuple[int, float, str]


def metric_at(trial: Tried, reports: int) -> float | None:
    """Return the metric of report `reports` or the nearest one, the earlier of two; None: it is not
    finite, or there is none.
    """
    after = None
    for report in reversed(trial.history):
        if report.reports <= reports:
            nearer = after is not None and after.reports - reports < reports - report.reports
            return after.metric if after is not None and nearer else report.metric
        after = report
    return None if after is None else after.metric


def seconds_per_report(trial: Tried, reports: int) -> float | None:
    """Return the median seconds of its reports up to number `reports`; None: fewer than two."""
    made = [report for report in trial.history if report.reports <= reports]
    paces = [
        (after.at_s - before.at_s) / (after.reports - before.reports)
        for before, after in pairwise(made)
        if after.reports > before.reports
    ]
    return median(paces) if paces else None


def standing_at(trial: TrialView, reports: int, mode: Mode) -> RankKey:
    """Return how a trial stood when it had made this many reports."""
    if trial.status == "failed" or not trial.history:
        return _key(trial, mode)
    return standing(trial.id, metric_at(trial, reports), mode)


def standing(trial: str, metric: float | None, mode: Mode) -> RankKey:
    """Return how a trial with this metric stands."""
    if metric is None:
        return 2, 0.0, trial
    return 0, -metric if mode == "max" else metric, trial


def _key(trial: TrialView, mode: Mode) -> RankKey:
    if trial.status == "failed":
        return 3, 0.0, trial.id
    if trial.reports == 0:
        return 1, 0.0, trial.id
    return standing(trial.id, trial.metric, mode)
