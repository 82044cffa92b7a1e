"""How instances end: by their lease, by a reboot, by their termination. An end is what EC2 says it
is; waiting for one is given up in time, and what is left then is ended where it was launched.
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

# the lease that runs out, the time that its trials would have to save, and to store; seconds
LEASE_S, GRACE_S, LAST_S = 5.0, 1.0, 5.0
ENDS_S = 240.0  # seconds for an instance to end by itself: a whole boot, and its shutdown
# EC2 may refuse an end so long until that is an outcome; giving back has more patience
TAKEN_S = 60.0
GONE_S = 300.0  # seconds for which `shutting-down` is watched; it is not billed
SEEN_S = 3.0 * LOOK_S
NOTICED = f"test -e {WORKED} && echo yes || echo no"  # whether it has had an agent
ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Post:
    """From where instances are watched."""

    run: str  # the tag of all instances of the canary
    cloud: WatchedCloud  # the account, which notes what it says
    door: WatchedDoor  # the way into the instances
    provider: Ec2Provider  # launches and ends them

    async def until(self, true: Callable[[], bool], for_s: float) -> bool:
        """Ask EC2 until this holds, for so many seconds; return whether it does."""
        end = time.monotonic() + for_s
        while not true():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(ASK_S)
            await instances.find(self.cloud, tagged(RUN, self.run))
        return True


async def lease(post: Post, watched: Watched) -> CheckOutcome:
    """Renew an agent's lease for the last time, and fall silent. Raises `ProviderError`."""
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
    end = time.monotonic() + SEEN_S
    while (await post.door.run(watched.instance, NOTICED)).strip() != "yes":
        if time.monotonic() > end:
            return CheckOutcome("reboot", "failed", "what ends it did not notice its agent")
        await asyncio.sleep(ASK_S)
    try:
        await post.cloud.ask("ec2", "reboot_instances", InstanceIds=[watched.instance])
    except AwsError as error:
        if error.kind is not ErrorKind.DENIED:
            raise
        said = "these credentials may not reboot it; `seerd canary SPEC --policy` prints what may"
        return CheckOutcome("reboot", "unknown", said, None, error.code, error.status or None)
    return await _by_itself(post, watched.moments, "reboot", wall(), "it was told to reboot")


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
    taken = CheckOutcome("termination", "passed", said, seconds)
    moments = watched.moments
    moments.ending = moments.ending or wall()
    if not await post.until(lambda: moments.gone is not None, GONE_S):
        said = f"it was still shutting down after {format_duration(GONE_S)}; that is not billed"
        return [taken, CheckOutcome("shutting-down", "unknown", said)]
    assert moments.gone is not None
    lasted_s = moments.gone - moments.ending
    said = f"for {format_duration(round(lasted_s, 1))}, which is not billed"
    return [taken, CheckOutcome("shutting-down", "passed", said, lasted_s)]
