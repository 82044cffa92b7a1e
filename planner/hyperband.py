"""Hyperband (Li et al., JMLR 2018, Algorithm 1): brackets of successive halving, from the one that
stops trials earliest to one that never does.

The one rule: the brackets run one after the other on a cluster of one size, again and again until
the time is over.
"""

from __future__ import annotations

import math
from fractions import Fraction

from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.halving import Course, HalvingRung, halving
from seerd.planner.model import Problem
from seerd.planner.rungs import MAX_REPORTS


def most_brackets(resource: Fraction, eta: Fraction) -> int:
    """Compute s_max = floor(log_eta R), exact at powers of eta."""
    most = 0
    while eta ** (most + 1) <= resource:
        most += 1
    return most


def rungs_of(
    most: int, bracket: int, resource: Fraction, eta: Fraction
) -> list[tuple[int, Fraction]]:
    """Compute the rungs of bracket s, each as (trials, resource of each trial in all).

    It starts with n = ceil((s_max + 1) / (s + 1) * eta^s) trials and r = R / eta^s.
    """
    trials = math.ceil(Fraction(most + 1, bracket + 1) * eta**bracket)
    return [(int(trials / eta**i), resource / eta ** (bracket - i)) for i in range(bracket + 1)]


def course(problem: Problem) -> Course:
    """Compute the brackets; R is in units of `min_reports`."""
    cluster, params = fixed_cluster(problem), problem.params
    gpus = cluster.gpus if isinstance(cluster, FixedCluster) else params.p_min
    eta, least = Fraction(params.eta), params.min_reports or 1
    resource = max(Fraction(1), Fraction(params.max_reports or MAX_REPORTS, least))
    most = most_brackets(resource, eta)

    def bracket(number: int) -> list[HalvingRung]:
        rungs = rungs_of(most, most - number % (most + 1), resource * least, eta)
        return [HalvingRung(trials, max(1, round(until)), gpus) for trials, until in rungs]

    return Course(problem, cluster, bracket(0), bracket)


HYPERBAND = halving(course)
