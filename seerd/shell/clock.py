"""The time of a run, in seconds since it began: wall clock across restarts, monotonic within one process, also while the machine sleeps."""

from __future__ import annotations

import time

STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that never goes back and goes on while the machine sleeps (clock_gettime(2)): deadlines do, and so do bills."""


class RunClock:
    """`origin`: when the run began, in seconds since 1970."""

    def __init__(self, origin: float) -> None:
        self.origin = origin
        self._offset = time.time() - origin - time.clock_gettime(STEADY)

    def now(self) -> float:
        """Seconds since the run began; never goes back while this process lives, whatever happens to the wall clock."""
        return time.clock_gettime(STEADY) + self._offset

    def of_wall(self, wall: float) -> float:
        """The run's time of a wall-clock moment (seconds since 1970) on this machine."""
        return wall - self.origin
