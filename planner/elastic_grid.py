"""E-Grid: half of the time for exploring, half for the best trial alone (Dunlap et al., SEER,
section 6.3, "E-Grid Search").

The one rule: until T/2 as many configurations as the budget pays for train on `p_min` GPUs each;
from then on the best of them trains alone on `p_max`. If the budget does not pay for one trial
until then, both halves are shortened to what it pays for.
"""

from __future__ import annotations

from fractions import Fraction

from seerd.planner.fixed_cluster import at_least, whole_instances
from seerd.planner.model import Impossible, Problem
from seerd.planner.wall_clock import Round, Track, by_wall_clock

P_MAX = 4
"""`p_max` if the spec has none: the paper's."""


def _tracks(problem: Problem) -> list[Track] | Impossible:
    limits, params = problem.planned, problem.params
    most = limits.max_gpus
    p_max = max(params.p_min, params.p_max or P_MAX)
    p_max = whole_instances(p_max if most is None else min(p_max, most), problem.gpus_per_instance)
    half_s = min(
        Fraction(limits.deadline_s) / 2, Fraction(limits.budget_gpu_s) / (params.p_min + p_max)
    )
    trials = int((Fraction(limits.budget_gpu_s) / half_s - p_max) / params.p_min)
    trials = trials if most is None else min(trials, most // params.p_min)
    trials = trials if params.trials is None else min(trials, params.trials)
    if trials < 1 or half_s < Fraction(params.t_min_s) or p_max < params.p_min:
        both = f"half of the time for one trial on {params.p_min}, half on {p_max} GPUs"
        least_gpu_s = at_least(params.t_min_s * (params.p_min + p_max))
        return Impossible(
            f"{both}: that does not fit", problem.start_s + 2 * params.t_min_s, least_gpu_s
        )
    start, half = problem.start_s, float(half_s)
    look = Round(start, start + half, trials, params.p_min)
    return [Track((look, Round(start + half, start + 2 * half, 1, p_max)))]


E_GRID = by_wall_clock(_tracks)
