"""All checks of a canary, on three small instances and, if wanted, on one with a GPU. A check that
goes wrong is an outcome, and prevents no other; everything is given back after them. An end is what
EC2 says it is; waiting for one is given up in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from seerd.agent.protocol import VERSION, Hello, ProtocolError, Renew, Welcome
from seerd.agent.wire import decode, encode
from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import NOT_PERMITTED, AwsError
from seerd.aws.instances import RUN, tagged
from seerd.aws.policy import policy
from seerd.aws.userdata import LOOK_S, WORKED
from seerd.backends.backend import PYTHON
from seerd.backends.base import Leftovers
from seerd.backends.ec2.doctor import needs_of
from seerd.backends.ec2.register import BY_ITSELF
from seerd.clock import wall
from seerd.commands import doctor
from seerd.commands.canary import inside, launching, parts, terminals
from seerd.commands.canary.launching import (
    GPU,
    LEASE,
    PROVED,
    REBOOT,
    SMALL,
    CanaryFleet,
    CanaryPlan,
)
from seerd.commands.canary.outcome import (
    CAPACITY,
    CREDENTIALS,
    FALLBACK,
    GPU_WORK_S,
    LONGEST_GPU_S,
    LONGEST_S,
    CheckOutcome,
    OutcomeLog,
    WatchedLaunch,
    failed,
    passed,
    refused,
    timeline,
    unknown,
)
from seerd.commands.giving_back import to_its_end
from seerd.errors import InterruptedRentalError, ProviderError, SeerdError
from seerd.runs.clusters import rented
from seerd.telling.summary import nothing_left
from seerd.units import format_duration

TORCH = "import torch; print(torch.cuda.is_available())"
IMPORTS = ("torch, cold", "torch, warm")
TOKEN_AGAIN = "one token, one instance"  # noqa: S105 - the name of a check


@dataclass(slots=True)
class CanaryResult:
    """What a canary has found out."""

    outcomes: list[CheckOutcome]  # results of all checks, in their order
    launches: list[tuple[str, WatchedLaunch]] = field(default_factory=list)  # with their types
    release: list[float] = field(default_factory=list)  # seconds until EC2 had taken an end
    torch_s: float | None = None  # seconds of the first import of torch; None: it was not tried
    usd: float = 0.0  # about how many USD the instances cost


async def fly(plan: CanaryPlan, log: OutcomeLog, folder: Path) -> CanaryResult:
    """Make all checks. Failures are outcomes. Raises `CloudError` if nothing can be rented at all,
    and `InterruptedRentalError` when it was cancelled; both only after everything was given back.
    """
    begun = wall()
    log.add(*parts.not_tried(plan.cluster, gpu=plan.gpu is not None))
    falls_back, by_s = FALLBACK not in log.outcomes, begun + LONGEST_S
    own, others = (SMALL[:-1], SMALL[-1:]) if falls_back else (SMALL, ())
    small = rebooted = CanaryFleet(plan, plan.small, own, by_s, folder / "small")
    fleets, with_gpu = [small], []
    if others:
        rebooted = CanaryFleet(plan, plan.small, others, by_s, folder / "fallback")
        fleets.append(rebooted)
    if plan.gpu is not None:
        with_gpu = [CanaryFleet(plan, plan.gpu, (GPU,), begun + LONGEST_GPU_S, folder / "gpu")]
        fleets += with_gpu
    why, interrupted = "the canary was over before", False
    checks = _Checks(plan, log, folder, CanaryResult([]))
    awaited = [asyncio.create_task(_say_awaited(one, log)) for one in fleets]
    try:
        for one in fleets:
            await one.provider.open()
        async with asyncio.timeout(plan.work_s):
            await _all(
                checks.record(checks.doctor(), "doctor"),
                checks.record(parts.credentials(plan), CREDENTIALS),
                checks.record(checks.printed_policy(), "printed policy"),
                *([checks.record(parts.capacity(plan), CAPACITY)] if plan.cluster.capacity else []),
                checks.prove(small),
                checks.end(small, LEASE, lease),
                checks.end(rebooted, REBOOT, reboot, *([FALLBACK] if falls_back else [])),
                *(checks.with_gpu(one) for one in with_gpu),
            )
    except asyncio.CancelledError:
        interrupted = True
    except TimeoutError:
        why = "the time of the canary was over before"
    finally:
        for task in awaited:
            task.cancel()
        left = await to_its_end(given_back(fleets, log))
        await to_its_end(_all(*(one.provider.close() for one in fleets)))
    if interrupted:
        raise InterruptedRentalError(f"interrupted; {left}")
    result = checks.result
    result.outcomes = log.complete(gpu=plan.gpu is not None, why=why)
    ends = (one for one in result.outcomes if one.check == "termination")
    result.release = [one.seconds for one in ends if one.result == "passed" and one.seconds]
    for one in fleets:
        result.launches += [(one.rental.type, it) for it in one.cloud.launches.values()]
        result.usd += one.usd()
    return result


async def _say_awaited(fleet: CanaryFleet, log: OutcomeLog) -> None:
    """Say why instances cannot be used yet, as long as this is not cancelled."""
    while True:
        news = await fleet.provider.progress()
        if news.what == "unreached":
            log.say(f"{news.instance} cannot be used yet: {news.why}")


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of it side by side; the first exception ends the rest, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class _Checks:
    plan: CanaryPlan
    log: OutcomeLog
    folder: Path  # a temporary folder on this machine
    result: CanaryResult  # gets what the checks measure

    async def record(self, work: Awaitable[list[CheckOutcome]], *checks: str) -> None:
        """Record the outcomes of this work; if it fails, that these checks could not be made."""
        with self.failing(*checks):
            self.log.add(*await work)

    @contextlib.contextmanager
    def failing(self, *checks: str) -> Iterator[None]:
        """Record a failure of the block for these checks. Mistakes of seerd are outcomes, too: what
        was paid for is reported.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.log.add(*(failed(check, why_of(error)) for check in checks))

    async def doctor(self) -> list[CheckOutcome]:
        began, asked = time.monotonic(), self.plan.asked
        findings = await asyncio.to_thread(
            doctor.examine, asked.path, asked.overrides(), self.plan.home
        )
        problems = [f"{one.check}: {one.found}" for one in findings if one.level == "problem"]
        if problems:
            return [failed("doctor", "; ".join(problems))]
        return [passed("doctor", f"{len(findings)} checks, no problem", time.monotonic() - began)]

    async def printed_policy(self) -> list[CheckOutcome]:
        plan = self.plan
        document = policy(await needs_of(plan.spec, rented(plan.spec).keys))
        changes = [word for one in plan.asked.set_ or [] for word in ("--set", one)]
        home = ["--home", str(plan.home.path)]
        words = ["doctor", str(plan.asked.path), *changes, *home, "--json"]
        async with Cloud(plan.cluster.region) as cloud:
            return [await terminals.printed_policy(cloud, plan.arn, document, words)]

    async def end(
        self,
        fleet: CanaryFleet,
        token: str,
        ending: Callable[[CanaryFleet, WatchedLaunch], Awaitable[CheckOutcome]],
        *fallback: str,
    ) -> None:
        """Launch an instance, and end it this way. `fallback`: the check of its launch, if it bids
        for spot.
        """
        with self.failing(token, *fallback):
            launch = await fleet.launch(token)
            if fallback:
                self.log.add(parts.fell_back(launch))
            self.log.add(await ending(fleet, launch))

    async def prove(self, fleet: CanaryFleet) -> None:
        """Launch an instance, check everything on it, and end it."""
        launch, trouble = fleet.cloud.launches[PROVED], ""
        try:
            await fleet.launch(PROVED)
        except Exception as error:  # noqa: BLE001
            trouble = why_of(error)
        self.log.add(*timeline(launch, trouble), parts.way_in(launch, fleet.cluster))
        if trouble:
            return
        home = self.folder / "elsewhere"
        home.mkdir()
        refused = launching.refused_launches(fleet.cloud, launch.request)
        sweep = terminals.sweep(fleet.cloud, launch.instance, str(home))
        with self.failing(TOKEN_AGAIN):
            again = await fleet.cloud.ask("ec2", "run_instances", **launch.request)
            same = {row["InstanceId"] for row in again["Instances"]} == {launch.instance}
            other = failed(TOKEN_AGAIN, "EC2 has given another instance for the same token")
            self.log.add(passed(TOKEN_AGAIN, "asked twice, EC2 has given one") if same else other)
        with self.failing(*inside.REPORTED):
            before = wall()
            report = await fleet.run_program(PROVED, inside.REPORTS)
            at = (before + wall()) / 2
            facts = msgspec.json.decode(report, type=inside.Facts)
            self.log.add(*inside.judged(facts, launch.asked or at, at, fleet.hard_end))
        await _all(
            self.record(inside.transfers(fleet), *inside.STORED),
            self.record(refused, *launching.ABOUT),
            self.record(sweep, "sweep"),
        )
        await self.record(termination(fleet, PROVED), "termination", "shutting-down")

    async def with_gpu(self, fleet: CanaryFleet) -> None:
        """Launch the instance with a GPU, import torch there twice, and end it, all in time."""
        try:
            async with asyncio.timeout(GPU_WORK_S):
                with self.failing("GPU"):
                    launch = await fleet.launch(GPU)
                    listed = await fleet.door.run(launch.instance, "nvidia-smi -L")
                    seconds = (launch.agent or wall()) - (launch.asked or wall())
                    answers = passed("GPU", listed.partition("(")[0].strip(), seconds)
                    none = failed("GPU", "nvidia-smi lists none", seconds)
                    self.log.add(answers if listed.startswith("GPU 0") else none)
                for check, look in parts.ON_GPU.items():
                    if (
                        self.log.outcomes["GPU"].result == "passed"
                        and check not in self.log.outcomes
                    ):
                        with self.failing(check):
                            self.log.add(await look(fleet, launch.instance))
                for check in IMPORTS:
                    if self.log.outcomes["GPU"].result == "passed":
                        with self.failing(check):
                            self.log.add(await self.imported(fleet, check))
        except TimeoutError:
            why = "the five minutes of this instance were over before"
            self.log.add(*(unknown(check, why) for check in ("GPU", *IMPORTS)))
        # If this is refused or cancelled, everything is still given back at the end. How long the
        # instance takes to be gone is in the launches of the report.
        if fleet.cloud.launches[GPU].instance:
            with contextlib.suppress(SeerdError):
                await termination(fleet, GPU)

    async def imported(self, fleet: CanaryFleet, check: str) -> CheckOutcome:
        python = shlex.join(shlex.split(self.plan.spec.train.python or PYTHON))
        instance, began = fleet.cloud.launches[GPU].instance, time.monotonic()
        try:
            has_gpu = await fleet.door.run(
                instance, f"{python} -c {shlex.quote(TORCH)}", for_s=GPU_WORK_S
            )
        except ProviderError as error:
            why = f"torch cannot be imported with the spec's python: {error}"
            raise ProviderError(why) from error
        took_s = time.monotonic() - began
        if self.result.torch_s is None:
            self.result.torch_s = took_s
        if "True" in has_gpu:
            return passed(check, "it has the GPU", took_s)
        return failed(check, "it was imported, and has no GPU", took_s)


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
            return failed("lease", f"its agent answered {welcome.kind!r}")
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
            return failed("reboot", "what ends it did not notice its agent")
        await asyncio.sleep(ASK_S)
    try:
        await fleet.cloud.ask("ec2", "reboot_instances", InstanceIds=[launch.instance])
    except AwsError as error:
        if error.kind not in NOT_PERMITTED:
            raise
        text = "these credentials may not reboot it; `seerd canary SPEC --policy` prints what may"
        return refused("reboot", "unknown", text, error)
    return await _by_itself(fleet, launch, "reboot", "it was told to reboot")


async def _by_itself(
    fleet: CanaryFleet, launch: WatchedLaunch, check: str, after: str
) -> CheckOutcome:
    since = wall()
    if not await _until(fleet, lambda: launch.ending is not None, ENDS_S):
        return failed(check, f"it still ran {format_duration(ENDS_S)} after {after}")
    assert launch.ending is not None
    seconds = max(0.0, launch.ending - since)
    if launch.reason != BY_ITSELF:
        return failed(check, f"EC2 names another cause: {launch.reason}", seconds)
    text = f"it powered itself off {format_duration(round(seconds, 1))} after {after}"
    return passed(check, text, seconds)


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
    taken = passed("termination", text, seconds)
    launch.ending = launch.ending or wall()
    if not await _until(fleet, lambda: launch.gone is not None, GONE_S):
        text = f"it was still shutting down after {format_duration(GONE_S)}; that is not billed"
        return [taken, unknown("shutting-down", text)]
    assert launch.gone is not None
    lasted_s = launch.gone - launch.ending
    text = f"for {format_duration(round(lasted_s, 1))}, which is not billed"
    return [taken, passed("shutting-down", text, lasted_s)]


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


async def given_back(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> str:
    """End everything, and return a line on what is left."""
    ends = [fleet.provider.terminate(token) for fleet in fleets for token in fleet.tokens]
    # What could not be ended is asked for again by `leftovers`, and is named there.
    await asyncio.gather(*ends, return_exceptions=True)
    left = (fleet.provider.leftovers() for fleet in fleets)
    answers = await asyncio.gather(*left, return_exceptions=True)
    stored = []
    for fleet in [one for one in fleets if one.has_objects]:
        try:
            await inside.clean(fleet)
        except Exception as error:  # noqa: BLE001
            place = f"{fleet.cluster.store}/{fleet.run}"
            stored.append(f"objects may be left in {place}: {why_of(error)}")
    costing = [line for one, of in zip(answers, fleets, strict=True) for line in _costing(one, of)]
    costing += stored
    if costing:
        by = "instances power themselves off within minutes, and `seerd sweep` shows them"
        text = "\n".join([f"something is left that may cost; {by}:", *costing])
        log.add(failed("nothing left", text))
    else:
        text = nothing_left([line for one in answers for line in getattr(one, "ending", ())])
        log.add(passed("nothing left", text))
    return text


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
