"""The cluster of a policy whose size stays the same: as many GPUs as the budget pays for until the
deadline (SEER section 6.3). GPUs times seconds never exceed the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from seerd.planner.model import Impossible, Limits, Problem

# most part of an instance that the budget may leave: with more, another one is worth it
SPARE_INSTANCE = 0.05
SPARE_GPU = 0.3  # the same for a GPU that is paid for by itself: one more also shortens the time
HAIR = 1 + 1e-12  # makes up for rounding in a quotient; how long the GPUs last must allow for it


@dataclass(frozen=True, slots=True)
class FixedCluster:
    """GPUs whose number stays the same."""

    gpus: int
    start_s: float  # from when, seconds since the run began
    end_s: float  # until when, seconds since the run began
    # whole instances are paid, GPUs used or not; what is left at `end_s` is used too
    idle_paid: bool = False

    @property
    def ask_at_s(self) -> float | None:
        """When the policy must be asked again at the latest; None: at no fixed time."""
        return None if self.idle_paid else self.end_s

    def over(self, now_s: float) -> bool:
        """Return whether the cluster's time is over; it never is if idle GPUs are paid."""
        return not self.idle_paid and now_s >= self.end_s


def fixed_cluster(problem: Problem) -> FixedCluster | Impossible:
    """Return the largest cluster that the budget pays for until the deadline, but at least `p_min`
    GPUs for as long as the budget lasts. Rather than leave a part of the budget, one GPU or
    instance more is taken, for a shorter time.
    """
    limits, p_min = problem.planned, problem.params.p_min
    most = limits.max_gpus
    least_s = problem.params.t_min_s
    if most is not None and p_min > most:
        least, there = problem.gpus_text(p_min), problem.gpus(most)
        reason = f"a trial needs {least} (p_min), and there may be {there}"
        return Impossible(reason, problem.start_s + least_s, at_least(least_s * p_min))
    size = problem.gpus_per_instance if problem.whole else 1
    spare = SPARE_INSTANCE if problem.whole else SPARE_GPU
    gpus, lasts_s = 1, 0.0
    for counted in counted_with(problem):
        exact = counted.budget_gpu_s / counted.deadline_s / size * HAIR
        count = max(-(-p_min // size), int(exact))
        another_trial = problem.whole or (count + 1) % p_min == 0
        one_more_s = counted.budget_gpu_s / ((count + 1) * size)
        count += another_trial and exact - count > spare and one_more_s >= least_s
        gpus = count * size if most is None else min(count * size, most)
        lasts_s = min(limits.deadline_s, limits.budget_gpu_s / gpus)
        if lasts_s * HAIR >= least_s:
            return FixedCluster(gpus, problem.start_s, problem.start_s + lasts_s, problem.whole)
    reason = (
        f"{problem.gpus_text(gpus)} can train for {lasts_s:g}s, "
        f"and the shortest round is {least_s:g}s (--set policy.t_min=5s makes it 5s)"
    )
    return Impossible(reason, problem.start_s + least_s, at_least(least_s * p_min))


def counted_with(problem: Problem) -> tuple[Limits, ...]:
    """Return the limits by which GPUs are counted, in the order in which they are tried: the user's
    own budget first, as what is set aside shall cost time rather than a GPU. It does not count
    where whole instances are paid, whose boot is not planned with either, nor once extended.
    """
    if problem.whole or problem.extended:
        return (problem.planned,)
    return problem.limits, problem.planned


def at_least(figure: float) -> float:
    """Round up to the next float, so that rounding does not make a product too small."""
    return math.nextafter(figure, math.inf)


def whole_instances(gpus: int, gpus_per_instance: int) -> int:
    """Round the GPUs of one trial down: one larger than an instance has whole instances."""
    return gpus if gpus <= gpus_per_instance else gpus - gpus % gpus_per_instance
