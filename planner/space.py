"""The search space: what may be tried, and how a configuration is drawn from it: one draw per
parameter, in the order of the spec, whether the parameter is active or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from seerd.planner.constraints import constraint
from seerd.planner.parameter import Condition, Config, Parameter, Value, listed

GRID_VALUES = 5  # how many values of a range a grid has
MOST_POINTS = 100_000  # most combinations of a grid that are looked at
__all__ = ["Condition", "Config", "NoConfigurationError", "Parameter", "Space", "Value"]

TRIES = 10_000  # most configurations that are drawn to see whether the constraints can be met
MET = 10  # how many of those have to meet them, so that drawing does not take too long
LOOKED_AT = 100  # least configurations that each constraint is tried on
MOST_TRIES = 1_000_000  # after so many draws without one that meets the constraints, none is drawn


class NoConfigurationError(Exception):
    """No configuration meets the constraints; the text says where none was found."""


@dataclass(frozen=True, slots=True)
class Space:
    """All dimensions, in the order of the spec."""

    parameters: tuple[Parameter, ...] = ()  # a condition names a dimension that stands before
    # if not empty, only these configurations exist (those that a file of recorded curves has); they
    # may have more keys than there are parameters
    table: tuple[Config, ...] = ()
    # expressions that every configuration that is drawn meets; see `seerd.planner.constraints`
    constraints: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The hyperparameters."""
        return [parameter.name for parameter in self.parameters]

    def sample(self, rng: random.Random, most_tries: int = MOST_TRIES) -> Config:
        """Draw one configuration. Raises `NoConfigurationError` if none meets the constraints."""
        if self.table:
            return self.table[rng.randrange(len(self.table))]
        for _ in range(most_tries):
            config = self.drawn(rng)
            if self.allows(config):
                return config
        raise NoConfigurationError(
            f"none of {most_tries:,} configurations that were drawn meets the constraints: "
            f"{'; '.join(self.constraints)}"
        )

    def fixed(self, values: Config) -> Space:
        """Return the space in which these parameters have these values; such rows stay."""
        parameters = tuple(
            replace(p, choices=(values[p.name],)) if p.name in values else p
            for p in self.parameters
        )
        rows = tuple(row for row in self.table if values.items() <= row.items())
        return replace(self, parameters=parameters, table=rows)

    def allows(self, config: Config) -> bool:
        """Return whether a configuration meets all constraints."""
        return all(constraint(text).met(config) for text in self.constraints)

    def defaults(self) -> Config:
        """Return every active parameter's default, or if forbidden what `sample` draws."""
        config = self._filled(lambda parameter: parameter.default())
        return config if self.allows(config) else self.sample(random.Random(0))

    def grid(self, values: int = GRID_VALUES, most: int = MOST_POINTS) -> Iterator[Config]:
        """Yield the allowed ones of the first `most` combinations, `values` of each range."""
        combinations = iter(self.table) if self.table else self._combined(values)
        return (config for config in islice(combinations, most) if self.allows(config))

    def drawn(self, rng: random.Random) -> Config:
        """Draw a value for every parameter, whatever the constraints are."""
        return self._filled(lambda parameter: parameter.sample(rng))

    def _filled(self, choose: Callable[[Parameter], Value]) -> Config:
        config: dict[str, Value] = {}
        for parameter in self.parameters:
            value = choose(parameter)
            if parameter.active(config):
                config[parameter.name] = value
        return config

    def _combined(self, values: int) -> Iterator[Config]:
        begun: list[Iterator[Config]] = [iter([{}])]  # by how many parameters have a value
        while begun:
            config = next(begun[-1], None)
            if config is None:
                begun.pop()
            elif len(begun) > len(self.parameters):
                yield config
            else:
                begun.append(_continued(config, self.parameters[len(begun) - 1], values))


def _continued(config: Config, parameter: Parameter, values: int) -> Iterator[Config]:
    """Yield a configuration with each value of one more parameter, if that is active."""
    if not parameter.active(config):
        yield config
        return
    for value in parameter.values(values):
        yield {**config, parameter.name: value}


def never_met(space: Space) -> str:
    """Say why the constraints are met by none, or hardly any; empty if they are."""
    rng, constraints = random.Random(0), [constraint(text) for text in space.constraints]
    each, together = [0] * len(constraints), 0
    for tried in range(1, TRIES + 1):
        config = space.drawn(rng)
        for read in constraints:
            if mistake := read.mistaken(config):
                return f"{read.text!r} cannot be computed: {mistake}"
        met = [read.met(config) for read in constraints]
        each = [count + is_met for count, is_met in zip(each, met, strict=True)]
        together += all(met)
        if together >= MET and tried >= LOOKED_AT:
            return ""
    alone = ", ".join(f"{read.text!r} by {n:,}" for read, n in zip(constraints, each, strict=True))
    return (
        f"of {TRIES:,} configurations drawn from the space {together or 'none'} met all "
        f"constraints, and {MET} are needed ({alone}); narrow the ranges, or demand less"
    )


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
