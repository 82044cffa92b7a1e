"""The user's guesses, `[policy] start`: (partial) configurations that are tried first. A guess is
taken as written, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seerd.planner.parameter import Config, listed, plain
from seerd.planner.space import Space, never_met


def why_not(space: Space, guess: Config) -> str:
    """Return why a guess can never be tried in this space; empty if it can."""
    parameters = {parameter.name: parameter for parameter in space.parameters}
    for name, value in guess.items():
        if name not in parameters:
            return f"there is no parameter {name} in [space]"
        if not parameters[name].may_be(value):
            return f"{name} = {listed(value)!r:.80} is not in [space]"
        if not parameters[name].active(guess):
            needed = " and ".join(
                f"{condition.parameter} = {' or '.join(map(repr, condition.values))}"
                for condition in parameters[name].when
            )
            return f"{name} is not active: it needs {needed} in the same guess"
    return never_met(space.fixed(guess)) if space.constraints else ""


def guesses(
    written: tuple[Config, ...], space: Space, wrong: Callable[[str, Any, str], None]
) -> tuple[Config, ...]:
    """Return the guesses that can be tried; call `wrong` (key, value, why) for the others."""
    good = []
    for guess in written:
        if why := why_not(space, guess):
            wrong("policy.start", plain(guess), why)
        else:
            good.append(guess)
    return tuple(good)
