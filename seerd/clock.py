"""The clocks: a steady one in seconds since 1970, and a run's own, in seconds since it began.

The one rule: renting, billing and ending go by `wall`, never by the system's wall clock, which may
be set during a run.
"""

from __future__ import annotations

import math
import os
import time
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from seerd.agent.host import boot_id

# never goes back, and goes on while the machine sleeps (clock_gettime(2))
STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

WAIT = 20  # most seconds per second of CPU time, beside ten busy processes and a disk to wait for

Moment = TypeVar("Moment", float, float | None)

# zero of the steady clock, in seconds since 1970, by the wall clock as this process began
began_at = time.time() - time.clock_gettime(STEADY)
# the same for a run that this thread and its tasks have taken up
_zero: ContextVar[float] = ContextVar("zero")


def wall() -> float:
    """Return the seconds since 1970, unaffected by changes of the wall clock since the process
    began, or since the run's first process on this boot did (`take_up`).
    """
    return time.clock_gettime(STEADY) + _zero.get(began_at)


def noted(origin: float) -> str:
    """Return a note by which a later process on this boot finds the run's start `origin` (by
    `wall`) and takes up its clock (`origin_of`, `take_up`).
    """
    zero = _zero.get(began_at)
    return f"{boot_id()} {origin - zero:.6f} {zero:.6f}"


def origin_of(note: str) -> float | None:
    """Return when the run of this note began, by `wall`; None if the machine has booted since."""
    times = _read(note)
    return None if times is None else round(_zero.get(began_at) + times[0], 6)


def take_up(note: str) -> None:
    """Continue, in this thread and its tasks, the `wall` of the process that wrote the note, unless
    the machine has booted since. Otherwise earlier times, EC2's included, would be off.
    """
    if (times := _read(note)) is not None:
        _zero.set(times[1])


def _read(note: str) -> tuple[float, float] | None:
    """Return when the run began, in seconds since the boot, and the zero of the steady clock."""
    boot, *numbers = note.split(" ")
    try:
        since_boot, zero = map(float, numbers)
    except ValueError:
        return None
    return (since_boot, zero) if boot and boot == boot_id() else None


def process_began() -> float:
    """Return when this process started, in seconds since 1970, though a busy machine took long to
    come this far. It may have been another program before (`sleep 600; exec seerd ...`), so it
    counts at most `WAIT` times its CPU time and half a second.
    """
    cpu_s = time.process_time()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):  # no Linux, or one that hides it
        return wall() - cpu_s
    started = began_at + ticks / os.sysconf("SC_CLK_TCK")  # since boot (proc_pid_stat(5))
    return max(started, wall() - WAIT * cpu_s - 0.5)


class RunClock:
    """The time of a run that began at `origin`, by `wall`. Steady until the machine boots; after
    that it follows the wall clock, and never goes back.
    """

    def __init__(self, origin: float) -> None:
        self.origin = origin

    def now(self) -> float:
        """Return the seconds since the run began; never goes back while this process lives."""
        return wall() - self.origin

    def of_wall(self, moment: float) -> float:
        """Convert a moment (seconds since 1970) to seconds since the run began."""
        return moment - self.origin

    def past(self, moment: Moment) -> Moment:
        """Convert a moment of another clock (seconds since 1970) to seconds since the run began,
        clamped between 0 and now, since clocks differ. None for None.
        """
        return None if moment is None else min(self.now(), max(0.0, self.of_wall(moment)))


def unlimited() -> float:
    """Return infinity, where no time limit holds."""
    return math.inf
