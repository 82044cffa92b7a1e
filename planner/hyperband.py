"""Hyperband (Li et al., JMLR 2018, Algorithm 1) and E-Hyperband (Dunlap et al., SEER, section 6.3).

Hyperband's brackets run one after the other, again and again. E-Hyperband's run at the same time,
on a cluster that shrinks: a unit of resource is `t_min` on `p_min` GPUs, and R is the largest for
which all brackets fit. Section 6.4 sets its `p_max` and does not say what it does; here the trials
that are left share the GPUs of those that their bracket has dropped, up to `p_max` each.
"""

from __future__ import annotations

import math
from fractions import Fraction

from seerd.planner.fixed_cluster import at_least, fixed_cluster, whole_instances
from seerd.planner.halving import Brackets, HalvingRung, halving
from seerd.planner.model import Impossible, Problem
from seerd.planner.rungs import MAX_REPORTS
from seerd.planner.wall_clock import Round, Track, by_wall_clock


def most_brackets(resource: Fraction, eta: Fraction) -> int:
    """Return s_max = floor(log_eta R), exact at powers of eta."""
    most = 0
    while eta ** (most + 1) <= resource:
        most += 1
    return most


def rungs_of(
    most: int, bracket: int, resource: Fraction, eta: Fraction
) -> list[tuple[int, Fraction]]:
    """Return the rungs of bracket s, each as (trials, resource of each trial in all), from n =
    ceil((s_max + 1) / (s + 1) * eta^s) trials with r = R / eta^s.
    """
    trials = math.ceil(Fraction(most + 1, bracket + 1) * eta**bracket)
    return [(int(trials / eta**i), resource / eta ** (bracket - i)) for i in range(bracket + 1)]


def course(problem: Problem) -> Brackets | Impossible:
    """Return Hyperband's brackets; R is in units of `min_reports`."""
    cluster, params = fixed_cluster(problem), problem.params
    if isinstance(cluster, Impossible):
        return cluster
    eta, least = Fraction(params.eta), params.min_reports or 1
    resource = max(Fraction(1), Fraction(params.max_reports or MAX_REPORTS, least))
    most = most_brackets(resource, eta)

    def bracket(number: int) -> list[HalvingRung]:
        rungs = rungs_of(most, most - number % (most + 1), resource * least, eta)
        return [HalvingRung(trials, max(1, round(until)), cluster.gpus) for trials, until in rungs]

    return Brackets(problem, cluster, bracket(0), bracket)


def _tracks(problem: Problem) -> list[Track] | Impossible:
    params = problem.params
    largest = _largest(problem)
    if largest is None:
        least_s, least = params.t_min_s, problem.gpus_text(params.p_min)
        reason = f"one trial of {least} for {least_s:g}s (p_min, t_min) does not fit"
        return Impossible(reason, problem.start_s + least_s, at_least(least_s * params.p_min))
    (most, resource), start_s, tracks = largest, problem.start_s, []
    for bracket in range(most, -1, -1):
        rounds, begin_s = [], start_s
        rungs = rungs_of(most, bracket, resource, Fraction(params.eta))
        for rung, (trials, until) in enumerate(rungs):
            end_s = start_s + float(until * Fraction(params.t_min_s))
            rounds.append(Round(begin_s, end_s, trials, _gpus(problem, rung)))
            begin_s = end_s
        tracks.append(tuple(rounds))
    return tracks


def _gpus(problem: Problem, rung: int) -> int:
    """Return the GPUs of each trial on a rung, from 0: eta times as many on each, up to `p_max`."""
    params = problem.params
    if params.p_max is None:
        return params.p_min
    shared = min(params.p_max, int(params.p_min * Fraction(params.eta) ** rung))
    return max(params.p_min, whole_instances(shared, problem.gpus_per_instance))


def _largest(problem: Problem) -> tuple[int, Fraction] | None:
    """Find (s_max, R): the most brackets that fit, and the largest resource for them, or None.

    Between eta^s_max and eta^(s_max + 1) the cost is proportional to R. If one bracket more would
    cost too much, the budget that is left is not used, as published, except where whole instances
    are paid or `max_gpus` are too few for that many brackets: there trials train longer with it.
    """
    limits, params = problem.planned, problem.params
    eta, unit_s = Fraction(params.eta), Fraction(params.t_min_s)
    by_time = Fraction(limits.deadline_s) / unit_s
    if by_time < 1:
        return None
    crowded = False
    for most in range(most_brackets(by_time, eta), -1, -1):
        tracks = [rungs_of(most, bracket, Fraction(1), eta) for bracket in range(most + 1)]
        peak = sum(rungs[0][0] for rungs in tracks) * params.p_min
        if limits.max_gpus is not None and peak > limits.max_gpus:
            crowded = True
            continue
        units = Fraction(0)
        for rungs in tracks:
            before = [Fraction(0), *(until for _, until in rungs)]
            for rung, (trials, until) in enumerate(rungs):
                units += trials * _gpus(problem, rung) * (until - before[rung])
        resource = min(by_time, Fraction(limits.budget_gpu_s) / (unit_s * units))
        if not (crowded or problem.whole):
            resource = min(eta ** (most + 1), resource)
        if resource >= eta**most:
            return most, resource
    return None


HYPERBAND = halving(course)
E_HYPERBAND = by_wall_clock(_tracks)
