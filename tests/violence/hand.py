"""The hand that hurts a run: what it will do and when, drawn from one seed.

The one rule: everything random comes from the generator that is handed in, so that a seed gives the
same intentions again; what becomes of them depends on the machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Act:
    """`what` is done `at_s` seconds after the run began, and undone `for_s` later where it lasts;
    `share` (0 to 1) picks the victim.
    """

    at_s: float
    what: str
    for_s: float
    share: float

    def __str__(self) -> str:
        return f"{self.at_s:.2f}s {self.what} for {self.for_s:.1f}s"


def draw(
    chance: random.Random, kinds: Mapping[str, float], *, count: int, within_s: float
) -> list[Act]:
    """So many acts within the first `within_s` seconds; `kinds`: how likely each is, relative to
    the others.
    """
    moments = sorted(chance.uniform(0.0, within_s) for _ in range(count))
    names, weights = list(kinds), list(kinds.values())
    return [
        Act(at, chance.choices(names, weights)[0], chance.uniform(0.2, 3.0), chance.random())
        for at in moments
    ]


def pick(victims: list[int], share: float) -> list[int]:
    """One of them, or none where there is none."""
    return [sorted(victims)[int(share * len(victims))]] if victims else []
