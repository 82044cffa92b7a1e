"""Sees from outside that torchrun is ending an attempt, that a rank hangs, or that ranks wait for
each other, and runs the process that observes a script which does not import seerd. What is seen is
reported; the attempt is ended by the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Awaitable, Callable, Optional

from seerd.agent import clock, postmortem
from seerd.agent.hangs import HangDetector, Stall
from seerd.agent.launch import Places
from seerd.agent.progress_marks import ENDED, ProgressMark
from seerd.agent.protocol import Fact, Stalled, Start, Waited
from seerd.agent.timings import Timings

FIRST_S = 30.0
"""Seconds of the first measurement; each further one is twice as long, up to `MOST_S`."""
MOST_S = 3600.0
UNITS = 3
"""Units of work that every rank must have begun before its waits are counted."""
END_FILE = "ended"
"""The file that tells the observer of a script how the script has ended."""
LAST_LOOK_S = 60.0
"""Seconds that the observer then has to copy the last checkpoint."""
REPORTED_SHARE = 0.25
"""A smaller share of time spent waiting is not reported."""
Waits = tuple[float, list[int], list[float]]
"""Seconds of a measurement, numbers of ranks, and the share of it that each has waited (0 to 1)."""


class Watchdog:
    """Watches one attempt. `members` returns the ids of its processes; facts go to `report`."""

    def __init__(
        self,
        start: Start,
        places: Places,
        members: Callable[[], set[int]],
        report: Callable[[list[Fact]], None],
        timings: Timings,
    ) -> None:
        self._start = start
        self._log = places.launcher_log
        self._report = report
        self._spans = start.node is not None
        self._hangs = HangDetector(places.marks, members, timings, self._spans)
        self._stragglers = StragglerDetector(always=self._spans)
        self._reported: Optional[Stall] = None
        self._log_size = 0

    @property
    def hung(self) -> Optional[Stall]:
        """The stall, if ranks here do nothing and others wait for them, here or elsewhere."""
        stall = self._hangs.stall
        return stall if stall is not None and stall.hung is not None else None

    def look(self) -> None:
        """Look at the progress marks, and report stalls and waits. Called often."""
        now = time.monotonic()
        if not self._hangs.look(now):
            return
        if self._spans:
            # Who waits for whom is known only to the daemon, to which all instances report.
            stall, before = self._hangs.stall, self._reported
            self._reported = stall
            if stall is not None and before is None:
                self._report([self._stalled(stall, over=False)])
            elif stall is None and before is not None:
                self._report([self._stalled(before, over=True)])
        waits = self._stragglers.look(now, self._hangs.marks)
        if waits is not None:
            order = self._start
            self._report([Waited(0, clock.now(), order.trial, order.attempt, *waits)])

    def is_closing(self) -> bool:
        """Return whether torchrun has begun to end its ranks because one has failed."""
        with contextlib.suppress(OSError):
            size = os.stat(self._log).st_size
            if size > self._log_size:
                self._log_size = size
                with open(self._log, "rb") as file:
                    return postmortem.is_closing(file.read(postmortem.SUMMARY_BYTES))
        return False

    def _stalled(self, stall: Stall, *, over: bool) -> Stalled:
        order, hung = self._start, stall.hung is not None
        return Stalled(0, clock.now(), order.trial, order.attempt, hung, *stall.position, over)


class ScriptObserver:
    """The process that observes a script which does not import seerd (`seerd/training/observer`).
    `lost` is called if it ends before it has seen the script's end: nobody would report for the
    script or stop it then.
    """

    def __init__(self, folder: Path, lost: Callable[[], object]) -> None:
        self._folder = folder
        self._lost = lost
        self._process: Optional[asyncio.subprocess.Process] = None
        self._watching: Optional[asyncio.Task[int]] = None

    @property
    def pids(self) -> set[int]:
        """Its process id, if there is one."""
        return set() if self._process is None else {self._process.pid}

    async def begin(self, spawn: Callable[[], Awaitable[asyncio.subprocess.Process]]) -> None:
        """Start it. Raises `OSError`."""
        (self._folder / "out.jsonl").touch()  # it may come later than the script's end
        self._process = await spawn()
        self._watching = asyncio.ensure_future(self._process.wait())
        self._watching.add_done_callback(lambda end: None if end.cancelled() else self._lost())

    async def see_end(self, code: Optional[int]) -> None:
        """Inform it that the script has ended, and wait until it has stored what is left."""
        if self._process is None or self._watching is None:
            return
        self._watching.cancel()
        with contextlib.suppress(OSError):  # a trial that has removed its own folder
            part = self._folder / f".{END_FILE}"
            part.write_text(str(code))
            os.replace(part, self._folder / END_FILE)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), LAST_LOOK_S)


class StragglerDetector:
    """Measures how much the ranks of one attempt wait.

    `always` reports also small waits, to be compared with those on other instances. `first_s`:
    seconds of the first measurement.
    """

    def __init__(self, *, always: bool, first_s: float = FIRST_S) -> None:
        self._always = always
        self._span_s = first_s
        self._began: Optional[float] = None
        self._before: dict[int, float] = {}

    def look(self, now: float, by_rank: dict[int, ProgressMark]) -> Optional[Waits]:
        """Measure on; return what is to be reported. Called often (monotonic clock)."""
        marks = by_rank.values()
        if not marks or any(
            mark.peers != len(marks) or mark.units < UNITS or mark.doing == ENDED for mark in marks
        ):
            self._began = None
        elif self._began is None:
            self._begin(now, by_rank)
        elif now - self._began >= self._span_s:
            over_s = now - self._began
            spent_s = [_spent(mark) - self._before.get(n, 0.0) for n, mark in by_rank.items()]
            shares = [round(min(1.0, max(0.0, spent) / over_s), 4) for spent in spent_s]
            self._span_s = min(2 * self._span_s, MOST_S)
            self._begin(now, by_rank)
            if self._always or max(shares) >= REPORTED_SHARE:
                return over_s, [mark.rank for mark in marks], shares
        return None

    def _begin(self, now: float, by_rank: dict[int, ProgressMark]) -> None:
        self._began, self._before = now, {local: _spent(mark) for local, mark in by_rank.items()}


def _spent(mark: ProgressMark) -> float:
    return mark.waited_s + mark.reduced_s
