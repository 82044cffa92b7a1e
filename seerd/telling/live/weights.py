"""Which hyperparameters are worth a column where there is little room.

The one rule: cheap and without numpy, for a daemon draws this. A number is a share of the variance,
as a person would see it in a table; what is true of it is for `seerd report`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby

from seerd.core.state import State, Trial
from seerd.telling.jobs import ranked_by_job

FEWEST = 8
"""With fewer trials that have reported nothing can be said of what matters."""
GROUPS = 4
"""Into so many groups of equal size the values of a number are divided."""
CHANCE = 5.0
"""A share of less than this over the number of trials is chance in 19 of 20 cases."""
STEP = 0.2
"""Differences smaller than this are not worth another order."""


def weighty(state: State) -> tuple[str, ...]:
    """Return the names of all hyperparameters: those first that explain most of how trials stand,
    then others that vary, then those that do not; else in the order of the space.
    """
    spaces = [job.problem.space for job in state.facts.problem.jobs]
    known = (one.name for space in (state.facts.problem.space, *spaces) for one in space.parameters)
    names = dict.fromkeys((*known, *(n for t in state.trials.values() for n in t.config)))
    by_job = [_weights(its, names) for its in ranked_by_job(state)]
    weights = {name: min(its[name] for its in by_job) for name in names}
    return tuple(sorted(names, key=weights.__getitem__))


def _weights(trials: Sequence[Trial], names: Iterable[str]) -> dict[str, tuple[bool, int]]:
    """Weigh each hyperparameter for trials of one job, best first: less is more."""
    ordered = [trial for trial in trials if trial.metric is not None]
    weights = {}
    for name in names:
        varies = len({trial.config.get(name) for trial in trials}) > 1
        values = [trial.config.get(name) for trial in ordered]
        explained = share(values) if len(ordered) >= FEWEST else 0.0
        explained *= explained * len(ordered) > CHANCE
        weights[name] = (not varies, -int(explained / STEP))
    return weights


def share(values: Sequence[Hashable]) -> float:
    """Return the share (0 to 1) of the variance of places that is between groups of like values,
    less what chance gives. `values`: best place first.
    """
    places = range(len(values))
    groups = _groups(values)
    if len(groups) < 2 or len(values) <= len(groups):
        return 0.0
    mean = (len(values) - 1) / 2
    total = sum((place - mean) ** 2 for place in places)
    within = sum((place - sum(group) / len(group)) ** 2 for group in groups for place in group)
    return max(0.0, 1 - within / total * (len(values) - 1) / (len(values) - len(groups)))


def _groups(values: Sequence[Hashable]) -> list[list[int]]:
    """Divide the places by value: numbers of many values into a few groups of equal size."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(values) and len(set(numbers)) > GROUPS:
        by_value = sorted(range(len(values)), key=numbers.__getitem__)
        size = len(values) / GROUPS
        return [
            by_value[round(size * group) : round(size * (group + 1))] for group in range(GROUPS)
        ]
    named = sorted(range(len(values)), key=lambda place: repr(values[place]))
    return [list(group) for _, group in groupby(named, key=lambda place: repr(values[place]))]
