"""What goes wrong in one run, and how often: values drawn from its seed, each of which can be
switched off alone.

The one rule: a fault is a name with numbers. Whatever draws from a dice has one of its own, so that
a fault that is switched off changes as little of the rest as can be.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

Span = tuple[float, float]
"""From and until, seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How often, by name: a share of the occasions (rates), or moments and spans of time (`spans`);
    absent: never.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Everything that can go wrong in it."""
        return sorted([*self.rates, *self.spans])

    def without(self, name: str) -> Weather:
        """The same without this."""
        return Weather(
            {key: rate for key, rate in self.rates.items() if key != name},
            {key: spans for key, spans in self.spans.items() if key != name},
        )


class Chance:
    """Draws what goes wrong, and counts it."""

    def __init__(self, weather: Weather, seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self._weather = weather
        self._seed = seed
        self._dice: dict[str, random.Random] = {}

    def hits(self, name: str, *, times: float = 1.0) -> bool:
        """Whether this goes wrong now."""
        rate = self._weather.rates.get(name, 0.0) * times
        if rate == 0.0 or self.dice(name).random() >= rate:
            return False
        self.injected[name] += 1
        return True

    def can(self, name: str) -> bool:
        """Whether this goes wrong at times."""
        return name in self._weather.rates

    def during(self, name: str, now: float) -> bool:
        """Whether this is one of its times."""
        for since, until in self._weather.spans.get(name, ()):
            if since <= now < until:
                self.injected[name] += 1
                return True
        return False

    def until(self, name: str, now: float) -> float:
        """When the present time of this ends; now if it is none."""
        return max(
            [
                now,
                *(
                    until
                    for since, until in self._weather.spans.get(name, ())
                    if since <= now < until
                ),
            ]
        )

    def spans(self, name: str) -> tuple[Span, ...]:
        """All its times."""
        return self._weather.spans.get(name, ())

    def dice(self, name: str) -> random.Random:
        """The dice of this alone."""
        if name not in self._dice:
            self._dice[name] = random.Random(f"{self._seed} {name}")
        return self._dice[name]

    def lasts(self, name: str, least_s: float, most_s: float) -> float:
        """How long something takes; most of the time near the least."""
        return least_s + (most_s - least_s) * self.dice(f"time of {name}").random() ** 3
