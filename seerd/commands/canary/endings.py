"""How instances end: by their lease, by a reboot, by their termination.

The one rule: an end is what EC2 says it is. Ends are waited for, and given up in time; whatever is
left then is ended by whoever launched it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from seerd.agent.protocol import VERSION, Hello, ProtocolError, Renew, Welcome
from seerd.agent.wire import decode, encode
from seerd.aws import instances
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import RUN, tagged
from seerd.aws.userdata import LOOK_S, WORKED
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ec2.register import BY_ITSELF
from seerd.clock import wall
from seerd.commands.canary.launching import Watched, WatchedCloud, WatchedDoor
from seerd.commands.canary.outcome import CheckOutcome, LaunchMoments
from seerd.errors import ProviderError
from seerd.units import format_duration

LEASE_S, GRACE_S, LAST_S = 5.0, 1.0, 5.0
"""The lease that is left to run out, what its trials would have to save, and what storing would
have; seconds.
"""
ENDS_S = 240.0
"""How long an instance may take to end by itself, seconds: a whole boot, and its shutdown."""
TAKEN_S = 60.0
"""How long EC2 may refuse an end, seconds, until that is an outcome. Giving back has more patience.
"""
GONE_S = 300.0
"""How long `shutting-down` is watched, seconds; nobody pays for it."""
SEEN_S = 3.0 * LOOK_S
ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Post:
    """Where from instances are watched."""

    run: str  # the tag of all instances of the canary
    cloud: WatchedCloud  # the account, which notes what it says
    door: WatchedDoor  # the way into the instances
    provider: Ec2Provider  # launches and ends them

    async def until(self, true: Callable[[], bool], for_s: float) -> bool:
        """Ask EC2 until this holds, for so many seconds; return whether it does. Raises
        `AwsError`.
        """
        end = time.monotonic() + for_s
        while not true():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(ASK_S)
            await instances.find(self.cloud, tagged(RUN, self.run))
        return True


async def lease(post: Post, watched: Watched) -> CheckOutcome:
    """Renew an agent's lease for the last time, and say nothing any more. Raises
    `ProviderError`.
    """
    reader, writer = await post.provider.connect(watched.instance)
    try:
        writer.write(encode(Hello(VERSION, post.run, 0)))
        async with asyncio.timeout(LEASE_S):
            welcome = decode(await reader.readline())
        if not isinstance(welcome, Welcome):
            return CheckOutcome("lease", "failed", f"its agent answered {welcome.kind!r}")
        writer.write(encode(Renew(LEASE_S, GRACE_S, LAST_S)))
        # Its answer to anything shows that it has read that far; nothing else is asked of it.
        await asyncio.sleep(ASK_S)
    except (OSError, TimeoutError, ProtocolError) as error:
        raise ProviderError(f"its agent could not be talked to: {error}") from error
    finally:
        writer.close()
    silent_at = wall()
    return await _by_itself(post, watched.moments, "lease", silent_at, "the last word to it")


async def reboot(post: Post, watched: Watched) -> CheckOutcome:
    """Reboot an instance that has had an agent. Raises `ProviderError`."""
    if not await _has_worked(post, watched.instance):
        return CheckOutcome("reboot", "failed", "what ends it did not notice its agent")
    try:
        await post.cloud.ask("ec2", "reboot_instances", InstanceIds=[watched.instance])
    except AwsError as error:
        if error.kind is not ErrorKind.DENIED:
            raise
        said = "these credentials may not reboot it; `seerd canary SPEC --policy` prints what may"
        return CheckOutcome("reboot", "unknown", said, None, error.code, error.status or None)
    return await _by_itself(post, watched.moments, "reboot", wall(), "it was told to reboot")


async def _has_worked(post: Post, instance: str) -> bool:
    """Wait until the instance has noticed that it had an agent."""
    end = time.monotonic() + SEEN_S
    while time.monotonic() < end:
        there = await post.door.run(instance, f"test -e {WORKED} && echo yes || echo no")
        if there.strip() == "yes":
            return True
        await asyncio.sleep(ASK_S)
    return False


async def _by_itself(
    post: Post, moments: LaunchMoments, check: str, since: float, after: str
) -> CheckOutcome:
    if not await post.until(lambda: moments.ending is not None, ENDS_S):
        said = f"it still ran {format_duration(ENDS_S)} after {after}"
        return CheckOutcome(check, "failed", said)
    assert moments.ending is not None
    seconds = max(0.0, moments.ending - since)
    if moments.reason != BY_ITSELF:
        return CheckOutcome(check, "failed", f"EC2 names another cause: {moments.reason}", seconds)
    said = f"it powered itself off {format_duration(round(seconds, 1))} after {after}"
    return CheckOutcome(check, "passed", said, seconds)


async def termination(post: Post, token: str, watched: Watched) -> list[CheckOutcome]:
    """End an instance as a run does, and watch until it is gone. Raises `ProviderError`."""
    asked = wall()
    try:
        async with asyncio.timeout(TAKEN_S):
            span = await post.provider.terminate(token)
    except TimeoutError:
        why = post.cloud.refuses_ends() or "it does not say why"
        raise ProviderError(f"EC2 has not taken it for {TAKEN_S:.0f}s: {why}") from None
    seconds = wall() - asked
    ran_s = 0.0 if span.since is None or span.until is None else span.until - span.since
    said = f"taken at once; it is accounted for with {format_duration(round(ran_s, 1))}"
    return [
        CheckOutcome("termination", "passed", said, seconds),
        await _gone(post, watched.moments),
    ]


async def _gone(post: Post, moments: LaunchMoments) -> CheckOutcome:
    moments.ending = moments.ending or wall()
    if not await post.until(lambda: moments.gone is not None, GONE_S):
        said = f"it was still shutting down after {format_duration(GONE_S)}; that is not billed"
        return CheckOutcome("shutting-down", "unknown", said)
    assert moments.gone is not None
    lasted_s = moments.gone - moments.ending
    said = f"for {format_duration(round(lasted_s, 1))}, which is not billed"
    return CheckOutcome("shutting-down", "passed", said, lasted_s)
