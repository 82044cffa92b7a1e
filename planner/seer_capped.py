"""SEER where the number of GPUs is limited, or whole instances are paid: what the paper leaves
open.

A first round that would need more GPUs than there may be lasts longer, with fewer trials.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from seerd.planner.model import Impossible, Limits, PolicyParams, Problem
from seerd.planner.seer import Schedule, bracket_parameters, brackets, longest_first_round, seer

# least share of another plan's budget that a plan of more rounds must use
WORTH_ROUNDS = Fraction(9, 10)


def schedule(problem: Problem) -> Schedule | Impossible:
    """Return the published schedule, its first round lengthened until `max_gpus` is respected."""
    limits, params = problem.planned, problem.params
    if limits.max_gpus is not None and params.p_min > limits.max_gpus:
        least, there = problem.gpus_text(params.p_min), problem.gpus(limits.max_gpus)
        reason = f"a trial needs {least} (p_min), and there may be {there}"
        return Impossible(reason, params.t_min_s, params.t_min_s * params.p_min)
    bounds = [n for n in (params.p_max, limits.max_gpus) if n is not None]
    params = replace(params, p_max=max(params.p_min, min(bounds)) if bounds else None)
    made = bracket_parameters(limits, params, problem.parts)
    if isinstance(made, Impossible):
        return made
    if limits.max_gpus is not None and made.peak_gpus > limits.max_gpus:
        made = _lengthened(problem, params, made)
    adjusted = (*problem.adjusted, *made.adjusted)
    return replace(made, start=Fraction(problem.start_s), adjusted=adjusted)


def _lengthened(problem: Problem, params: PolicyParams, made: Schedule) -> Schedule:
    """Find the plan with the most rounds, and then the shortest first round, that fits `max_gpus`:
    for given K a first round of B / (K max_gpus) is long enough. Only what those GPUs can use is
    planned with; if that left one round, what they can use in more. Where whole instances are paid,
    only rounds count that still use most of the budget.
    """
    limits, parts = problem.planned, problem.parts
    most_gpus = limits.max_gpus or 0
    usable = min(Fraction(limits.budget_gpu_s), most_gpus * Fraction(limits.deadline_s))
    able = replace(limits, budget_gpu_s=float(usable))
    notes = []
    if usable != limits.budget_gpu_s:
        gpus, most_s = problem.gpus_text(most_gpus), float(usable) / parts
        notes.append(
            f"{gpus} can use at most {_minutes(most_s)} of the "
            f"{_minutes(limits.budget_gpu_s / parts)} GPU-min in {_minutes(limits.deadline_s)} min"
        )
    shapes = (s for s in _shapes(able, params, made.rounds) if _proper(s, most_gpus))
    chosen = _worth_most(shapes) if problem.whole else next(shapes, None)
    chosen = chosen or _one_round(able, params)
    lasts, instead = _minutes(float(chosen.first_round)), _minutes(float(made.first_round))
    before, after = sum(made.trials), sum(chosen.trials)
    trials = (
        f"as many trials, {after}" if after == before else f"{after} instead of {before} trials"
    )
    first = "only round" if made.rounds == 1 else f"first of {made.rounds} rounds"
    notes.append(
        f"the {first} would need {problem.gpus_text(made.peak_gpus)}, and there may be "
        f"{problem.gpus(most_gpus)}: "
        + (f"it lasts {lasts} instead of {instead} min, in " if lasts != instead else "there are ")
        + f"{chosen.rounds} round{'s' * (chosen.rounds > 1)} with {trials}"
    )
    return replace(chosen, adjusted=tuple(notes))


def _worth_most(shapes: Iterator[Schedule]) -> Schedule | None:
    """Choose the schedule with the most rounds that uses nearly as much of the budget as any."""
    first: dict[int, Schedule] = {}
    for shape in shapes:
        first.setdefault(shape.rounds, shape)
    enough = WORTH_ROUNDS * max((shape.gpu_s for shape in first.values()), default=Fraction(0))
    by_rounds = (first[rounds] for rounds in sorted(first, reverse=True))
    return next((shape for shape in by_rounds if shape.gpu_s >= enough), None)


def _shapes(able: Limits, params: PolicyParams, most: int) -> Iterator[Schedule]:
    """Yield schedules from `most` rounds down to two: with the shortest first round, and the
    longest. Then those with only as much of the budget as all GPUs can use in the longest rounds,
    also with one bracket, for when trials are few.
    """
    budget, gpus, t_min = Fraction(able.budget_gpu_s), able.max_gpus or 1, Fraction(params.t_min_s)
    longest = {n: longest_first_round(able, params, n) for n in range(most, 1, -1)}
    for rounds, longest_s in longest.items():
        for first_round in (min(longest_s, max(t_min, budget / (rounds * gpus))), longest_s):
            yield brackets(able, params, rounds, first_round)
    for rounds, longest_s in longest.items():
        within = replace(able, budget_gpu_s=float(min(budget, rounds * longest_s * gpus)))
        for p_max in (params.p_max, params.p_min) if longest_s >= t_min else ():
            yield brackets(within, replace(params, p_max=p_max), rounds, longest_s)


def _one_round(able: Limits, params: PolicyParams) -> Schedule:
    longest = longest_first_round(able, params, 1)
    enough = Fraction(able.budget_gpu_s) / (able.max_gpus or 1)
    made = [
        brackets(able, replace(params, p_max=p_max), 1, first_round)
        for p_max in (params.p_max, params.p_min)
        for first_round in (min(longest, max(Fraction(params.t_min_s), enough)), longest)
    ]
    proper = (shape for shape in made if _proper(shape, able.max_gpus or 0))
    return max(proper, key=lambda shape: shape.peak_gpus * shape.first_round)


def _proper(made: Schedule, most_gpus: int) -> bool:
    """Return whether the first round fits, and a trial is left in the last one."""
    left = any(made.members(bracket, made.rounds - 1) for bracket in range(len(made.trials)))
    return made.peak_gpus <= most_gpus and left


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.4g}"


SEER = seer(schedule)
