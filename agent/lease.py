"""The lease: how long the agent goes on without hearing from the daemon. Clock-free: now is always an argument.

The one rule: only `renew` moves the end, and the newest word counts, also if it is shorter than what was said before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Lease:
    """`ends_at`: when the agent must let go, monotonic seconds; `grace_s`: how long trials may then take to save."""

    ends_at: float
    grace_s: float

    def renew(self, now: float, for_s: float, grace_s: float) -> None:
        """The daemon lives, and says how long to go on without it."""
        self.ends_at = now + for_s
        self.grace_s = grace_s

    def ended(self, now: float) -> bool:
        """Whether nobody has renewed it in time."""
        return now >= self.ends_at
