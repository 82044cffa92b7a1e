"""E-Grid: half of the time for exploring, half for the best trial alone (Dunlap et al., SEER,
section 6.3, "E-Grid Search").

The one rule: until T/2 as many configurations as the budget pays for train on `p_min` GPUs each;
from then on the best of them trains alone on `p_max`. If the budget does not pay for one trial
until then, both halves are shortened to what it pays for.
"""

from __future__ import annotations

from fractions import Fraction

from seerd.planner.fixed_cluster import at_least, counted_with, whole_instances
from seerd.planner.model import Impossible, Limits, PolicyParams, Problem
from seerd.planner.wall_clock import Round, Track, by_wall_clock

P_MAX = 4
"""`p_max` if the spec has none: the paper's."""


def _tracks(problem: Problem) -> list[Track] | Impossible:
    limits, params = problem.planned, problem.params
    most = limits.max_gpus
    p_max = max(params.p_min, params.p_max or P_MAX)
    p_max = whole_instances(p_max if most is None else min(p_max, most), problem.gpus_per_instance)
    for counted in counted_with(problem):
        trials = _trials(counted, params, p_max)
        trials = trials if most is None else min(trials, most // params.p_min)
        half_s = _half_s(limits, params, trials, p_max)
        if trials >= 1 and half_s >= Fraction(params.t_min_s) and p_max >= params.p_min:
            start, half = problem.start_s, float(half_s)
            look = Round(start, start + half, trials, params.p_min)
            return [Track((look, Round(start + half, start + 2 * half, 1, p_max)))]
    both = f"half of the time for one trial on {params.p_min}, half on {p_max} GPUs"
    least_gpu_s = at_least(params.t_min_s * (params.p_min + p_max))
    return Impossible(
        f"{both}: that does not fit", problem.start_s + 2 * params.t_min_s, least_gpu_s
    )


def _trials(limits: Limits, params: PolicyParams, p_max: int) -> int:
    """Count the trials of the first half that the budget pays for."""
    paid = Fraction(limits.budget_gpu_s) / _half_s(limits, params, 1, p_max)
    trials = int((paid - p_max) / params.p_min)
    return trials if params.trials is None else min(trials, params.trials)


def _half_s(limits: Limits, params: PolicyParams, trials: int, p_max: int) -> Fraction:
    """Compute the seconds of either half: half of the deadline, or what the budget pays for."""
    gpus = params.p_min * max(1, trials) + p_max
    return min(Fraction(limits.deadline_s) / 2, Fraction(limits.budget_gpu_s) / gpus)


E_GRID = by_wall_clock(_tracks)
