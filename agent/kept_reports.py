"""Which reports the agent sends: the best of an attempt so far and its last one, at the latest at
its end, and of the others as many as a daemon can follow.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

AT_ONCE, AT_ONCE_IN_ALL = 100, 1000
"""Reports of an attempt, and of all attempts of an agent, that are sent however fast they come."""
A_SECOND, A_SECOND_IN_ALL = 4.0, 40.0
"""Reports a second after those, of an attempt, and of all attempts of an agent."""
LONG = 1000
"""After so many reports of an attempt half as many are sent, after twice as many a third."""
BEHIND = 100  # with n times so many unacknowledged facts the (1 + n * n)-th part is sent


class ReportLimit:
    """How many reports attempts may make; `unacknowledged` counts the facts behind."""

    def __init__(
        self,
        running: Callable[[], int] = lambda: 1,
        unacknowledged: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = running
        self.unacknowledged = unacknowledged
        self.clock = clock
        self._left, self._at = float(AT_ONCE_IN_ALL), clock()

    def at_once(self) -> float:
        """Return how many reports may be sent at once of an attempt that begins: at least one."""
        now = self.clock()
        left = min(AT_ONCE_IN_ALL, self._left + (now - self._at) * A_SECOND_IN_ALL)
        share = min(AT_ONCE, left * AT_ONCE / AT_ONCE_IN_ALL)
        self._left, self._at = left - share, now
        return 1 + share

    def a_second(self) -> float:
        """Return how many reports a second may be sent of each attempt."""
        return min(A_SECOND, A_SECOND_IN_ALL / max(1, self.running()))

    def price(self, sent: int) -> float:
        """Return how many reports the next one counts as, after `sent` ones of its attempt."""
        return 1 + max(0, sent - AT_ONCE) / LONG + (self.unacknowledged() / BEHIND) ** 2


class KeptReports:
    """The reports of one attempt."""

    def __init__(self, limit: ReportLimit) -> None:
        self.has_dropped = False  # whether a report was dropped
        self._limit = limit
        self._most = self._left = limit.at_once()
        self._at = limit.clock()
        self._sent = 0
        self._best: Optional[float] = None
        self._kept: list[tuple[Any, bool]] = []

    def add(self, report: Any, worth: Optional[float]) -> list[Any]:
        """Add a report; return those to send now, oldest first. `worth`: None: does not count."""
        is_best = worth is not None and (self._best is None or worth > self._best)
        self._best = worth if is_best else self._best
        before, self._kept = self._kept, [*self._kept, (report, is_best)]
        bests = [pair for pair in self._kept if pair[1]][-1:]
        if not self.may_send():
            newest = self._kept[-1]
            self._kept = [*(pair for pair in bests if pair is not newest), newest]
            self.has_dropped |= len(self._kept) <= len(before)
            return []
        return self.let_go()

    def may_send(self) -> bool:
        """Return whether there are reports that may be sent now."""
        now = self._limit.clock()
        price = self._limit.price(self._sent)
        self._left += (now - self._at) * self._limit.a_second()
        self._left, self._at = min(max(self._most, price), self._left), now
        return bool(self._kept) and self._left >= price

    def before_save(self) -> list[Any]:
        """Return the reports to send before a checkpoint. An attempt that saves all the time has at
        most `AT_ONCE` more sent than its share.
        """
        return self.let_go() if self._left > -AT_ONCE else []

    def let_go(self) -> list[Any]:
        """Return all reports that are still to be sent."""
        held, self._kept = [report for report, _ in self._kept], []
        self._left -= len(held) * self._limit.price(self._sent)
        self._sent += len(held)
        return held
