"""The cluster of a policy whose size stays the same: as many GPUs as the budget pays for until the deadline (SEER section 6.3).

The one rule: GPUs times seconds never exceed the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.model import Impossible, Problem


@dataclass(frozen=True, slots=True)
class FixedCluster:
    """`gpus` GPUs from `start_s` to `end_s`, seconds since the run began."""

    gpus: int
    start_s: float
    end_s: float


def fixed_cluster(problem: Problem) -> FixedCluster | Impossible:
    """The largest one; if the budget pays for fewer than `p_min` GPUs until the deadline, `p_min` for as long as it pays for.

    Where whole instances are paid, all their GPUs are used, for as long as the budget pays for them.
    """
    limits, p_min = problem.planned, problem.params.p_min
    most = limits.max_gpus
    least_s = problem.params.t_min_s
    if most is not None and p_min > most:
        reason = f"a trial needs {p_min} GPUs (p_min), and there may be {most}"
        return Impossible(reason, problem.start_s + least_s, at_least(least_s * p_min))
    time_s = limits.deadline_s
    gpus = max(p_min, int(limits.budget_gpu_s / time_s * (1 + 1e-12)))
    if problem.whole:
        gpus = -(-gpus // problem.gpus_per_instance) * problem.gpus_per_instance
    gpus = gpus if most is None else min(gpus, most)
    lasts_s = min(time_s, limits.budget_gpu_s / gpus)
    if lasts_s < least_s:
        reason = (
            f"{gpus} GPU{'s' * (gpus > 1)} can train for {lasts_s:g}s, and the shortest round is {least_s:g}s (t_min)"
        )
        return Impossible(reason, problem.start_s + least_s, at_least(least_s * p_min))
    return FixedCluster(gpus, problem.start_s, problem.start_s + lasts_s)


def at_least(figure: float) -> float:
    """A product of floats, up to the next one: what is computed exactly from it is not a hair too small."""
    return math.nextafter(figure, math.inf)


def whole_instances(gpus: int, gpus_per_instance: int) -> int:
    """So many GPUs for one trial, or fewer: a trial that is larger than an instance takes whole ones."""
    return gpus if gpus <= gpus_per_instance else gpus - gpus % gpus_per_instance
