"""All checks of a canary, on three small instances and, if wanted, on one with a GPU. A check that
goes wrong is an outcome, and prevents no other; everything is given back after them (`endings.py`).
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

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError
from seerd.aws.policy import policy
from seerd.backends.ec2.doctor import needs_of
from seerd.clock import wall
from seerd.commands import doctor
from seerd.commands.canary import endings, inside, launching, storage, terminals
from seerd.commands.canary.endings import given_back, tell_refusal, why_of
from seerd.commands.canary.fleet import (
    GPU,
    LEASE,
    PROVED,
    REBOOT,
    SMALL,
    CanaryFleet,
    CanaryPlan,
    python_of,
)
from seerd.commands.canary.outcome import (
    GPU_WORK_S,
    LONGEST_GPU_S,
    LONGEST_S,
    WORK_S,
    CheckOutcome,
    OutcomeLog,
    WatchedLaunch,
    timeline,
)
from seerd.commands.giving_back import to_its_end
from seerd.errors import InterruptedRentalError, ProviderError, SeerdError

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
    small = CanaryFleet(plan, plan.small, SMALL, begun + LONGEST_S, folder / "small")
    fleets = [small]
    if plan.gpu is not None:
        fleets.append(CanaryFleet(plan, plan.gpu, (GPU,), begun + LONGEST_GPU_S, folder / "gpu"))
    why, interrupted = "the canary was over before", False
    checks = _Checks(plan, log, folder, CanaryResult([]))
    try:
        for one in fleets:
            await one.provider.open()
        async with asyncio.timeout(WORK_S):
            work = _all(
                checks.record(checks.doctor(), "doctor"),
                checks.record(checks.printed_policy(), "printed policy"),
                checks.prove(small),
                checks.end(small, LEASE, endings.lease),
                checks.end(small, REBOOT, endings.reboot),
                *(checks.with_gpu(one) for one in fleets[1:]),
            )
            if (refused := await _unless_locked_out(work, fleets, log)) is not None:
                why = f"the canary ended early: {refused}"
    except asyncio.CancelledError:
        interrupted = True
    except TimeoutError:
        why = "the time of the canary was over before"
    finally:
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


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of it side by side; the first exception ends the rest, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _unless_locked_out(
    work: Awaitable[None], fleets: Sequence[CanaryFleet], log: OutcomeLog
) -> AwsError | None:
    """Do the work. If AWS takes the credentials no more, end it and return why: all other checks
    would fail too, and instances may be left.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=1.0))[0]:
            for error in filter(None, (one.cloud.locked_out() for one in fleets)):
                tell_refusal(log, error)
                return error
        task.result()
        return None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Checks:
    """The checks of a canary."""

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
            self.log.add(*(CheckOutcome(check, "failed", why_of(error)) for check in checks))

    async def doctor(self) -> list[CheckOutcome]:
        began, asked = time.monotonic(), self.plan.asked
        work = asyncio.to_thread(doctor.examine, asked.path, asked.overrides(), self.plan.home)
        findings = await work
        problems = [f"{one.check}: {one.found}" for one in findings if one.level == "problem"]
        if problems:
            return [CheckOutcome("doctor", "failed", "; ".join(problems))]
        text = f"{len(findings)} checks, no problem"
        return [CheckOutcome("doctor", "passed", text, time.monotonic() - began)]

    async def printed_policy(self) -> list[CheckOutcome]:
        plan = self.plan
        document = policy(await needs_of(plan.spec, plan.cluster))
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
    ) -> None:
        with self.failing(token):
            self.log.add(await ending(fleet, await fleet.launch(token)))

    async def prove(self, fleet: CanaryFleet) -> None:
        """Launch an instance, check everything on it, and end it."""
        launch, trouble = fleet.cloud.launches[PROVED], ""
        try:
            await fleet.launch(PROVED)
        except Exception as error:  # noqa: BLE001
            trouble = why_of(error)
        self.log.add(*timeline(launch, trouble))
        if trouble:
            return
        home = self.folder / "elsewhere"
        home.mkdir()
        refused = launching.refused_launches(fleet.cloud, launch.request)
        sweep = terminals.sweep(fleet.cloud, launch.instance, str(home))
        await self.record(_token_again(fleet, launch), TOKEN_AGAIN)
        await self.record(_inside(fleet, launch), *inside.CHECKED)
        await _all(
            self.record(storage.look(fleet), *storage.CHECKED),
            self.record(refused, *launching.ABOUT),
            self.record(sweep, "sweep"),
        )
        ended = endings.termination(fleet, PROVED)
        await self.record(ended, "termination", "shutting-down")

    async def with_gpu(self, fleet: CanaryFleet) -> None:
        """Launch the instance with a GPU, import torch there twice, and end it, all in time."""
        try:
            async with asyncio.timeout(GPU_WORK_S):
                with self.failing("GPU"):
                    self.log.add(await _driver(fleet, await fleet.launch(GPU)))
                for check in IMPORTS:
                    if self.log.outcomes["GPU"].result == "passed":
                        with self.failing(check):
                            self.log.add(await self.imported(fleet, check))
        except TimeoutError:
            why = "the five minutes of this instance were over before"
            self.log.add(*(CheckOutcome(check, "unknown", why) for check in ("GPU", *IMPORTS)))
        # If this is refused or cancelled, everything is still given back at the end. How long the
        # instance takes to be gone is in the launches of the report.
        if fleet.cloud.launches[GPU].instance:
            with contextlib.suppress(SeerdError):
                await endings.termination(fleet, GPU)

    async def imported(self, fleet: CanaryFleet, check: str) -> CheckOutcome:
        python = shlex.join(shlex.split(python_of(self.plan.spec)))
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
            return CheckOutcome(check, "passed", "it has the GPU", took_s)
        return CheckOutcome(check, "failed", "it was imported, and has no GPU", took_s)


async def _token_again(fleet: CanaryFleet, launch: WatchedLaunch) -> list[CheckOutcome]:
    again = await fleet.cloud.ask("ec2", "run_instances", **launch.request)
    if {row["InstanceId"] for row in again["Instances"]} != {launch.instance}:
        why = "EC2 has given another instance for the same token"
        return [CheckOutcome(TOKEN_AGAIN, "failed", why)]
    return [CheckOutcome(TOKEN_AGAIN, "passed", "asked twice, EC2 has given one")]


async def _inside(fleet: CanaryFleet, launch: WatchedLaunch) -> list[CheckOutcome]:
    before = wall()
    report = await fleet.run_program(PROVED, inside.PROGRAM)
    reported_at = (before + wall()) / 2
    facts = msgspec.json.decode(report, type=inside.Facts)
    return inside.judged(facts, launch.asked or reported_at, reported_at, fleet.hard_end)


async def _driver(fleet: CanaryFleet, launch: WatchedLaunch) -> CheckOutcome:
    listed = await fleet.door.run(launch.instance, "nvidia-smi -L")
    seconds = (launch.agent or wall()) - (launch.asked or wall())
    if not listed.startswith("GPU 0"):
        return CheckOutcome("GPU", "failed", "nvidia-smi lists none", seconds)
    return CheckOutcome("GPU", "passed", listed.partition("(")[0].strip(), seconds)
