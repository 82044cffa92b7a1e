"""E-Hyperband: all brackets of Hyperband at the same time, on a cluster that shrinks (Dunlap et
al., SEER, section 6.3; brackets as in Li et al., "Hyperband", JMLR 2018, Algorithm 1).

The one rule: a unit of resource is `t_min` on `p_min` GPUs; R is the largest for which all brackets
fit into the deadline and the budget.

Without `p_max` the cluster shrinks and no trial gets more GPUs. Section 6.4 sets `p_max` for
E-Hyperband too and does not say what it does; here those that are left share the GPUs of the
trials that their bracket has dropped, up to `p_max` each, and R is what the limits then pay for.
"""

from __future__ import annotations

from fractions import Fraction

from seerd.planner.fixed_cluster import at_least, whole_instances
from seerd.planner.hyperband import most_brackets, rungs_of
from seerd.planner.model import Impossible, Problem
from seerd.planner.remainder import longest
from seerd.planner.wall_clock import Round, Track, by_wall_clock


def _tracks(problem: Problem) -> list[Track] | Impossible:
    params = problem.params
    largest = _largest(problem)
    if largest is None:
        least_s = params.t_min_s
        reason = f"one trial of {params.p_min} GPUs for {least_s:g}s (p_min, t_min) does not fit"
        return Impossible(reason, problem.start_s + least_s, at_least(least_s * params.p_min))
    most, resource = largest
    return [_track(problem, most, resource, bracket) for bracket in range(most, -1, -1)]


def _track(problem: Problem, most: int, resource: Fraction, bracket: int) -> Track:
    unit_s, start_s = Fraction(problem.params.t_min_s), problem.start_s
    rungs = rungs_of(most, bracket, resource, Fraction(problem.params.eta))
    rounds, begin_s = [], start_s
    for rung, (trials, until) in enumerate(rungs):
        end_s = start_s + float(until * unit_s)
        rounds.append(Round(begin_s, end_s, trials, _gpus(problem, rung)))
        begin_s = end_s
    return Track(tuple(rounds))


def _gpus(problem: Problem, rung: int) -> int:
    """Count the GPUs of each trial on a rung, from 0: eta times as many on each, up to `p_max`."""
    params = problem.params
    if params.p_max is None:
        return params.p_min
    shared = min(params.p_max, int(params.p_min * Fraction(params.eta) ** rung))
    return max(params.p_min, whole_instances(shared, problem.gpus_per_instance))


def _largest(problem: Problem) -> tuple[int, Fraction] | None:
    """Find (s_max, R): the most brackets that fit, and the largest resource for them.

    Between eta^s_max and eta^(s_max + 1) the cost is proportional to R, so the most brackets that
    fit have the largest R. If `max_gpus` are too few for that many brackets, there are fewer. If
    one bracket more would cost too much, the budget that is left is not used, as published; where
    whole instances are paid, trials train longer with it. None: not even one bracket fits.
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
        units = sum(_units(problem, rungs) for rungs in tracks)
        affordable = min(by_time, Fraction(limits.budget_gpu_s) / (unit_s * units))
        resource = affordable if crowded else longest(problem, eta ** (most + 1), affordable)
        if resource >= eta**most:
            return most, resource
    return None


def _units(problem: Problem, rungs: list[tuple[int, Fraction]]) -> Fraction:
    """Add up the GPUs times units of time that a bracket takes."""
    total, before = Fraction(0), Fraction(0)
    for rung, (trials, until) in enumerate(rungs):
        total += trials * _gpus(problem, rung) * (until - before)
        before = until
    return total


E_HYPERBAND = by_wall_clock(_tracks)
