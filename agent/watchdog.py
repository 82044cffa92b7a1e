"""The watchdog of a running attempt. It sees from outside that torchrun is ending the attempt, that
a rank hangs, or that ranks wait for each other.

The one rule: it looks and tells; whoever asked it to look ends the attempt.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, List, Optional, Set

from seerd.agent import clock, postmortem
from seerd.agent.hangs import HangDetector, Stall
from seerd.agent.journal import Maker
from seerd.agent.launch import Places
from seerd.agent.protocol import Stalled, Start, Waited
from seerd.agent.stragglers import StragglerDetector, Waits


class Watchdog:
    """Watches one attempt. `members` returns the ids of its processes; facts go through `tell`."""

    def __init__(
        self,
        start: Start,
        places: Places,
        members: Callable[[], Set[int]],
        tell: Callable[[List[Maker]], None],
    ) -> None:
        self._start = start
        self._log = places.launcher_log
        self._tell = tell
        self._spans = start.node is not None
        self._hangs = HangDetector(places.marks, members, spans=self._spans)
        self._stragglers = StragglerDetector(always=self._spans)
        self._told: Optional[Stall] = None
        self._log_size = 0

    @property
    def hung(self) -> Optional[Stall]:
        """The stall, if ranks here do nothing and others wait for them, here or elsewhere."""
        stall = self._hangs.stall
        return stall if stall is not None and stall.hung is not None else None

    def look(self) -> None:
        """Look at the progress marks, and tell what is to be told. This is called often."""
        now = time.monotonic()
        if not self._hangs.look(now):
            return
        if self._spans:
            self._tell_of_stall()
        waits = self._stragglers.look(now, self._hangs.marks)
        if waits is not None:
            self._tell([self._waited(waits)])

    def is_closing(self) -> bool:
        """Tell whether torchrun has begun to end its ranks because one has failed."""
        with contextlib.suppress(OSError):
            size = os.stat(self._log).st_size
            if size > self._log_size:
                self._log_size = size
                with open(self._log, "rb") as file:
                    return postmortem.is_closing(file.read(postmortem.SUMMARY_BYTES))
        return False

    def _tell_of_stall(self) -> None:
        """Tell that the attempt stands still here, or moves again. Who waits for whom is known only
        where all its instances are heard.
        """
        stall, before = self._hangs.stall, self._told
        self._told = stall
        if stall is not None and before is None:
            self._tell([self._stalled(stall, over=False)])
        elif stall is None and before is not None:
            self._tell([self._stalled(before, over=True)])

    def _stalled(self, stall: Stall, *, over: bool) -> Maker:
        order, at, hung = self._start, clock.now(), stall.hung is not None
        units, ticks = stall.position
        return lambda seq: Stalled(seq, at, order.trial, order.attempt, hung, units, ticks, over)

    def _waited(self, waits: Waits) -> Maker:
        order, at = self._start, clock.now()
        return lambda seq: Waited(
            seq, at, order.trial, order.attempt, waits.over_s, waits.ranks, waits.shares
        )
