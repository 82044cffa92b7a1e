"""Hang detection: finds ranks that do nothing while the others wait.

The one rule: a rank counts as hung only if three things hold. Others have gone as far as they can
without it. It has neither computed nor read nor written for much longer than any spell of work
before. And nothing else explains that. Slow work is no hang. If all ranks are late together, none
of them counts as hung; the end of their stage ends them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterable, Optional, Sequence, Set, Tuple

from seerd.agent import clock, host, progress_marks
from seerd.agent.progress_marks import ENDED, SAVING, ProgressMark

LOOK_S = 0.5
GAP_S = 5.0
"""If more seconds than this pass between two looks, this machine was suspended or is overloaded:
what was seen before says nothing.
"""
QUIET_S = 10.0
"""A rank that has been quiet for fewer seconds is not hung."""
PATIENCE = 5
"""Nor is one that has been quiet for less than so many times the longest spell of work of any rank
of the attempt here.
"""
SPELLS, UNITS = 30, 3
"""A rank can be late only after so many spells of work, or calls of `running()`. The first of them
compile, load and tune, so they do not show what is usual.
"""
BUSY_SHARE = 0.05
BUSY_BYTES_S = 64 << 10
"""More than this share of a CPU's time, or more bytes than this read or written per second, is
work.
"""

TICKS_OF_A_STEP = 2
"""A step counts as two ticks: its backward pass, and the step itself."""

Picture = Dict[int, Tuple[int, int, int]]
STANDSTILL_LOOK_S = 2.0


@dataclass(frozen=True)
class Stand:
    """Who waits for whom, among the local ranks."""

    # ranks that have not come as far as the others; empty: all wait, for ranks elsewhere
    late: Tuple[int, ...]
    waiting: Tuple[int, ...]  # ranks that wait for others; empty: none does


@dataclass(frozen=True)
class Stall:
    """An attempt that stands still on this instance."""

    position: Tuple[int, int]  # how far the hindmost rank has come (units, ticks)
    # mark of the hindmost late rank; None: all ranks wait for ranks elsewhere
    hung: Optional[ProgressMark]
    local: int  # number of the hindmost rank on this instance
    among: int  # how many ranks are here
    alone: bool  # whether only one rank is late
    since: float  # since when nothing moves, in the agent's time
    quiet_s: float  # seconds from then until it was noticed


class HangDetector:
    """Looks at the progress marks of one attempt.

    `folder` holds the marks, `members` returns the ids of the attempt's processes, and `spans` says
    that other instances have ranks of it too.
    """

    def __init__(self, folder: Path, members: Callable[[], Set[int]], *, spans: bool) -> None:
        self._folder = folder
        self._members = members
        self._spans = spans
        self._looked_at = 0.0
        self._picture: Picture = {}
        self._still_since = 0.0
        self._life: Dict[int, host.Life] = {}
        self.marks: Dict[int, ProgressMark] = {}  # the newest marks, by local rank
        self.stall: Optional[Stall] = None  # the stall that was detected; None: there is none

    def look(self, now: float) -> bool:
        """Bring `marks` and `stall` up to date; return whether that was due.

        This is called often, with the monotonic clock in seconds. It does nothing within `LOOK_S`
        seconds of the last time.
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
        stand = self._standing()
        if stand is None:
            return None
        if stand.late and not self._life:
            self._still_since, self._life = now, self._lives(stand)
        quiet_s = now - self._still_since
        if quiet_s < limit_s(self.marks):
            return None
        if stand.late and self._works(stand, quiet_s):
            self._begin_anew(now)
            return None
        return self._stall(stand, quiet_s)

    def _standing(self) -> Optional[Stand]:
        stopped = {local for local, mark in self.marks.items() if host.is_stopped(mark.pid)}
        return standing(self.marks, stopped, spans=self._spans)

    def _stall(self, stand: Stand, quiet_s: float) -> Stall:
        hindmost = min(
            stand.late or stand.waiting, key=lambda local: (self.marks[local].position, local)
        )
        mark = self.marks[hindmost]
        alone = bool(stand.late) and len(stand.late) == 1
        hung = mark if stand.late else None
        return Stall(
            mark.position, hung, hindmost, len(self.marks), alone, clock.now() - quiet_s, quiet_s
        )

    def _has_moved(self, stall: Stall) -> bool:
        """Return whether ranks that were found hung have shown that they live."""
        if stall.hung is None:
            return False
        stand = self._standing()
        return stand is None or self._works(stand, clock.now() - stall.since)

    def _lives(self, stand: Stand) -> Dict[int, host.Life]:
        members = self._members()
        lives = {}
        for local in stand.late:
            life = host.life(self.marks[local].pid, members)
            if life is not None:
                lives[local] = life
        return lives

    def _works(self, stand: Stand, seconds: float) -> bool:
        """Return whether any of the late ranks has done something since, or cannot be looked at."""
        after = self._lives(stand)
        return any(
            local not in self._life
            or local not in after
            or not is_idle(self._life[local], after[local], seconds)
            for local in stand.late
        )


def standing(marks: Dict[int, ProgressMark], stopped: Set[int], *, spans: bool) -> Optional[Stand]:
    """Conclude from the marks of all local ranks who waits for whom; None if they do not say.

    `stopped` are the ranks whose process was stopped by a signal, whatever it was doing.
    """
    every = list(marks.values())
    if not every or any(mark.peers != len(every) or mark.units == 0 for mark in every):
        return None
    if any(mark.doing in (SAVING, ENDED) for mark in every):
        return None
    working = {
        local: mark for local, mark in marks.items() if not mark.stands_by or local in stopped
    }
    late = tuple(
        local
        for local in working
        if local in stopped or not _is_ahead(working[local], working.values())
    )
    waiting = tuple(local for local in marks if local not in late)
    if any(not _is_experienced(marks[local]) for local in late):
        return None
    if late and waiting and not _is_behind(late, waiting, marks):
        return None
    return Stand(late, waiting) if spans or (late and waiting) else None


def limit_s(marks: Dict[int, ProgressMark]) -> float:
    """Return how many seconds a rank must have been quiet to count as hung."""
    return max([QUIET_S, *(PATIENCE * mark.longest_s for mark in marks.values())])


def is_idle(before: host.Life, after: host.Life, seconds: float) -> bool:
    """Return whether a process and its children were idle for so many seconds."""
    same = before.born == after.born
    cpu_s, moved = after.cpu_s - before.cpu_s, after.moved_bytes - before.moved_bytes
    return (
        same
        and not after.runs
        and cpu_s <= BUSY_SHARE * seconds
        and moved <= BUSY_BYTES_S * seconds
    )


def _is_ahead(mark: ProgressMark, working: Iterable[ProgressMark]) -> bool:
    """Return whether a rank has begun a step that cannot end before another rank has begun it too.

    On a GPU, passes and steps are counted when they are begun, so such a rank does not know yet
    that it waits.
    """
    least = min(other.position for other in working)
    return bool(mark.on_gpu) and mark.units == least[0] and mark.ticks >= least[1] + TICKS_OF_A_STEP


def _is_behind(late: Sequence[int], waiting: Sequence[int], marks: Dict[int, ProgressMark]) -> bool:
    """Return whether every late rank has come less far than all that wait, or was stopped while it
    waited as far along as the hindmost of them.
    """
    least = min(marks[local].position for local in waiting)
    return all(
        marks[local].position < least or (marks[local].stands_by and marks[local].position == least)
        for local in late
    )


def _is_experienced(mark: ProgressMark) -> bool:
    return mark.spells >= SPELLS or mark.units >= UNITS


class Standstill:
    """Detects an attempt whose processes neither compute nor read nor write, and that has not
    reported for much longer than ever before. It is only reported: an attempt that waits for a slow
    disk or a server may go on.
    """

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._since = 0.0
        self._life: Optional[host.Life] = None
        self._family: Set[int] = set()
        self._ended: Set[int] = set()
        self._written = 0

    def look(
        self, now: float, launcher: int, written: int, quiet_since: float, limit_s: float
    ) -> str:
        """Say how it stands still; empty if it does not, or not for `limit_s` seconds.

        now          the monotonic clock, in seconds
        written         bytes that it has written for us, were they a report or not
        quiet_since  when it reported last, or began
        """
        if now - max(self._looked_at, quiet_since) < STANDSTILL_LOOK_S or not host.lists_children():
            return ""
        self._looked_at, family = now, set(host.below([launcher]))
        life, before = host.life(launcher, family), self._life
        self._ended |= self._family - family
        self._family = family
        moves = before is None or life is None or not is_idle(before, life, now - self._since)
        if moves or written != self._written or quiet_since > self._since:
            self._since, self._life, self._written = now, life, written
            return ""
        return self._text(now - self._since) if now - self._since >= limit_s else ""

    def _text(self, still_s: float) -> str:
        children, ended = len(self._family) - 1, len(self._ended)
        beside = f" and its child processes ({children})" if children else ""
        text = f"for {still_s:.0f} s it{beside} computed, read, wrote and reported nothing"
        if not children:
            return text
        before = f"; {ended} ended before" if ended else ""
        return f"{text}{before}; a multiprocessing.Pool waits for ever for a worker that was killed"
