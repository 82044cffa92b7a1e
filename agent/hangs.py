"""Finds ranks that hang: others have gone as far as they can without them, they have done nothing
for much longer than any spell of work before, and nothing else explains that. If all ranks are late
together, none counts as hung.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Optional, Sequence

from seerd.agent import clock, host, progress_marks
from seerd.agent.progress_marks import ENDED, SAVING, ProgressMark
from seerd.agent.timings import Timings

GAP_S = 5.0  # a longer gap between two looks means that this machine was suspended or is overloaded
SPELLS, UNITS = 30, 3
"""Spells of work, or calls of `running()`, before a rank can be late: the first ones compile."""
BUSY_SHARE = 0.05
BUSY_BYTES_S = 64 << 10
"""A larger share of a CPU's time, or more bytes read or written per second, is work."""
TICKS_OF_A_STEP = 2  # the backward pass, and the step itself

Picture = dict[int, tuple[int, int, int]]
STANDSTILL_LOOK_S = 2.0


@dataclass(frozen=True)
class Stand:
    """Which local ranks wait for which."""

    late: tuple[int, ...]  # behind the others; empty: all wait, for ranks elsewhere
    waiting: tuple[int, ...]  # waiting for others; empty: none


@dataclass(frozen=True)
class Stall:
    """An attempt that stands still on this instance."""

    position: tuple[int, int]  # of the last rank (units, ticks)
    hung: Optional[ProgressMark]  # of the last late rank; None: all wait for ranks elsewhere
    local: int  # number of the last rank on this instance
    since: float  # since when nothing moves, in the agent's time
    quiet_s: float  # seconds from then until it was noticed


class HangDetector:
    """Looks at the marks in `folder`; `members` are the attempt's processes."""

    def __init__(
        self, folder: Path, members: Callable[[], set[int]], timings: Timings, spans: bool
    ) -> None:
        self._folder = folder
        self._members = members
        self._timings = timings
        self._spans = spans
        self._looked_at = 0.0
        self._picture: Picture = {}
        self._still_since = 0.0
        self._life: dict[int, host.Life] = {}
        self.marks: dict[int, ProgressMark] = {}  # the newest marks, by local rank
        self.stall: Optional[Stall] = None  # None: no stall

    def look(self, now: float) -> bool:
        """Update `marks` and `stall` if a look is due (monotonic clock); return whether it was."""
        since_last = now - self._looked_at
        if since_last < self._timings.hang_look_s:
            return False
        self._looked_at = now
        self.marks = progress_marks.read(self._folder)
        picture = {local: (*mark.position, mark.doing) for local, mark in self.marks.items()}
        if picture != self._picture or since_last > GAP_S:
            self._picture, self.stall = picture, None
            self._begin_anew(now)
        elif self.stall is None:
            self.stall = self._judged(now)
        elif self.stall.hung is not None:
            stand = self._standing()
            if stand is None or self._works(stand, clock.now() - self.stall.since):
                self.stall = None
                self._begin_anew(now)
        return True

    def _begin_anew(self, now: float) -> None:
        self._still_since, self._life = now, {}

    def _judged(self, now: float) -> Optional[Stall]:
        if now - self._still_since < self._timings.hang_look_s:
            return None
        stand = self._standing()
        if stand is None:
            return None
        if stand.late and not self._life:
            self._still_since, self._life = now, self._lives(stand)
        quiet_s = now - self._still_since
        if quiet_s < limit_s(self.marks, self._timings):
            return None
        if stand.late and self._works(stand, quiet_s):
            self._begin_anew(now)
            return None
        last = min(stand.late or stand.waiting, key=lambda rank: (self.marks[rank].position, rank))
        mark = self.marks[last]
        hung = mark if stand.late else None
        return Stall(mark.position, hung, last, clock.now() - quiet_s, quiet_s)

    def _standing(self) -> Optional[Stand]:
        stopped = {local for local, mark in self.marks.items() if host.is_stopped(mark.pid)}
        return standing(self.marks, stopped, spans=self._spans)

    def _lives(self, stand: Stand) -> dict[int, host.Life]:
        members = self._members()
        lives = {local: host.life(self.marks[local].pid, members) for local in stand.late}
        return {local: life for local, life in lives.items() if life is not None}

    def _works(self, stand: Stand, seconds: float) -> bool:
        after = self._lives(stand)
        return any(
            local not in self._life
            or local not in after
            or not is_idle(self._life[local], after[local], seconds)
            for local in stand.late
        )


def standing(marks: dict[int, ProgressMark], stopped: set[int], *, spans: bool) -> Optional[Stand]:
    """Return which ranks wait for which; None: unclear. `stopped`: ranks stopped by a signal."""
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
    if any(marks[local].spells < SPELLS and marks[local].units < UNITS for local in late):
        return None
    if late and waiting and not _is_behind(late, waiting, marks):
        return None
    return Stand(late, waiting) if spans or (late and waiting) else None


def limit_s(marks: dict[int, ProgressMark], timings: Timings) -> float:
    """Return how many seconds a rank must have been quiet to count as hung."""
    longest_s = max((mark.longest_s for mark in marks.values()), default=0.0)
    return max(timings.hang_quiet_s, timings.hang_patience * longest_s)


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
    On a GPU, steps are counted when they are begun, so such a rank does not know that it waits.
    """
    least = min(other.position for other in working)
    return bool(mark.on_gpu) and mark.units == least[0] and mark.ticks >= least[1] + TICKS_OF_A_STEP


def _is_behind(late: Sequence[int], waiting: Sequence[int], marks: dict[int, ProgressMark]) -> bool:
    """Return whether every late rank has come less far than all that wait, or was stopped while it
    waited as far along as the last of them.
    """
    least = min(marks[local].position for local in waiting)
    return all(
        marks[local].position < least or (marks[local].stands_by and marks[local].position == least)
        for local in late
    )


class Standstill:
    """Detects an attempt whose processes do nothing, and that has not reported for much longer than
    ever before. It may wait for a slow disk or a server, so it is only reported.
    """

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._since = 0.0
        self._life: Optional[host.Life] = None
        self._family: set[int] = set()
        self._ended: set[int] = set()
        self._written = 0

    def look(
        self, now: float, launcher: int, written: int, quiet_since: float, limit_s: float
    ) -> str:
        """Return how it stands still; empty if it does not, or not for `limit_s` seconds.

        now          the monotonic clock, in seconds
        written      bytes that it has written for us
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
        still_s, children, ended = now - self._since, len(family) - 1, len(self._ended)
        if still_s < limit_s:
            return ""
        beside = f" and its child processes ({children})" if children else ""
        text = f"for {still_s:.0f} s it{beside} computed, read, wrote and reported nothing"
        if not children:
            return text
        text += f"; {ended} ended before" if ended else ""
        return f"{text}; a multiprocessing.Pool waits for ever for a worker that was killed"
