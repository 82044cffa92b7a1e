"""What a job may still gain, from its results alone, so that jobs under any policy can be compared
(Li et al., Ease.ml, VLDB '18, sections 4.1 to 4.4, where a step is a candidate's training).

A job's regret is taken to fall like 1/t with its GPU time t. Then what its best result has risen by
since a part f of that time is 1/f - 1 times the regret that is left; the mean over several f is
steadier than any one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seerd.planner.model import PlannedJob, View

PARTS = 0.25, 0.5, 0.75  # parts of a job's results after which its best result is looked at
FEW = 8  # a job with fewer results has not shown yet what may be gained


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is expected of a job. Results are in units of the metric where all jobs have the same
    one; else of how far a job's best result is above its median trial.
    """

    job: str
    best: float | None = None  # its best result so far, larger is better; None: too few results
    regret: float = 0.0  # how much better it may become, by its weight
    spent_gpu_s: float = 0.0  # GPU-seconds that it has had

    def regret_after(self, gpu_s: float) -> float:
        """Return the regret that is expected after so many GPU-seconds more."""
        return self.regret * self.spent_gpu_s / (self.spent_gpu_s + gpu_s)


def prospects(
    jobs: Sequence[PlannedJob], views: Mapping[str, View], spent: Mapping[str, float]
) -> list[Prospect]:
    """Return what is expected of each job, or the largest regret seen; `spent`: its GPU-seconds."""
    alike = len({(job.metric, job.mode) for job in jobs}) == 1
    seen = [_prospect(job, views[job.id], spent.get(job.id, 0.0), alike=alike) for job in jobs]
    most = max((prospect.regret for prospect in seen if prospect.best is not None), default=1.0)
    return [
        Prospect(p.job, None, most, max(1.0, p.spent_gpu_s)) if p.best is None else p for p in seen
    ]


def _prospect(job: PlannedJob, view: View, spent_gpu_s: float, *, alike: bool) -> Prospect:
    sign = _sign(view)
    results = [
        value
        for _, value in sorted(
            (report.at_s, sign * report.metric)
            for trial in view.trials.values()
            for report in trial.history
            if report.metric is not None
        )
    ]
    if len(results) < FEW or not spent_gpu_s:
        return Prospect(job.id, spent_gpu_s=spent_gpu_s)
    best, unit = max(results), 1.0 if alike else _spread(view)
    regrets = [(best - max(results[: int(len(results) * part)])) / (1 / part - 1) for part in PARTS]
    regret = job.weight * statistics.fmean(regrets) / unit
    return Prospect(job.id, best / unit, regret, spent_gpu_s)


def _spread(view: View) -> float:
    """Return how far the best result is above the best of the median trial; 1 if it is not."""
    bests = [
        max(results)
        for trial in view.trials.values()
        if (results := [_sign(view) * r.metric for r in trial.history if r.metric is not None])
    ]
    return max(bests) - statistics.median(bests) or 1.0


def _sign(view: View) -> float:
    return 1.0 if view.mode == "max" else -1.0
