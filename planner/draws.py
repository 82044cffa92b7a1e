"""Configurations drawn at random, by number: draw 17 of a seed is always the same configuration.

The one rule: a draw is a function of the space, the seed and its number; what is kept here only
saves the time of drawing the earlier ones again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from seerd.planner.caching import per_problem
from seerd.planner.model import Problem
from seerd.planner.space import Config


@dataclass(slots=True)
class Draws:
    """One seed's sequence of independent draws from the problem's space, as far as it has been
    used.

    The person's own guesses come first; what a guess leaves open is drawn. A run that knows earlier
    ones does not draw what one of the same seed has drawn.
    """

    _problem: Problem
    _rng: random.Random
    _drawn: list[Config] = field(default_factory=list)

    def __getitem__(self, number: int) -> Config:
        """Return draw number `number`, counted from 0: what the person has added for it, if
        anything.
        """
        if (added := added_for(self._problem, number)) is not None:
            return added
        while len(self._drawn) <= number:
            self._drawn.append(self._problem.space.sample(self._rng))
        return self._drawn[number]


def added_for(problem: Problem, number: int) -> Config | None:
    """Return the configuration that the person has added for a draw; None: none."""
    return next((config for at, config in problem.added if at == number), None)


@per_problem
def draws(problem: Problem) -> Draws:
    """Return the sequence of draws of the problem's seed."""
    space, params = problem.space, problem.params
    narrowed = [space.fixed(guess) for guess in params.start]
    guesses = [
        one.sample(random.Random(f"{params.seed} {number}"))
        for number, one in enumerate(narrowed)
        if one.table or not space.table
    ]
    count = len(params.earlier)
    rng = random.Random(f"{params.seed} after {count}" if count else params.seed)
    return Draws(problem, rng, guesses)
