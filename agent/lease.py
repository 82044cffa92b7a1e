"""The lease: how long the agent goes on without hearing from the daemon. Clock-free: now is always
an argument.

The one rule: only `renew` moves the end, and the newest word counts, also if it is shorter than
what was said before.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.agent.protocol import Renew


@dataclass
class Lease:
    """`ends_at`: when the agent must let go, monotonic seconds; `grace_s`: how long trials may then
    take to save; `last_s`: how much longer storing that may take, since nobody else ends what is
    paid for.
    """

    ends_at: float
    grace_s: float
    last_s: float = 120.0

    def renew(self, now: float, told: Renew) -> None:
        """The daemon lives, and says how long to go on without it."""
        self.ends_at = now + told.for_s
        self.grace_s, self.last_s = told.grace_s, told.last_s

    def ended(self, now: float) -> bool:
        """Whether nobody has renewed it in time."""
        return now >= self.ends_at
