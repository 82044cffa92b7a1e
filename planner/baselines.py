"""What SEER is compared with (Dunlap et al., SEER, section 6.3): random search, grid search,
E-Grid.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from fractions import Fraction

from seerd.planner.fixed_cluster import at_least, counted_with, fixed_cluster, whole_instances
from seerd.planner.model import Impossible, Limits, PolicyParams, Problem
from seerd.planner.space import GRID_VALUES, MOST_POINTS, Config, NoConfigurationError
from seerd.planner.wall_clock import Round, Track, by_wall_clock

P_MAX = 4  # `p_max` of E-Grid if the spec has none: the paper's


def _random(problem: Problem) -> list[Track] | Impossible:
    """Train one configuration on all GPUs, or `policy.trials` on an equal share, all the time."""
    cluster, params = fixed_cluster(problem), problem.params
    if isinstance(cluster, Impossible):
        return cluster
    trials = min(params.trials or 1, cluster.gpus // params.p_min)
    share = cluster.gpus // trials
    gpus = share if params.p_max is None else min(share, params.p_max)
    gpus = max(params.p_min, whole_instances(gpus, problem.gpus_per_instance))
    return [(Round(cluster.start_s, cluster.end_s, trials, gpus),)]


def grid_points(problem: Problem) -> list[Config]:
    """List the first `MOST_POINTS` points. Raises `NoConfigurationError` if none is allowed."""
    points = list(problem.space.grid())
    if not points:
        raise NoConfigurationError(
            f"no point of the grid meets the constraints, with {GRID_VALUES} values of each range; "
            "give the values to try as lists, or use another policy"
        )
    return points


def _points(problem: Problem, count: int) -> Iterable[Config]:
    points = grid_points(problem)
    rng = random.Random(problem.params.seed)
    return points if len(points) == count else rng.sample(points, count)


def _grid(problem: Problem) -> list[Track] | Impossible:
    """Train every point, or as many drawn ones as rounds of `t_min` fit, for an equal time."""
    cluster, params = fixed_cluster(problem), problem.params
    if isinstance(cluster, Impossible):
        return cluster
    places = cluster.gpus // params.p_min
    points = min(len(grid_points(problem)), params.trials or MOST_POINTS)
    time_s = cluster.end_s - cluster.start_s
    waves = max(1, min(-(-points // places), int(time_s / params.t_min_s)))
    points = min(points, waves * places)
    ends = [cluster.start_s + time_s * (i + 1) / waves for i in range(waves)]
    starts = [cluster.start_s, *ends[:-1]]
    counts = [points // waves + (i < points % waves) for i in range(waves)]
    return [
        (Round(s, e, n, params.p_min),) for s, e, n in zip(starts, ends, counts, strict=True) if n
    ]


def _e_grid(problem: Problem) -> list[Track] | Impossible:
    """Train many configurations on `p_min` GPUs until T/2, and then the best one on `p_max`."""
    limits, params = problem.planned, problem.params
    most = limits.max_gpus
    p_max = max(params.p_min, params.p_max or P_MAX * problem.parts)
    p_max = whole_instances(p_max if most is None else min(p_max, most), problem.gpus_per_instance)
    for counted in counted_with(problem):
        paid = Fraction(counted.budget_gpu_s) / _half_s(counted, params, 1, p_max)
        trials = int((paid - p_max) / params.p_min)
        trials = trials if params.trials is None else min(trials, params.trials)
        trials = trials if most is None else min(trials, most // params.p_min)
        half_s = _half_s(limits, params, trials, p_max)
        if trials >= 1 and half_s >= Fraction(params.t_min_s) and p_max >= params.p_min:
            start, half = problem.start_s, float(half_s)
            look = Round(start, start + half, trials, params.p_min)
            return [(look, Round(start + half, start + 2 * half, 1, p_max))]
    least, most_text = problem.gpus(params.p_min), problem.gpus_text(p_max)
    both = f"half of the time for one trial on {least}, half on {most_text}"
    least_gpu_s = at_least(params.t_min_s * (params.p_min + p_max))
    return Impossible(
        f"{both}: that does not fit", problem.start_s + 2 * params.t_min_s, least_gpu_s
    )


def _half_s(limits: Limits, params: PolicyParams, trials: int, p_max: int) -> Fraction:
    gpus = params.p_min * max(1, trials) + p_max
    return min(Fraction(limits.deadline_s) / 2, Fraction(limits.budget_gpu_s) / gpus)


RANDOM = by_wall_clock(_random)
GRID = by_wall_clock(_grid, _points)
E_GRID = by_wall_clock(_e_grid)
