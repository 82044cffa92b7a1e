"""Trials that are wanted and have no GPUs, by size: what to put where room has appeared is found
without looking at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from seerd.core.packing import Demand


@dataclass(slots=True)
class Waiting:
    """In the order of their value: for each number of GPUs the trials that want so many, each with
    its place in the whole order.
    """

    _by_size: dict[int, dict[str, int]] = field(default_factory=dict)

    def __init__(self, demands: Iterable[Demand] = ()) -> None:
        self._by_size = {}
        for place, demand in enumerate(demands):
            self._by_size.setdefault(demand.gpus, {})[demand.trial] = place

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def remove(self, trial: str, gpus: int) -> None:
        """It waits no longer, if it did."""
        same = self._by_size.get(gpus, {})
        same.pop(trial, None)
        if not same:
            self._by_size.pop(gpus, None)

    def first(self, gpus: int) -> list[Demand]:
        """Most valuable first, all those that could be among the best that share so many GPUs."""
        found = [
            (place, Demand(trial, size))
            for size, same in self._by_size.items()
            if size <= gpus
            for trial, place in islice(same.items(), gpus // size)
        ]
        return [demand for _, demand in sorted(found, key=lambda pair: pair[0])]

    @property
    def largest(self) -> int:
        """GPUs of the largest one, 0 if there is none."""
        return max(self._by_size, default=0)
