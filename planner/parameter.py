"""One dimension of a search space: what values it may have, and how likely each is. A value and its
share of the distribution, 0 to 1, are two names of one thing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

Scalar = float | int | str | bool
# a list of a spec is a tuple, so that values can be compared and be in sets
Value = Scalar | tuple[Scalar | tuple[Scalar, ...], ...]
Config = Mapping[str, Value]  # values by the names of parameters; one that is inactive is absent
Key = tuple[tuple[str, Value], ...]  # the same for equal configurations

FARTHEST = 6.0  # how many deviations from the mean a normal's values end
# least part of a normal that `low` and `high` may leave: with less, shares are not exact
LEAST_MASS = 1e-6
MOST_FACTOR = 1e100  # the largest factor between the mean and the ends of a log-normal
STANDARD = NormalDist()
SMALLEST = STANDARD.cdf(-FARTHEST - 1)


def same(a: Value, b: Value) -> bool:
    """Return whether two values are the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def key_of(config: Config) -> Key:
    """Return a configuration's key."""
    return tuple(sorted(config.items()))


def plain(config: Config) -> dict[str, Any]:
    """Return a configuration as scripts get it, with lists."""
    return {name: listed(value) for name, value in config.items()}


def listed(value: Value) -> Any:
    """Return a value as scripts get it, with lists."""
    return list(map(listed, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Condition:
    """When a parameter is active: another one, which stands before it, has one of these values."""

    parameter: str  # the other one; if it is inactive, the condition does not hold
    values: tuple[Value, ...]  # at least one

    def holds(self, config: Config) -> bool:
        """Return whether it holds in a configuration."""
        value = config.get(self.parameter)
        return value is not None and any(same(value, choice) for choice in self.values)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension: `choices`, a range, or a normal. Raises `ValueError` if it cannot be."""

    name: str  # the hyperparameter
    choices: tuple[Value, ...] = ()  # its values, all equally likely; empty: a range or a normal
    low: float = 0.0  # the lower end, included
    high: float = 0.0  # the upper end, included
    step: float | None = None  # values are `low`, `low + step`, ...; None: any
    log: bool = False  # the logarithm of the value is uniform, or normal
    integer: bool = False  # values are whole numbers
    # of a normal that is cut off at the ends; with `log` the geometric mean. None: a range
    mean: float | None = None
    # of that normal; with `log` the geometric one, so that it is a factor. None: a range
    std: float | None = None
    when: tuple[Condition, ...] = ()  # active if all of these hold, else absent from configurations

    def __post_init__(self) -> None:
        if self.choices:
            return
        if self.mean is not None:
            check_normal(self.mean, self.std or 0.0, log=self.log)
        if not (math.isfinite(self.high - self.low) and self.low < self.high):
            raise ValueError(f"low = {self.low:g} must be smaller than high = {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g} must be greater than 0 when log = true")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(
                f"step = {self.step:g} must be greater than 0 and fit between low and high"
            )
        low, high = self._edges()
        if self.mean is not None and self._level(high) - self._level(low) < LEAST_MASS:
            raise ValueError("low and high leave less than a millionth of the normal")

    @property
    def stepped(self) -> bool:
        """Whether a range or a normal has only the values of a grid."""
        return not self.choices and (self.integer or self.step is not None)

    def active(self, config: Config) -> bool:
        """Return whether it is active, from the values of the parameters before it."""
        return all(condition.holds(config) for condition in self.when)

    def may_be(self, value: Value) -> bool:
        """Return whether it may have this value."""
        if self.choices:
            return any(same(value, choice) for choice in self.choices)
        if isinstance(value, str | bool | tuple) or not self.low <= value <= self.high:
            return False
        return not self.stepped or self.at(self.share(value)) == value

    def sample(self, rng: random.Random) -> Value:
        """Draw one value."""
        if self.choices:
            return self.choices[rng.randrange(len(self.choices))]
        return self.at(rng.random())

    def default(self) -> Value:
        """Return the first choice, the mean, or the middle of the range (geometric if `log`)."""
        if self.choices:
            return self.choices[0]
        middle = self._unscaled((self._scaled(self.low) + self._scaled(self.high)) / 2)
        value = min(self.high, max(self.low, middle if self.mean is None else self.mean))
        return self._on_grid(value) if self.stepped else value

    def at(self, share: float) -> Value:
        """Return the value at this share of the distribution, 0 to 1; not for choices."""
        value = self._between(share)
        return self._on_grid(value) if self.stepped else value

    def share(self, value: Value) -> float:
        """Return the share at which a value lies: the inverse of `at`, or the place of a choice."""
        if self.choices:
            return self.place(value) / max(1, len(self.choices) - 1)
        low, high = self._edges()
        scaled = self._scaled(min(self.high, max(self.low, float(cast("float", value)))))
        return (self._level(scaled) - self._level(low)) / (self._level(high) - self._level(low))

    def place(self, value: Value) -> int:
        """Return the index of a value among the choices. Raises `ValueError` if it is none."""
        for place, choice in enumerate(self.choices):
            if same(value, choice):
                return place
        raise ValueError(f"{value!r:.80} is no choice of {self.name}")

    def values(self, most: int) -> tuple[Value, ...]:
        """List all choices, or at most `most` evenly spread values: of a range with its ends, of a
        normal from the middle of parts that are equally likely.
        """
        if self.choices:
            return self.choices
        with_ends = self.mean is None and most > 1
        shares = [i / (most - 1) if with_ends else (i + 0.5) / most for i in range(most)]
        if not self.stepped:
            return tuple(self._between(share) for share in shares)
        count = self._last() + 1
        if count <= most:
            return tuple(self._of_grid(i) for i in range(count))
        return tuple(dict.fromkeys(self._on_grid(self._between(share)) for share in shares))

    def _step(self) -> float:
        return 1.0 if self.step is None else self.step

    def _edges(self) -> tuple[float, float]:
        """Return the scaled ends, half a step beyond a grid's, so that these are as likely."""
        if not self.stepped:
            return self._scaled(self.low), self._scaled(self.high)
        half = self._step() / 2
        low = max(self.low - half, self.low / 2) if self.log else self.low - half
        return self._scaled(low), self._scaled(self.low + self._step() * self._last() + half)

    def _between(self, share: float) -> float:
        low, high = self._edges()
        if self.mean is None:
            scaled = low + share * (high - low)
        else:
            from_, to = self._level(low), self._level(high)
            level = from_ + share * (to - from_)  # which rounding may have made 0 or 1
            z = STANDARD.inv_cdf(min(1 - SMALLEST, max(SMALLEST, level)))
            scaled = self._scaled(self.mean) + self._scaled(self.std or 0.0) * z
        value = self._unscaled(min(high, max(low, scaled)))
        return min(self.high, max(self.low, value))

    def _level(self, scaled: float) -> float:
        """Return how much of the uncut normal lies below a scaled value; of a range, the value."""
        if self.mean is None:
            return scaled
        return STANDARD.cdf((scaled - self._scaled(self.mean)) / self._scaled(self.std or 0.0))

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value

    def _unscaled(self, scaled: float) -> float:
        return math.exp(scaled) if self.log else scaled

    def _last(self) -> int:
        return math.floor((self.high - self.low) / self._step() + 1e-9)

    def _on_grid(self, value: float) -> Value:
        return self._of_grid(min(self._last(), round((value - self.low) / self._step())))

    def _of_grid(self, number: int) -> Value:
        """Return value number `number` of the grid as people write it: 0.15, not 0.150000002."""
        value = self.low + self._step() * number
        if self.integer:
            return round(min(self.high, max(self.low, value)))
        digits = 9 - math.floor(math.log10(self._step()))
        return min(self.high, max(self.low, round(value, digits)))


def check_normal(mean: float, std: float, *, log: bool) -> None:
    """Raise `ValueError` if there is no such normal."""
    above = "greater than 0 when log = true" if log else "finite"
    if not math.isfinite(mean) or (log and mean <= 0):
        raise ValueError(f"mean = {mean:g} must be {above}")
    if not (1.0 if log else 0.0) < std < math.inf:
        least = "1 when log = true, where it is a factor" if log else "0"
        raise ValueError(f"std = {std:g} must be greater than {least}")


def ends(mean: float, std: float, step: float | None, *, log: bool) -> tuple[float, float]:
    """Return low and high of a normal that is not cut off: `FARTHEST` deviations from its mean,
    which is on the grid. Raises `ValueError` if there is no such normal.
    """
    check_normal(mean, std, log=log)
    if log and math.log(std) * FARTHEST > math.log(MOST_FACTOR):
        raise ValueError(f"std = {std:g} is too large for a factor")
    factor = std**FARTHEST if log else 1.0
    if log:
        low, high = mean / factor, mean * factor
    else:
        low, high = mean - FARTHEST * std, mean + FARTHEST * std
    if step is not None and step > 0:
        low = mean - step * math.floor((mean - low) / step)
    return low, high
