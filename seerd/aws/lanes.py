"""When AWS may be called. EC2 gives each action of an account and region a bucket of tokens, and
refuses calls that find none (docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html). Here
each kind of call has a lane with a smaller bucket, and waits: a refused call takes a token as well,
and others use the account too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from seerd.aws.errors import ErrorKind

AT_ONCE = 8  # the most calls of a lane that are under way at any time

SLOWER, SLOWEST = 1.4, 4.0  # by how much each throttling slows a lane down, and by how much in all

LIMITS = {
    "run_instances": (3.0, 1.8),
    "terminate_instances": (50.0, 4.0),
    "describe_instances": (50.0, 10.0),
}
"""What a bucket holds and how many tokens come back in a second. EC2's own are 5 and 2, 100 and 5,
100 and 20; something is left of each, since calls do not arrive as evenly as they are sent.
"""
FIRST_S, LONGEST_S = 0.2, 10.0
BURST, PER_S = 40.0, 4.0

_dice = random.SystemRandom()


class Bucket:
    """Tokens for calls. All moments are in seconds of one clock."""

    def __init__(self, most: float, per_s: float) -> None:
        self._most = self._left = most
        self._best = self.per_s = per_s  # tokens that come back in a second: at best, and now
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is a token."""
        self._refill(now)
        return max(0.0, (1.0 - self._left) / self.per_s)

    def take(self, now: float) -> None:
        """Take a token, also one that is yet to come."""
        self._refill(now)
        self._left -= 1.0

    def throttled(self, now: float) -> None:
        """Begin anew, at a slower pace: AWS has refused a call."""
        self._refill(now)
        self._left = min(self._left, 0.0)
        self.per_s = max(self._best / SLOWEST, self.per_s / SLOWER)

    def accepted(self, now: float) -> None:
        """Come back to the full pace step by step: AWS has taken a call."""
        self._refill(now)
        self.per_s = min(self._best, self.per_s + self._best / SLOWEST)

    def _refill(self, now: float) -> None:
        since = now if self._at is None else self._at
        self._left = min(self._most, self._left + max(0.0, now - since) * self.per_s)
        self._at = now


class Retries:
    """The budget of repetitions of one lane. A first try is free; each repetition takes a token,
    and waits for one if there is none: after a burst AWS sees at most `PER_S` a second
    (aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
    """

    def __init__(self, burst: float = BURST, per_s: float = PER_S) -> None:
        self._bucket = Bucket(burst, per_s)

    async def pause(self, failures: int) -> None:
        """Wait before the next try, after so many failures in a row (1 or more)."""
        await asyncio.sleep(_dice.uniform(0.1, 1.0) * longest_wait_s(failures) + self._take(_now()))

    def _take(self, now: float) -> float:
        """Take one token; return the seconds until it is there."""
        wait_s = self._bucket.wait_s(now)
        self._bucket.take(now)
        return wait_s


def longest_wait_s(failures: int) -> float:
    """Return the longest wait in seconds after so many failures in a row."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))


class Lane:
    """The calls of one kind: first come, first served."""

    def __init__(self, limit: tuple[float, float] | None) -> None:
        self.gate = asyncio.Semaphore(AT_ONCE)
        self.retries = Retries()
        self._bucket = None if limit is None else Bucket(*limit)
        self._queue = asyncio.Lock()

    async def turn(self, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait until a call may be made; without taking a token, return False once it is not
        `wanted`.
        """
        if self._bucket is None:
            return wanted()
        async with self._queue:
            if not wanted():
                return False
            await asyncio.sleep(self._bucket.wait_s(_now()))
            if not wanted():
                return False
            self._bucket.take(_now())
            return True

    async def again(self, failures: int) -> None:
        """Wait until a call that has failed so often in a row (1 or more) may be repeated. It goes
        before new ones: it may have brought something that nobody knows of.
        """
        await self.retries.pause(failures)
        if self._bucket is not None:
            wait_s = self._bucket.wait_s(_now())
            self._bucket.take(_now())
            await asyncio.sleep(wait_s)

    def answered(self, refusal: ErrorKind | None = None) -> None:
        """Learn from the outcome of a call whether more of them may be made, or fewer."""
        if self._bucket is None or refusal is ErrorKind.UNCLEAR:
            return
        if refusal is ErrorKind.THROTTLED:
            self._bucket.throttled(_now())
        else:
            self._bucket.accepted(_now())


class CallLanes:
    """The lanes of one account and region: one for each limited action, one for all others."""

    def __init__(self) -> None:
        self._lanes = {action: Lane(limit) for action, limit in LIMITS.items()}
        self._others = Lane(None)

    def __getitem__(self, action: str) -> Lane:
        """Return the lane of this action, as botocore names it."""
        return self._lanes.get(action, self._others)


def _now() -> float:
    return asyncio.get_running_loop().time()
