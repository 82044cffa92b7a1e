"""Stages of work on whole instances: what each trial gets, how many instances are held, and for how
long each is rented (RubberBand, EuroSys '21, sections 4.2 and 4.4). A trial that fits an instance
is never split, a larger one has whole instances, and what was rented last is given back first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from seerd.planner.model import Group


@dataclass(frozen=True, slots=True)
class WorkStage:
    """A stage that ends after a number of reports (RubberBand section 3.1)."""

    trials: int  # how many trials run in it
    iterations: int  # reports that each makes in it
    # GPUs in all, shared fairly, at least one each; if there are fewer than trials, these take
    # turns
    gpus: int = 1
    p_max: int | None = None  # most GPUs that one trial can use; None: any number
    groups: tuple[Group, ...] = ()  # instead of a fair share: GPUs of trials side by side


@dataclass(frozen=True, slots=True)
class Lanes:
    """GPUs in lanes, in which trials run one after another."""

    count: int
    gpus_per_trial: int
    turns: int  # trials in each lane, one after another


class Rental(NamedTuple):
    """Instances that are rented and given back together."""

    instances: int
    first: int  # stage at whose beginning they are rented, from 0
    last: int  # stage at whose end they are given back


def halving_rungs(trials: int, least: int, most: int, eta: float) -> list[tuple[int, int]]:
    """Return the stages of SHA(n, r, R, eta), each as (trials, reports in all) (section 2): floor(n
    / eta^i) trials for r * eta^i further reports. The last, with one trial, before none, or that
    would reach R, goes on to R.
    """
    exact, until = Fraction(eta), Fraction(0)
    made: list[tuple[int, int]] = []
    while True:
        stage = len(made)
        until += least * exact**stage
        here = int(trials / exact**stage)
        if here <= 1 or trials < exact ** (stage + 1) or until >= most:
            return [*made, (here, most)]
        made.append((here, round(until)))


def work_stages(
    rungs: Sequence[tuple[int, int]], p_max: int | None = None
) -> tuple[WorkStage, ...]:
    """Return the stages of work of these rungs; a planner fills in their GPUs."""
    before = [0, *(until for _, until in rungs)]
    return tuple(
        WorkStage(trials, until - done, p_max=p_max)
        for (trials, until), done in zip(rungs, before, strict=False)
    )


def instances_for(groups: Sequence[Group], gpus_per_instance: int) -> int:
    """Return the fewest whole instances that hold the groups, the largest trials placed first."""
    used = 0
    free: Counter[int] = Counter()
    for group in sorted(groups, key=lambda g: -g.gpus_per_trial):
        left, size = group.trials, group.gpus_per_trial
        if size >= gpus_per_instance:
            used += left * -(-size // gpus_per_instance)
            continue
        for room in sorted(room for room in free if room >= size):
            each = room // size  # trials that find a place in an instance with so much room
            full = min(free[room], left // each)
            free[room] -= full
            free[room - each * size] += full
            left -= full * each
            if 0 < left < each and free[room]:
                free[room] -= 1
                free[room - left * size] += 1
                left = 0
        fit = gpus_per_instance // size
        used += -(-left // fit)
        free[gpus_per_instance - fit * size] += left // fit
        if left % fit:
            free[gpus_per_instance - (left % fit) * size] += 1
    return used


def share(trials: int, gpus: int, gpus_per_instance: int, p_max: int | None = None) -> int:
    """Return the GPUs per trial when `gpus` are shared fairly, such that all fit the instances; 0:
    there are fewer GPUs than trials, which take turns.
    """
    held = -(-gpus // gpus_per_instance)
    most = gpus // trials if p_max is None else min(p_max, gpus // trials)
    if most >= gpus_per_instance:
        return most - most % gpus_per_instance
    fitting = (p for p in range(most, 0, -1) if held * (gpus_per_instance // p) >= trials)
    return next(fitting, 0)


def lanes(stage: WorkStage, gpus_per_instance: int) -> tuple[Lanes, ...]:
    """Lay out which trials run side by side, and which one after another."""
    if stage.groups:
        return tuple(Lanes(group.trials, group.gpus_per_trial, 1) for group in stage.groups)
    each = share(stage.trials, stage.gpus, gpus_per_instance, stage.p_max)
    if each:
        return (Lanes(stage.trials, each, 1),)
    turns, longer = divmod(stage.trials, stage.gpus)
    both = (Lanes(longer, 1, turns + 1), Lanes(stage.gpus - longer, 1, turns))
    return tuple(lane for lane in both if lane.count)


def instances_of(stage: WorkStage, gpus_per_instance: int) -> int:
    """Return how many whole instances the stage holds."""
    if stage.groups:
        return instances_for(stage.groups, gpus_per_instance)
    return -(-stage.gpus // gpus_per_instance)


def rentals(instances: Sequence[int]) -> tuple[Rental, ...]:
    """List which instances are held from when to when, given how many each stage holds."""
    made: list[Rental] = []
    held: list[tuple[int, int]] = []
    before = 0
    for number, count in enumerate([*instances, 0]):
        surplus, before = before - count, count
        while surplus > 0:
            youngest, first = held.pop()
            back = min(youngest, surplus)
            made.append(Rental(back, first, number - 1))
            if back < youngest:
                held.append((youngest - back, first))
            surplus -= back
        if surplus < 0:
            held.append((-surplus, number))
    return tuple(made)
