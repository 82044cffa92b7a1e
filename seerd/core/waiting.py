"""Trials that are wanted and have no GPUs, by size: those to place on freed GPUs are found without
looking at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from seerd.core.packing import Demand


@dataclass(slots=True)
class Waiting:
    """The waiting trials: number of GPUs -> trials that want so many -> place among all."""

    _by_size: dict[int, dict[str, int]] = field(default_factory=dict)

    def __init__(self, demands: Iterable[Demand] = ()) -> None:
        self._by_size = {}
        for place, demand in enumerate(demands):
            self._by_size.setdefault(demand.gpus, {})[demand.trial] = place

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def remove(self, trial: str, gpus: int) -> None:
        """Remove a trial, if it waits."""
        same = self._by_size.get(gpus, {})
        same.pop(trial, None)
        if not same:
            self._by_size.pop(gpus, None)

    def first(self, gpus: int) -> list[Demand]:
        """Return the trials that could be among the most valuable ones that share so many GPUs, in
        order.
        """
        found = [
            (place, Demand(trial, size))
            for size, same in self._by_size.items()
            if size <= gpus
            for trial, place in islice(same.items(), gpus // size)
        ]
        return [demand for _, demand in sorted(found, key=lambda pair: pair[0])]

    @property
    def largest(self) -> int:
        """GPUs of the largest waiting trial, 0 if none waits."""
        return max(self._by_size, default=0)
