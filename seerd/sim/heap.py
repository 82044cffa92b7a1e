"""Simulated time: the next thing that happens is what the heap has for the earliest moment; at the
same moment, what was put there first.

The one rule: only the heap keeps time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

NANOSECONDS = 9
"""The decimals to which moments are rounded where nothing takes time, so that what is due at the
same moment is due at the same floating-point number.
"""


class Heap:
    """The queue of what will happen; `now`: seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None], *, last: bool = False) -> None:
        """Let something happen at a moment, after what was put there before.

        `last`: after everything else of that moment.
        """
        heapq.heappush(self._heap, (max(when, self.now), last, next(self._order), action))

    def turn(self) -> None:
        """Advance time to the next thing, and let it happen."""
        self.now, _, _, action = heapq.heappop(self._heap)
        action()
