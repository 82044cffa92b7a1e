"""SEER where the number of GPUs is limited, or whole instances are paid: what the paper leaves
open.

The one rule: a first round that would need more GPUs than there may be lasts longer, with fewer
trials. The algorithms are those of `seerd.planner.seer`; every change that this took is told in a
sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from seerd.planner.caching import per_problem
from seerd.planner.model import Impossible, Limits, PolicyParams, Problem
from seerd.planner.seer import Schedule, bracket_parameters, brackets, longest_first_round, seer

WORTH_ROUNDS = Fraction(9, 10)
"""A plan may have more rounds than another if it uses at least this share of the budget that the
other uses.
"""


@per_problem
def schedule(problem: Problem) -> Schedule | Impossible:
    """Compute the published schedule, its first round lengthened until `max_gpus` is respected."""
    limits, params = _clamped(problem)
    made = _too_few(limits, params) or bracket_parameters(limits, params)
    if isinstance(made, Impossible):
        return made
    if limits.max_gpus is not None and made.peak_gpus > limits.max_gpus:
        made = _lengthened(limits, params, made, whole=problem.whole)
    return replace(
        made, start=Fraction(problem.start_s), adjusted=(*problem.adjusted, *made.adjusted)
    )


def _clamped(problem: Problem) -> tuple[Limits, PolicyParams]:
    """Limit p_max: no trial can have more GPUs than there may be."""
    limits, params = problem.planned, problem.params
    bounds = [n for n in (params.p_max, limits.max_gpus) if n is not None]
    p_max = max(params.p_min, min(bounds)) if bounds else None
    return limits, replace(params, p_max=p_max)


def _too_few(limits: Limits, params: PolicyParams) -> Impossible | None:
    """Return why one trial needs more GPUs than there may be; None: it does not."""
    if limits.max_gpus is None or params.p_min <= limits.max_gpus:
        return None
    reason = f"a trial needs {params.p_min} GPUs (p_min), and there may be {limits.max_gpus}"
    return Impossible(reason, params.t_min_s, params.t_min_s * params.p_min)


def _lengthened(limits: Limits, params: PolicyParams, made: Schedule, *, whole: bool) -> Schedule:
    """Find the plan with the most rounds, and among those the shortest first round, whose first
    round fits on `max_gpus` GPUs.

    The peak is at most B / (K t1), so for given K a first round of B / (K max_gpus) is long enough.
    If the budget is more than `max_gpus` GPUs can use within the deadline, only what they can use
    is planned with. If that left one round, in which nothing is compared, what they can use in more
    rounds is planned with instead. Where whole instances are paid, there are as many rounds as
    still use most of the budget: where GPUs limit the trials of the first round, another round
    would only train fewer of them for as long.
    """
    most_gpus = limits.max_gpus or 0
    usable = min(Fraction(limits.budget_gpu_s), most_gpus * Fraction(limits.deadline_s))
    able = replace(limits, budget_gpu_s=float(usable))
    notes = [] if usable == limits.budget_gpu_s else [_unusable(limits, usable)]
    longer = (one for one in _longer_rounds(able, params, made.rounds) if _proper(one, most_gpus))
    less = _with_less(able, params, made.rounds)
    chosen = _worth_most(longer, less) if whole else next(longer, None) or next(less, None)
    chosen = chosen or _one_round(able, params)
    return replace(chosen, adjusted=(*notes, _longer(made, chosen, most_gpus)))


def _worth_most(longer: Iterator[Schedule], less: Iterator[Schedule]) -> Schedule | None:
    """Choose the schedule with the most rounds that uses nearly as much of the budget as any.

    For each number of rounds only the first schedule counts.
    """
    first: dict[int, Schedule] = {}
    for shape in (*longer, *less):
        first.setdefault(shape.rounds, shape)
    enough = WORTH_ROUNDS * max((shape.gpu_s for shape in first.values()), default=Fraction(0))
    return next(
        (first[rounds] for rounds in sorted(first, reverse=True) if first[rounds].gpu_s >= enough),
        None,
    )


def _longer_rounds(able: Limits, params: PolicyParams, most: int) -> Iterator[Schedule]:
    """Yield schedules from `most` rounds down to two.

    Each number of rounds comes twice: with a first round that is just long enough, and with the
    longest.
    """
    for rounds in range(most, 1, -1):
        longest = longest_first_round(able, params, rounds)
        enough = Fraction(able.budget_gpu_s) / (rounds * (able.max_gpus or 1))
        for first_round in (min(longest, max(Fraction(params.t_min_s), enough)), longest):
            yield brackets(able, params, rounds, first_round)


def _with_less(able: Limits, params: PolicyParams, most: int) -> Iterator[Schedule]:
    """Yield schedules from `most` rounds down to two, each with only as much of the budget as all
    GPUs can use in the longest rounds.

    Each number of rounds also comes with one bracket, for when there are too few trials for
    several.
    """
    for rounds in range(most, 1, -1):
        longest = longest_first_round(able, params, rounds)
        less = min(Fraction(able.budget_gpu_s), rounds * longest * (able.max_gpus or 1))
        for p_max in (params.p_max, params.p_min):
            made = brackets(
                replace(able, budget_gpu_s=float(less)),
                replace(params, p_max=p_max),
                rounds,
                longest,
            )
            if longest >= Fraction(params.t_min_s) and _proper(made, able.max_gpus or 0):
                yield made


def _one_round(able: Limits, params: PolicyParams) -> Schedule:
    """Compute the best schedule of one round: the one that uses most GPU-seconds."""
    longest = longest_first_round(able, params, 1)
    enough = Fraction(able.budget_gpu_s) / (able.max_gpus or 1)
    made = [
        brackets(able, replace(params, p_max=p_max), 1, first_round)
        for p_max in (params.p_max, params.p_min)
        for first_round in (min(longest, max(Fraction(params.t_min_s), enough)), longest)
    ]
    return max(
        (shape for shape in made if _proper(shape, able.max_gpus or 0)),
        key=lambda shape: shape.peak_gpus * shape.first_round,
    )


def _proper(made: Schedule, most_gpus: int) -> bool:
    """Tell whether the first round fits, and a trial is left in the last one."""
    left = any(made.members(bracket, made.rounds - 1) for bracket in range(len(made.trials)))
    return made.peak_gpus <= most_gpus and left


def _unusable(limits: Limits, usable: Fraction) -> str:
    gpus = f"{limits.max_gpus} GPU{'s' * (limits.max_gpus != 1)}"
    return (
        f"{gpus} can use at most {_minutes(float(usable))} of the "
        f"{_minutes(limits.budget_gpu_s)} GPU-min in {_minutes(limits.deadline_s)} min"
    )


def _longer(made: Schedule, longer: Schedule, most_gpus: int) -> str:
    lasts, instead = _minutes(float(longer.first_round)), _minutes(float(made.first_round))
    before, after = sum(made.trials), sum(longer.trials)
    trials = (
        f"{after} instead of {before} trials" if after != before else f"as many trials, {after}"
    )
    first = "only round" if made.rounds == 1 else f"first of {made.rounds} rounds"
    return (
        f"the {first} would need {made.peak_gpus} GPUs, and there may be {most_gpus}: "
        + (f"it lasts {lasts} instead of {instead} min, in " if lasts != instead else "there are ")
        + f"{longer.rounds} round{'s' * (longer.rounds > 1)} with {trials}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.4g}"


SEER = seer(schedule)
"""Algorithms 1 to 3 with a limited number of GPUs."""
