"""The time of a run, in seconds since it began: wall clock across restarts, monotonic within one process."""

from __future__ import annotations

import time


class RunClock:
    """`origin`: when the run began, in seconds since 1970."""

    def __init__(self, origin: float) -> None:
        self.origin = origin
        self._offset = time.time() - origin - time.monotonic()

    def now(self) -> float:
        """Seconds since the run began; never goes back while this process lives, whatever happens to the wall clock."""
        return time.monotonic() + self._offset

    def of_wall(self, wall: float) -> float:
        """The run's time of a wall-clock moment (seconds since 1970) on this machine."""
        return wall - self.origin
