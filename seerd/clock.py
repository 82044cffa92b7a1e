"""The clocks: a steady one in seconds since 1970, and a run's own, in seconds since it began.

The one rule: renting, billing and ending go by `wall`, never by the system's wall clock. Otherwise,
setting that clock during a run would change what an instance is billed for, and for how long EC2 is
searched for an instance whose launch was never answered.
"""

from __future__ import annotations

import math
import os
import time
from contextvars import ContextVar
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
_zero: ContextVar[float] = ContextVar("zero")
"""Zero of the steady clock for the run of this thread and its tasks, if the run was taken up."""


def wall() -> float:
    """Return the seconds since 1970, unaffected by changes of the wall clock since this process
    began, or since the first process of the run on this boot did (`take_up`).
    """
    return time.clock_gettime(STEADY) + _zero.get(began_at)


def noted(origin: float) -> str:
    """Return what tells a later process on the same boot when a run began, and what `wall` is,
    though the wall clock is set meanwhile (`origin_of`, `take_up`). `origin`: when that was, by
    `wall`.
    """
    zero = _zero.get(began_at)
    return f"{boot_id()} {origin - zero:.6f} {zero:.6f}"


def origin_of(note: str) -> float | None:
    """Return when the run of this note began, by `wall`; None if the machine has booted since, or
    does not say.
    """
    known = _read(note)
    return None if known is None else round(_zero.get(began_at) + known[0], 6)


def take_up(note: str) -> None:
    """Let `wall` go on, in this thread and its tasks, as it was for the process that wrote the
    note, unless the machine has booted since. Otherwise, what was stamped before would be read by
    another clock, and so would EC2's times.
    """
    if (known := _read(note)) is not None:
        _zero.set(known[1])


def _read(note: str) -> tuple[float, float] | None:
    """Return when the run began, in seconds since the boot, and the zero of the steady clock."""
    boot, *numbers = note.split(" ")
    try:
        since_boot, zero = map(float, numbers)
    except ValueError:
        return None
    return (since_boot, zero) if boot and boot == boot_id() else None


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
