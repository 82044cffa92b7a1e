"""Random search: some configurations drawn at random, trained for the whole time on a cluster of
one size (Dunlap et al., SEER, section 6.3).

The one rule: no trial is ever stopped early. The paper trains one configuration on all GPUs, which
shows what tuning is worth; `policy.trials` takes more, each on an equal share of them.
"""

from __future__ import annotations

from seerd.planner.fixed_cluster import fixed_cluster, whole_instances
from seerd.planner.model import Impossible, Problem
from seerd.planner.wall_clock import Round, Track, by_wall_clock


def _tracks(problem: Problem) -> list[Track] | Impossible:
    cluster, params = fixed_cluster(problem), problem.params
    if isinstance(cluster, Impossible):
        return cluster
    trials = min(params.trials or 1, cluster.gpus // params.p_min)
    gpus = (
        cluster.gpus // trials
        if params.p_max is None
        else min(cluster.gpus // trials, params.p_max)
    )
    gpus = max(params.p_min, whole_instances(gpus, problem.gpus_per_instance))
    return [Track((Round(cluster.start_s, cluster.end_s, trials, gpus),))]


RANDOM = by_wall_clock(_tracks)
