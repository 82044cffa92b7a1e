"""The lease: how long the agent goes on without hearing from the daemon. It reads no clock: the
time is always an argument.

The one rule: only `renew` moves the end, and the newest word counts, even if it shortens what was
said before.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.agent.protocol import Renew


@dataclass
class Lease:
    """The lease as it stands now."""

    ends_at: float  # when the agent must let go, in the agent's time (`clock`)
    grace_s: float  # seconds that trials then have to save and exit
    # further seconds for storing what they saved; limited, since the instance is paid for and
    # nobody else ends it
    last_s: float = 120.0

    def renew(self, now: float, message: Renew) -> None:
        """Note that the daemon lives, and how long it wants the agent to go on without it."""
        self.ends_at = message.since(now) + message.for_s
        self.grace_s, self.last_s = message.grace_s, message.last_s

    def grace_left_s(self, now: float) -> float:
        """Return how many seconds trials have to save and exit from now on. Who could not look in
        time, since it was frozen, has less: what is paid for goes by the clock.
        """
        return min(self.grace_s, max(0.0, self.ends_at + self.grace_s - now))

    def last_left_s(self, now: float) -> float:
        """Return within how many seconds all must be over, also storing what was saved."""
        most_s = self.grace_s + self.last_s
        return min(most_s, max(0.0, self.ends_at + most_s - now))

    def ended(self, now: float) -> bool:
        """Return whether nobody has renewed it in time."""
        return now >= self.ends_at
