"""Simulated time: actions run by their moment, and in their order at the same moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

# decimals of moments where nothing takes time, so that equal moments are equal floats
NANOSECONDS = 9


class Heap:
    """The queue of what will happen; `now`: seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None], *, last: bool = False) -> None:
        """Schedule an action, after earlier ones of its moment; `last`: after all of them."""
        heapq.heappush(self._heap, (max(when, self.now), last, next(self._order), action))

    def turn(self) -> None:
        """Advance time to the next action, and run it."""
        self.now, _, _, action = heapq.heappop(self._heap)
        action()
