"""Straggler detection: how much of their time the ranks of an attempt wait for each other, as their
progress marks tell.

The one rule: it only counts, over spans long enough to mean something, and not before every rank
has its first units of work behind it.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from seerd.agent.progress_marks import ENDED, ProgressMark
from seerd.agent.record import record

FIRST_S = 30.0
"""Seconds of the first span. Each further span is twice as long, so that a long attempt is not told
of often.
"""
MOST_S = 3600.0
UNITS = 3
TOLD_SHARE = 0.25
"""A smaller share of time spent waiting is not worth telling."""


@record
class Waits:
    """How much ranks have waited."""

    over_s: float  # seconds over which that was counted
    ranks: List[int]  # their numbers among all ranks of the attempt
    shares: List[float]  # the share of that time that each of them has waited, from 0 to 1


class StragglerDetector:
    """Counts for one attempt.

    `always` tells also if nobody waits much, to be compared with what ranks do on other instances.
    `first_s` is the first span in seconds.
    """

    def __init__(self, *, always: bool, first_s: float = FIRST_S) -> None:
        self._always = always
        self._span_s = first_s
        self._began: Optional[float] = None
        self._before: Dict[int, float] = {}

    def look(self, now: float, found: Dict[int, ProgressMark]) -> Optional[Waits]:
        """Count on; return what is to be told, None if nothing is.

        This is called often, with the monotonic clock in seconds and the marks of all local ranks.
        """
        if not _is_going(found):
            self._began = None
        elif self._began is None:
            self._begin(now, found)
        elif now - self._began >= self._span_s:
            waits = self._counted(now - self._began, found)
            self._span_s = min(2 * self._span_s, MOST_S)
            self._begin(now, found)
            if self._always or max(waits.shares) >= TOLD_SHARE:
                return waits
        return None

    def _begin(self, now: float, found: Dict[int, ProgressMark]) -> None:
        self._began, self._before = now, {local: _spent(mark) for local, mark in found.items()}

    def _counted(self, over_s: float, found: Dict[int, ProgressMark]) -> Waits:
        shares = [
            min(1.0, max(0.0, _spent(m) - self._before.get(n, 0.0)) / over_s)
            for n, m in found.items()
        ]
        return Waits(
            over_s, [mark.rank for mark in found.values()], [round(share, 4) for share in shares]
        )


def _spent(mark: ProgressMark) -> float:
    return mark.waited_s + mark.reduced_s


def _is_going(found: Dict[int, ProgressMark]) -> bool:
    every = found.values()
    return bool(every) and all(
        m.peers == len(found) and m.units >= UNITS and m.doing != ENDED for m in every
    )
