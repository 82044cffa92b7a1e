"""Sees that an attempt stands still: its processes neither compute nor read nor write, and it has
not reported for much longer than it ever took.

The one rule: that is only told. Nothing is ended for it: who waits for a slow disk or a server may
go on.
"""

from __future__ import annotations

from typing import Optional, Set

from seerd.agent import host
from seerd.agent.hangs import is_idle

LOOK_S = 2.0


class Standstill:
    """Looks at the processes of one attempt, below its launcher."""

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._since = 0.0
        self._life: Optional[host.Life] = None
        self._family: Set[int] = set()
        self._ended: Set[int] = set()
        self._told = 0

    def look(self, now: float, launcher: int, told: int, quiet_since: float, limit_s: float) -> str:
        """Say how it stands still; empty if it does not, or not for `limit_s` seconds.

        now          the monotonic clock, in seconds
        told         bytes that it has written for us, were they a report or not
        quiet_since  when it reported last, or began
        """
        if now - max(self._looked_at, quiet_since) < LOOK_S or not host.lists_children():
            return ""
        self._looked_at, family = now, set(host.below([launcher]))
        life, before = host.life(launcher, family), self._life
        self._ended |= self._family - family
        self._family = family
        moves = before is None or life is None or not is_idle(before, life, now - self._since)
        if moves or told != self._told or quiet_since > self._since:
            self._since, self._life, self._told = now, life, told
            return ""
        return self._text(now - self._since) if now - self._since >= limit_s else ""

    def _text(self, still_s: float) -> str:
        children, ended = len(self._family) - 1, len(self._ended)
        beside = f" and its child processes ({children})" if children else ""
        said = f"for {still_s:.0f} s it{beside} computed, read, wrote and reported nothing"
        if not children:
            return said
        before = f"; {ended} ended before" if ended else ""
        return f"{said}{before}; a multiprocessing.Pool waits for ever for a worker that was killed"
