"""How instances end: by their lease, by a reboot, by their termination, and how all is given back.
An end is what EC2 says it is; waiting for one is given up in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from seerd.agent.protocol import VERSION, Hello, ProtocolError, Renew, Welcome
from seerd.agent.wire import decode, encode
from seerd.aws import instances
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import RUN, tagged
from seerd.aws.userdata import LOOK_S, WORKED
from seerd.backends.base import Leftovers
from seerd.backends.ec2.register import BY_ITSELF
from seerd.clock import wall
from seerd.commands.canary import storage
from seerd.commands.canary.fleet import CanaryFleet
from seerd.commands.canary.outcome import CheckOutcome, OutcomeLog, WatchedLaunch
from seerd.errors import ProviderError, SeerdError
from seerd.telling.summary import nothing_left
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


async def lease(fleet: CanaryFleet, launch: WatchedLaunch) -> CheckOutcome:
    """Renew an agent's lease for the last time, and fall silent. Raises `ProviderError`."""
    reader, writer = await fleet.provider.connect(launch.instance)
    try:
        writer.write(encode(Hello(VERSION, fleet.run, 0)))
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
    return await _by_itself(fleet, launch, "lease", "the last word to it")


async def reboot(fleet: CanaryFleet, launch: WatchedLaunch) -> CheckOutcome:
    """Reboot an instance that has had an agent. Raises `ProviderError`."""
    end = time.monotonic() + SEEN_S
    while (await fleet.door.run(launch.instance, NOTICED)).strip() != "yes":
        if time.monotonic() > end:
            return CheckOutcome("reboot", "failed", "what ends it did not notice its agent")
        await asyncio.sleep(ASK_S)
    try:
        await fleet.cloud.ask("ec2", "reboot_instances", InstanceIds=[launch.instance])
    except AwsError as error:
        if error.kind is not ErrorKind.DENIED:
            raise
        text = "these credentials may not reboot it; `seerd canary SPEC --policy` prints what may"
        return CheckOutcome("reboot", "unknown", text, None, error.code, error.status or None)
    return await _by_itself(fleet, launch, "reboot", "it was told to reboot")


async def _by_itself(
    fleet: CanaryFleet, launch: WatchedLaunch, check: str, after: str
) -> CheckOutcome:
    since = wall()
    if not await _until(fleet, lambda: launch.ending is not None, ENDS_S):
        text = f"it still ran {format_duration(ENDS_S)} after {after}"
        return CheckOutcome(check, "failed", text)
    assert launch.ending is not None
    seconds = max(0.0, launch.ending - since)
    if launch.reason != BY_ITSELF:
        return CheckOutcome(check, "failed", f"EC2 names another cause: {launch.reason}", seconds)
    text = f"it powered itself off {format_duration(round(seconds, 1))} after {after}"
    return CheckOutcome(check, "passed", text, seconds)


async def termination(fleet: CanaryFleet, token: str) -> list[CheckOutcome]:
    """End an instance as a run does, and watch until it is gone. Raises `ProviderError`."""
    asked, launch = wall(), fleet.cloud.launches[token]
    try:
        async with asyncio.timeout(TAKEN_S):
            span = await fleet.provider.terminate(token)
    except TimeoutError:
        why = fleet.cloud.refuses_ends() or "it does not say why"
        raise ProviderError(f"EC2 has not taken it for {TAKEN_S:.0f}s: {why}") from None
    seconds = wall() - asked
    ran_s = 0.0 if span.since is None or span.until is None else span.until - span.since
    text = f"taken at once; it is accounted for with {format_duration(round(ran_s, 1))}"
    taken = CheckOutcome("termination", "passed", text, seconds)
    launch.ending = launch.ending or wall()
    if not await _until(fleet, lambda: launch.gone is not None, GONE_S):
        text = f"it was still shutting down after {format_duration(GONE_S)}; that is not billed"
        return [taken, CheckOutcome("shutting-down", "unknown", text)]
    assert launch.gone is not None
    lasted_s = launch.gone - launch.ending
    text = f"for {format_duration(round(lasted_s, 1))}, which is not billed"
    return [taken, CheckOutcome("shutting-down", "passed", text, lasted_s)]


async def _until(fleet: CanaryFleet, true: Callable[[], bool], for_s: float) -> bool:
    """Ask EC2 until this holds, for so many seconds; return whether it does."""
    end = time.monotonic() + for_s
    while not true():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(ASK_S)
        await instances.find(fleet.cloud, tagged(RUN, fleet.run))
    return True


# ------------------------------------------------------------ the end of all


def tell_refusal(log: OutcomeLog, error: AwsError) -> None:
    """Print at once that instances may be left. This is no check, and not in the report."""
    log.tell(CheckOutcome("giving back", "unknown", f"EC2 refuses: {error}"))


async def given_back(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> str:
    """End everything, and return a line on what is left."""
    ends = [fleet.provider.terminate(token) for fleet in fleets for token in fleet.tokens]
    complaint = asyncio.create_task(_complaint(fleets, log))
    # What could not be ended is asked for again by `leftovers`, and is named there.
    await asyncio.gather(*ends, return_exceptions=True)
    complaint.cancel()
    left = (fleet.provider.leftovers() for fleet in fleets)
    answers = await asyncio.gather(*left, return_exceptions=True)
    stored = []
    for fleet in [one for one in fleets if one.has_objects]:
        try:
            await storage.clean(fleet)
        except Exception as error:  # noqa: BLE001
            place = f"{fleet.cluster.store}/{fleet.run}"
            stored.append(f"objects may be left in {place}: {why_of(error)}")
    costing = [line for one, of in zip(answers, fleets, strict=True) for line in _costing(one, of)]
    costing += stored
    if costing:
        by = "instances power themselves off within minutes, and `seerd sweep` shows them"
        text = "\n".join([f"something is left that may cost; {by}:", *costing])
        log.add(CheckOutcome("nothing left", "failed", text))
    else:
        ending = [line for one in answers if isinstance(one, Leftovers) for line in one.ending]
        text = nothing_left(ending)
        log.add(CheckOutcome("nothing left", "passed", text))
    return text


async def _complaint(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> None:
    """Print once why nothing can be given back, as soon as EC2 says so."""
    while True:
        await asyncio.sleep(1.0)
        for error in filter(None, (one.cloud.refuses_ends() for one in fleets)):
            return tell_refusal(log, error)


def _costing(answer: Leftovers | BaseException, fleet: CanaryFleet) -> list[str]:
    """List what is left that costs; if EC2 does not answer, what has run."""
    if isinstance(answer, Leftovers):
        return answer.costing
    if not isinstance(answer, Exception):
        raise answer
    end = time.strftime("%H:%M:%S", time.localtime(fleet.hard_end))
    running = [
        f"instance {launch.instance} ({fleet.rental.type}) may still run, and powers itself off by "
        f"{end}"
        for launch in fleet.cloud.launches.values()
        if launch.instance and launch.ending is None
    ]
    return [why_of(answer), *running]


def why_of(error: Exception) -> str:
    """Return what went wrong."""
    return str(error) if isinstance(error, SeerdError) else f"{type(error).__name__}: {error}"
