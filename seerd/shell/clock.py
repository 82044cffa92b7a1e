"""The clocks: a steady one in seconds since 1970, and a run's own, in seconds since it began.

The one rule: renting, billing and ending go by `wall`, never by the system's wall clock. Otherwise,
setting that clock during a run would change what an instance is billed for, and for how long EC2 is
searched for an instance whose launch was never answered.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import overload

from seerd.agent.host import boot_id

STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that never goes back and goes on while the machine sleeps (clock_gettime(2)), as
deadlines and bills do.
"""

WAIT = 20
"""Most seconds that a process takes for one of CPU time, with ten busy ones beside it and a disk to
wait for.
"""

began_at = time.time() - time.clock_gettime(STEADY)
"""Zero of the steady clock, in seconds since 1970, by the wall clock as it was when this process
began.
"""


def wall() -> float:
    """Return the seconds since 1970, unaffected by changes of the wall clock since this process
    began.
    """
    return time.clock_gettime(STEADY) + began_at


def noted(origin: float) -> str:
    """Return what tells a later process on the same boot when a run began, though the wall clock is
    set meanwhile (`origin_of`). `origin`: when that was, by `wall`.
    """
    return f"{boot_id()} {origin - began_at:.6f}"


def origin_of(note: str) -> float | None:
    """Return when the run of this note began, by `wall`; None if the machine has booted since, or
    does not say.
    """
    boot, _, since_boot = note.partition(" ")
    try:
        known = boot and boot == boot_id()
        return round(began_at + float(since_boot), 6) if known else None
    except ValueError:
        return None


def process_began() -> float:
    """Return when this process started, in seconds since 1970, however long a busy machine took to
    come this far. It may have been another program first (`sleep 600; exec seerd ...`): no more
    counts than `WAIT` times its CPU time, and half a second.
    """
    cpu_s = time.process_time()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):  # no Linux, or one that hides it
        return wall() - cpu_s
    started = began_at + ticks / os.sysconf("SC_CLK_TCK")  # since boot (proc_pid_stat(5))
    return max(started, wall() - WAIT * cpu_s - 0.5)


class RunClock:
    """The time of a run that began at `origin`, by `wall`. It is steady for as long as the machine
    does not boot; after that it follows the wall clock, and never goes back.
    """

    def __init__(self, origin: float) -> None:
        self.origin = origin

    def now(self) -> float:
        """Return the seconds since the run began; never goes back while this process lives."""
        return wall() - self.origin

    def of_wall(self, moment: float) -> float:
        """Convert a moment (seconds since 1970) to seconds since the run began."""
        return moment - self.origin

    @overload
    def past(self, moment: float) -> float: ...
    @overload
    def past(self, moment: float | None) -> float | None: ...
    def past(self, moment: float | None) -> float | None:
        """Convert a moment of another clock (seconds since 1970) to seconds since the run began,
        moved to between 0 and now: the clocks may differ, but what happened in the run is in its
        past.

        None for None.
        """
        return None if moment is None else min(self.now(), max(0.0, self.of_wall(moment)))


def unlimited() -> float:
    """Return infinity, for whoever has no limit in time."""
    return math.inf
