"""The time: seconds since 1970 that go on steadily, and the time of a run, in seconds since it
began.

The one rule: what rents, bills and ends goes by `wall`, never by the wall clock. Somebody who sets
that while a run is under way would otherwise change what an instance is billed for, and how long
one that may have come of a lost answer is looked for.
"""

from __future__ import annotations

import time
from typing import overload

STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that never goes back and goes on while the machine sleeps (clock_gettime(2)): deadlines
do, and so do bills.
"""

began_at = time.time() - time.clock_gettime(STEADY)
"""Where the steady clock began, in seconds since 1970, by the wall clock as it was when this
process began.
"""


def wall() -> float:
    """Seconds since 1970, whatever has happened to the wall clock since this process began."""
    return time.clock_gettime(STEADY) + began_at


class RunClock:
    """`origin`: when the run began, in seconds since 1970. Wall clock across restarts, steady
    within one process.
    """

    def __init__(self, origin: float) -> None:
        self.origin = origin

    def now(self) -> float:
        """Seconds since the run began; never goes back while this process lives."""
        return wall() - self.origin

    def of_wall(self, moment: float) -> float:
        """The run's time of a moment, seconds since 1970."""
        return moment - self.origin

    @overload
    def past(self, moment: float) -> float: ...
    @overload
    def past(self, moment: float | None) -> float | None: ...
    def past(self, moment: float | None) -> float | None:
        """The run's time of a moment by another clock, of something that has happened in the run.

        None for None.
        """
        return None if moment is None else min(self.now(), max(0.0, self.of_wall(moment)))
