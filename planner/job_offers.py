"""What a job may still gain, from its results alone, so that jobs under any policy can be compared
(Li et al., Ease.ml, VLDB '18, sections 4.1 to 4.4, where a job's next step is a candidate's
training).

The one rule: what is expected of the next GPU time is a share of what the last has brought,
whenever that was, so a job that had few GPUs for a while still offers what it did. A regret that
falls like 1/t falls in the second half of its time by 1/t, and in the next such while by a third of
that.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from seerd.planner.model import PlannedJob, View
from seerd.planner.serving import Offer

GOES_ON = 1 / 3
"""Improvement in the next while, as a part of that in the last one."""
FEW = 8
"""A job with fewer results has not shown yet what it offers."""


def offers(
    jobs: Sequence[PlannedJob], views: dict[str, View], spent: Mapping[str, float]
) -> list[Offer]:
    """Say what each job offers for the next GPU-seconds; larger is better for all.

    spent  job -> GPU-seconds that it has had

    Results are in units of the metric where all jobs have the same one; else in units of how far a
    job's best result is above its median trial.
    """
    alike = len({(job.metric, job.mode) for job in jobs}) == 1
    return [_offer(job, views[job.id], spent.get(job.id, 0.0), alike=alike) for job in jobs]


def _offer(job: PlannedJob, view: View, spent_gpu_s: float, *, alike: bool) -> Offer:
    results = _results(view)
    if len(results) < FEW or not spent_gpu_s:
        return Offer(job.id)
    best, before = max(results), max(results[: len(results) // 2])
    unit = 1.0 if alike else _spread(view, best)
    per_gpu_s = (best - before) * GOES_ON / (spent_gpu_s / 2)
    gain = job.weight * per_gpu_s / unit
    return Offer(job.id, best / unit + gain, best / unit, gain, gain)


def _results(view: View) -> list[float]:
    """List all results in the order in which they came; larger is better."""
    sign = 1.0 if view.mode == "max" else -1.0
    return [
        value
        for _, value in sorted(
            (report.at_s, sign * report.metric)
            for trial in view.trials.values()
            for report in trial.history
            if report.metric is not None
        )
    ]


def _spread(view: View, best: float) -> float:
    """Return how far the best result is above the best of the median trial; 1 if it is not."""
    sign = 1.0 if view.mode == "max" else -1.0
    bests = [
        max(sign * r.metric for r in trial.history if r.metric is not None)
        for trial in view.trials.values()
        if any(r.metric is not None for r in trial.history)
    ]
    return best - statistics.median(bests) or 1.0
