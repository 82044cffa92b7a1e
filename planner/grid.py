"""Grid search: every combination of the space's values, each trained for an equal share of the time
on a cluster of one size.

The one rule: no trial is stopped early. If the grid has more points than rounds of `t_min` can
take, as many of them as fit are drawn at random. A range counts with five values, evenly spread.
Points that do not meet the constraints are left out. `policy.trials` takes fewer points, for
longer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from seerd.planner.fixed_cluster import fixed_cluster
from seerd.planner.model import Impossible, Problem
from seerd.planner.space import GRID_VALUES, MOST_POINTS, Config, NoConfigurationError
from seerd.planner.wall_clock import Round, Track, by_wall_clock


def grid_points(problem: Problem) -> list[Config]:
    """List the grid's points, the first `MOST_POINTS`. Raises `NoConfigurationError` if none meets
    the constraints.
    """
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


def _tracks(problem: Problem) -> list[Track] | Impossible:
    cluster, params = fixed_cluster(problem), problem.params
    if isinstance(cluster, Impossible):
        return cluster
    beside = cluster.gpus // params.p_min
    points = min(len(grid_points(problem)), params.trials or MOST_POINTS)
    time_s = cluster.end_s - cluster.start_s
    waves = max(1, min(-(-points // beside), int(time_s / params.t_min_s)))
    points = min(points, waves * beside)
    ends = [cluster.start_s + time_s * (i + 1) / waves for i in range(waves)]
    starts = [cluster.start_s, *ends[:-1]]
    counts = [points // waves + (i < points % waves) for i in range(waves)]
    return [
        Track((Round(s, e, n, params.p_min),))
        for s, e, n in zip(starts, ends, counts, strict=True)
        if n
    ]


GRID = by_wall_clock(_tracks, _points)
