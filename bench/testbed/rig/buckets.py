"""EC2's own limits on how often it may be asked: token buckets, one for each action, account and
region.

The one rule: a call that finds no token is refused before anything else is looked at
(docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html).
"""

from __future__ import annotations

from dataclasses import dataclass, field

SIZES = {"RunInstances": (5.0, 2.0), "TerminateInstances": (100.0, 5.0)}
"""Tokens that the bucket holds, and tokens that come back in a second, where an action has numbers
of its own.
"""
LOOKING, CHANGING = (100.0, 20.0), (50.0, 5.0)
"""The same for all others: those that only look, and those that change something."""


@dataclass(slots=True)
class Buckets:
    """The buckets of one account in one region. `throttled`: how often an action was refused."""

    throttled: dict[str, int] = field(default_factory=dict)
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, action: str, now: float) -> bool:
        """Take a token at this moment, in seconds; return whether there was one."""
        most, per_s = size_of(action)
        left, at = self._left.get(action, (most, now))
        left = min(most, left + (now - at) * per_s)
        enough = left >= 1.0
        self._left[action] = (left - 1.0 if enough else left), now
        if not enough:
            self.throttled[action] = self.throttled.get(action, 0) + 1
        return enough


def size_of(action: str) -> tuple[float, float]:
    """Return what the bucket of this action holds, and what comes back in a second."""
    plain = LOOKING if action.startswith(("Describe", "Get", "List")) else CHANGING
    return SIZES.get(action, plain)
