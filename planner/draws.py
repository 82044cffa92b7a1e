"""Configurations drawn at random, by number: draw 17 of a seed is always the same configuration."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from seerd.planner.caching import per_problem
from seerd.planner.model import Problem
from seerd.planner.space import Config


@dataclass(slots=True)
class Draws:
    """One seed's sequence of independent draws from the problem's space, as far as used. The user's
    own guesses come first; what a guess leaves open is drawn. A run that learns from earlier ones
    does not draw what one of the same seed has drawn.
    """

    _problem: Problem
    _rng: random.Random
    _drawn: list[Config] = field(default_factory=list)

    def __getitem__(self, number: int) -> Config:
        """Return draw number `number`, from 0: what the user has added for it, if anything."""
        if (added := added_for(self._problem, number)) is not None:
            return added
        while len(self._drawn) <= number:
            self._drawn.append(self._problem.space.sample(self._rng))
        return self._drawn[number]


def added_for(problem: Problem, number: int) -> Config | None:
    """Return the configuration that the user has added for a draw, or None."""
    return next((config for at, config in problem.added if at == number), None)


@per_problem
def draws(problem: Problem) -> Draws:
    """Return the sequence of draws of the problem's seed."""
    space, params = problem.space, problem.params
    narrowed = [space.fixed(guess) for guess in params.start]
    guesses = [
        guessed.sample(random.Random(f"{params.seed} {number}"))
        for number, guessed in enumerate(narrowed)
        if guessed.table or not space.table
    ]
    count = len(params.earlier)
    rng = random.Random(f"{params.seed} after {count}" if count else params.seed)
    return Draws(problem, rng, guesses)
