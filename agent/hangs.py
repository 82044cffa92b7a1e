"""Hang detection: neighbours wait for a rank that does nothing.

The one rule: a rank is taken for hung only if others have gone as far as they can without it, it
has neither computed nor read nor written for much longer than any of its spells of work before, and
nothing else explains that. Slow work is no hang, and of ranks that are late together none is: the
end of their stage ends these.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, Dict, Iterable, Optional, Sequence, Set, Tuple

from seerd.agent import host, progress_marks
from seerd.agent.progress_marks import ENDED, SAVING, ProgressMark
from seerd.agent.record import record

LOOK_S = 0.5
GAP_S = 5.0
"""If so much time passes between two looks, this machine was suspended or is overloaded: what was
seen before says nothing.
"""
QUIET_S = 10.0
"""Nobody is judged who has been quiet for less."""
PATIENCE = 5
"""Nor for less than so many times the longest spell of work of any rank of the attempt here."""
SPELLS, UNITS = 30, 3
"""What is usual is known after so many spells of work, or calls of `running()`: the first of them
compile, load and tune.
"""
BUSY_SHARE = 0.05
BUSY_BYTES_S = 64 << 10
"""More than this of a CPU's time, or this much read or written, is work."""

TICKS_OF_A_STEP = 2
"""Its backward pass, and itself."""

Picture = Dict[int, Tuple[int, int, int]]


@record
class Stand:
    """Who waits for whom, of the local ranks: `late` are those that have not come as far as the
    others, who wait. Without `late` all wait, for ranks elsewhere; without `waiting` none does.
    """

    late: Tuple[int, ...]
    waiting: Tuple[int, ...]


@record
class Stall:
    """An attempt stands still here.

    position  of the ranks that have not come as far as the others; `hung`: these, the first of
              them; None: all wait for ranks elsewhere
    among     of how many ranks here
    since     wall clock; `quiet_s` seconds before now
    """

    position: Tuple[int, int]
    hung: Optional[ProgressMark]
    local: int
    among: int
    alone: bool
    since: float
    quiet_s: float


class HangDetector:
    """Looks at the marks of one attempt. `members`: its processes; `spans`: other instances have
    ranks of it too.
    """

    def __init__(self, folder: Path, members: Callable[[], Set[int]], *, spans: bool) -> None:
        self._folder = folder
        self._members = members
        self._spans = spans
        self._looked_at = 0.0
        self._picture: Picture = {}
        self._still_since = 0.0
        self._life: Dict[int, host.Life] = {}
        self.marks: Dict[int, ProgressMark] = {}
        self.stall: Optional[Stall] = None

    def look(self, now: float) -> bool:
        """To be called often, with the monotonic clock: brings `marks` and `stall` up to date,
        unless it has just done so.
        """
        since_last = now - self._looked_at
        if since_last < LOOK_S:
            return False
        self._looked_at = now
        self.marks = progress_marks.read(self._folder)
        picture = {local: (*mark.position, mark.doing) for local, mark in self.marks.items()}
        if picture != self._picture or since_last > GAP_S:
            self._picture, self.stall = picture, None
            self._begin_anew(now)
        elif self.stall is None:
            self.stall = self._judged(now)
        elif self._has_moved(self.stall):
            self.stall = None
            self._begin_anew(now)
        return True

    def _begin_anew(self, now: float) -> None:
        self._still_since, self._life = now, {}

    def _judged(self, now: float) -> Optional[Stall]:
        if now - self._still_since < LOOK_S:
            return None
        there = self._standing()
        if there is None:
            return None
        if there.late and not self._life:
            self._still_since, self._life = now, self._lives(there)
        quiet_s = now - self._still_since
        if quiet_s < limit_s(self.marks):
            return None
        if there.late and self._works(there, quiet_s):
            self._begin_anew(now)
            return None
        return self._stall(there, quiet_s)

    def _standing(self) -> Optional[Stand]:
        stopped = {local for local, mark in self.marks.items() if host.is_stopped(mark.pid)}
        return standing(self.marks, stopped, spans=self._spans)

    def _stall(self, there: Stand, quiet_s: float) -> Stall:
        hindmost = min(
            there.late or there.waiting, key=lambda local: (self.marks[local].position, local)
        )
        mark = self.marks[hindmost]
        alone = bool(there.late) and len(there.late) == 1
        hung = mark if there.late else None
        return Stall(
            mark.position, hung, hindmost, len(self.marks), alone, time.time() - quiet_s, quiet_s
        )

    def _has_moved(self, stall: Stall) -> bool:
        """Whether those that were found hung have shown that they live."""
        if stall.hung is None:
            return False
        there = self._standing()
        return there is None or self._works(there, time.time() - stall.since)

    def _lives(self, there: Stand) -> Dict[int, host.Life]:
        members = self._members()
        found = {}
        for local in there.late:
            life = host.life(self.marks[local].pid, members)
            if life is not None:
                found[local] = life
        return found

    def _works(self, there: Stand, seconds: float) -> bool:
        """Whether any of the late ranks has done something since, or cannot be looked at."""
        after = self._lives(there)
        return any(
            local not in self._life
            or local not in after
            or not is_idle(self._life[local], after[local], seconds)
            for local in there.late
        )


def standing(found: Dict[int, ProgressMark], stopped: Set[int], *, spans: bool) -> Optional[Stand]:
    """What the marks of all local ranks say, if they say anything; of the `stopped` a signal has
    stopped the process, whatever it was doing.
    """
    every = list(found.values())
    if not every or any(mark.peers != len(every) or mark.units == 0 for mark in every):
        return None
    if any(mark.doing in (SAVING, ENDED) for mark in every):
        return None
    working = {
        local: mark for local, mark in found.items() if not mark.stands_by or local in stopped
    }
    late = tuple(
        local
        for local in working
        if local in stopped or not _is_ahead(working[local], working.values())
    )
    waiting = tuple(local for local in found if local not in late)
    if any(not _is_experienced(found[local]) for local in late):
        return None
    if late and waiting and not _is_behind(late, waiting, found):
        return None
    return Stand(late, waiting) if spans or (late and waiting) else None


def limit_s(found: Dict[int, ProgressMark]) -> float:
    """How long a rank must have been quiet to be taken for hung."""
    return max([QUIET_S, *(PATIENCE * mark.longest_s for mark in found.values())])


def is_idle(before: host.Life, after: host.Life, seconds: float) -> bool:
    """Whether these processes have done nothing that counts in so many seconds."""
    same = before.born == after.born
    cpu_s, moved = after.cpu_s - before.cpu_s, after.moved_bytes - before.moved_bytes
    return (
        same
        and not after.runs
        and cpu_s <= BUSY_SHARE * seconds
        and moved <= BUSY_BYTES_S * seconds
    )


def _is_ahead(mark: ProgressMark, working: Iterable[ProgressMark]) -> bool:
    """Whether it has begun a step that cannot end before another has begun it too: on a GPU it
    learns that only later.
    """
    least = min(other.position for other in working)
    return bool(mark.on_gpu) and mark.units == least[0] and mark.ticks >= least[1] + TICKS_OF_A_STEP


def _is_behind(late: Sequence[int], waiting: Sequence[int], found: Dict[int, ProgressMark]) -> bool:
    """Whether those that wait have come further than the late ones, or as far as one that was
    stopped while it waited too.
    """
    least = min(found[local].position for local in waiting)
    return all(
        found[local].position < least or (found[local].stands_by and found[local].position == least)
        for local in late
    )


def _is_experienced(mark: ProgressMark) -> bool:
    return mark.spells >= SPELLS or mark.units >= UNITS
