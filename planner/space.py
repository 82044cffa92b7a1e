"""The search space: what may be tried, and how a configuration is drawn from it.

The one rule: randomness comes from the generator that is passed in, one draw per parameter in the
order of the spec.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Value = float | int | str | bool
Config = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension: either `choices`, or a range. Raises `ValueError` for a range that cannot be.

    name       the hyperparameter
    choices    its values; empty: a range
    low, high  ends of the range, both included
    step       values are `low`, `low + step`, ...; None: any
    log        the range is uniform in its logarithm
    integer    values are whole numbers
    """

    name: str
    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        if self.choices:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low = {self.low:g} must be smaller than high = {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g} must be greater than 0 when log = true")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(
                f"step = {self.step:g} must be greater than 0 and fit between low and high"
            )

    def sample(self, rng: random.Random) -> Value:
        """Draw one value, uniform over the choices or the range (over its logarithm if `log`)."""
        if self.choices:
            return self.choices[rng.randrange(len(self.choices))]
        return self.at(rng.random())

    def default(self) -> Value:
        """Return the first choice, or the middle of the range (the geometric middle if `log`)."""
        return self.choices[0] if self.choices else self.at(0.5)

    def at(self, share: float) -> Value:
        """Return the value at this share of the range, 0 to 1 (of its logarithm if `log`).

        Choices have no such values.
        """
        value = self._between(share)
        return value if self.step is None and not self.integer else self._on_grid(value)

    def share(self, value: Value) -> float:
        """Compute where in the range a value lies, 0 to 1: the inverse of `at`.

        Of a choice it is its place among the choices.
        """
        if self.choices:
            return self.choices.index(value) / max(1, len(self.choices) - 1)
        scale: Callable[[float], float] = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return (scale(min(self.high, max(self.low, float(value)))) - low) / (high - low)

    def values(self, most: int) -> tuple[Value, ...]:
        """List all values if there are at most `most`, else `most` evenly spread ones.

        Of choices all are listed, whatever their number.
        """
        if self.choices:
            return self.choices
        shares = [i / (most - 1) if most > 1 else 0.5 for i in range(most)]
        if self.step is None and not self.integer:
            return tuple(self._between(share) for share in shares)
        step = 1.0 if self.step is None else self.step
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count <= most:
            return tuple(self._on_grid(self.low + step * i) for i in range(count))
        return tuple(dict.fromkeys(self._on_grid(self._between(share)) for share in shares))

    def _between(self, share: float) -> float:
        if self.log:
            value = math.exp(
                math.log(self.low) + share * (math.log(self.high) - math.log(self.low))
            )
        else:
            value = self.low + share * (self.high - self.low)
        return min(self.high, max(self.low, value))

    def _on_grid(self, value: float) -> Value:
        """Return the nearest of low, low + step, ..., not above high."""
        step = 1.0 if self.step is None else self.step
        last = math.floor((self.high - self.low) / step + 1e-9)
        snapped = self.low + step * min(last, round((value - self.low) / step))
        return round(snapped) if self.integer else snapped


@dataclass(frozen=True, slots=True)
class Space:
    """All dimensions, in the order of the spec.

    parameters  the dimensions
    table       if not empty, only these configurations exist (those that a file of recorded curves
                has); they may have more keys than there are parameters
    """

    parameters: tuple[Parameter, ...] = ()
    table: tuple[Config, ...] = ()

    def sample(self, rng: random.Random) -> Config:
        """Draw one configuration."""
        if self.table:
            return self.table[rng.randrange(len(self.table))]
        return {parameter.name: parameter.sample(rng) for parameter in self.parameters}

    def defaults(self) -> Config:
        """Return the configuration of a script that is started by hand: the default of every
        parameter.
        """
        return {parameter.name: parameter.default() for parameter in self.parameters}

    def grid(self, most: int) -> Iterator[Config]:
        """Yield every combination of values, with at most `most` values for each range."""
        if self.table:
            yield from self.table
            return
        names = [parameter.name for parameter in self.parameters]
        for values in itertools.product(*(parameter.values(most) for parameter in self.parameters)):
            yield dict(zip(names, values, strict=True))
