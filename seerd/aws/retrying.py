"""Repeats of calls that have failed: jittered exponential waits, and a budget of repetitions that
all calls of a lane share.

The one rule: a first try is free; every repetition takes a token, and when there is none it waits
for one. So however many calls fail at once, after a short burst AWS sees at most `PER_S`
repetitions a second (aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
"""

from __future__ import annotations

import asyncio
import random

FIRST_S = 0.2
LONGEST_S = 10.0
BURST = 40.0
PER_S = 4.0

_dice = random.SystemRandom()


class Retries:
    """The budget of repetitions of one lane."""

    def __init__(self, burst: float = BURST, per_s: float = PER_S) -> None:
        self._tokens = self._burst = burst
        self._per_s = per_s
        self._at: float | None = None

    async def pause(self, failures: int) -> None:
        """Wait before the next try, after so many failures in a row (1 or more)."""
        await asyncio.sleep(_dice.uniform(0.1, 1.0) * longest_wait_s(failures) + self._take(_now()))

    def _take(self, now: float) -> float:
        """Take one token; return the seconds until it is there."""
        earned = 0.0 if self._at is None else (now - self._at) * self._per_s
        self._at = now
        self._tokens = min(self._burst, self._tokens + earned) - 1.0
        return max(0.0, -self._tokens / self._per_s)


def longest_wait_s(failures: int) -> float:
    """Compute the longest wait in seconds after so many failures in a row."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))


def _now() -> float:
    return asyncio.get_running_loop().time()
