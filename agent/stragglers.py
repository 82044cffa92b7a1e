"""Straggler detection: how much of their time the ranks of an attempt wait for each other, as their
marks tell.

The one rule: it only counts, over spans long enough to mean something, and not before every rank
has its first units behind it.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from seerd.agent.progress_marks import ENDED, ProgressMark
from seerd.agent.record import record

FIRST_S = 30.0
"""What is counted first; then twice as much each time, so that a long attempt is not told of
often.
"""
MOST_S = 3600.0
UNITS = 3
TOLD_SHARE = 0.25
"""Whoever waits less has nothing to complain of."""


@record
class Waits:
    """Which share of the last `over_s` seconds each of these ranks has waited."""

    over_s: float
    ranks: List[int]
    shares: List[float]


class StragglerDetector:
    """Counts for one attempt. `always`: also if nobody waits much, since what others do elsewhere
    is to be compared with it.
    """

    def __init__(self, *, always: bool, first_s: float = FIRST_S) -> None:
        self._always = always
        self._span_s = first_s
        self._began: Optional[float] = None
        self._before: Dict[int, float] = {}

    def look(self, now: float, found: Dict[int, ProgressMark]) -> Optional[Waits]:
        """To be called often, with the monotonic clock and the marks of all local ranks: what is to
        be told, if anything is.
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
