"""Simulated time: what happens next is what was put into the heap for the earliest moment; at the
same moment, what was put there first.

The one rule: nobody else keeps time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

NANOSECONDS = 9
"""Decimals to which moments are rounded where nothing takes time: what is due at the same moment is
then so in floating point too.
"""


class Heap:
    """`now`: seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None], *, last: bool = False) -> None:
        """Let something happen at a moment, after what was put there before; `last`: after
        everything that happens then.
        """
        heapq.heappush(self._heap, (max(when, self.now), last, next(self._order), action))

    def turn(self) -> None:
        """Let the next thing happen."""
        self.now, _, _, action = heapq.heappop(self._heap)
        action()
