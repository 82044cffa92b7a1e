"""The way of a canary: all checks, on three small instances and, if that is wanted, on one with a
GPU.

The one rule: a check that goes wrong is an outcome, and keeps no other from being made; only then
everything is given back (`fleet.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError
from seerd.aws.policy import policy
from seerd.backends.backend import PYTHON
from seerd.backends.ec2.doctor import needs_of
from seerd.clock import wall
from seerd.commands import doctor
from seerd.commands.canary import endings, inside, refusals, storage, terminals
from seerd.commands.canary.endings import Post
from seerd.commands.canary.fleet import (
    GPU,
    LEASE,
    PROVED,
    REBOOT,
    SMALL,
    CanaryFleet,
    CanaryPlan,
    given_back,
    python_of,
    tell_refusal,
    why_of,
)
from seerd.commands.canary.launching import Watched
from seerd.commands.canary.outcome import (
    GPU_WORK_S,
    LONGEST_GPU_S,
    LONGEST_S,
    WORK_S,
    CheckOutcome,
    LaunchMoments,
    OutcomeLog,
    timeline,
)
from seerd.commands.giving_back import to_its_end
from seerd.errors import InterruptedCanaryError, ProviderError, SeerdError

TORCH = "import torch; print(torch.cuda.is_available())"


@dataclass(slots=True)
class CanaryResult:
    """What a canary came back with."""

    outcomes: list[CheckOutcome]  # results of all checks, in their order
    # the moments of each instance, with its type
    launches: list[tuple[str, LaunchMoments]] = field(default_factory=list)
    release: list[float] = field(default_factory=list)  # seconds until EC2 had taken an end
    torch_s: float | None = None  # seconds of the first import of torch; None: it was not tried
    usd: float = 0.0  # about how many USD the instances cost


async def fly(plan: CanaryPlan, log: OutcomeLog, folder: Path) -> CanaryResult:
    """Make all checks. Failures are outcomes.

    Raises `CloudError` if nothing can be rented at all, and `InterruptedCanaryError` when it was
    cancelled; both only after everything was given back.
    """
    begun = wall()
    small = CanaryFleet(plan, plan.small, SMALL, begun + LONGEST_S, folder / "small")
    fleets = [small]
    if plan.gpu is not None:
        fleets.append(CanaryFleet(plan, plan.gpu, (GPU,), begun + LONGEST_GPU_S, folder / "gpu"))
    why, interrupted = "the canary was over before", False
    result = CanaryResult([])
    try:
        for one in fleets:
            await one.provider.open()
        async with asyncio.timeout(WORK_S):
            work = _all(
                _tried(log, _doctor(plan), "doctor"),
                _tried(log, _printed_policy(plan), "printed policy"),
                _small(plan, small, log, folder),
                *(_with_gpu(plan, one, log, result) for one in fleets[1:]),
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
        raise InterruptedCanaryError(f"interrupted; {left}")
    result.outcomes = log.complete(gpu=plan.gpu is not None, why=why)
    result.release = [one.seconds for one in result.outcomes if _is_release(one) and one.seconds]
    for one in fleets:
        result.launches += [(one.rental.type, w.moments) for w in one.cloud.launches.values()]
        result.usd += one.usd()
    return result


def _is_release(outcome: CheckOutcome) -> bool:
    return outcome.check == "termination" and outcome.result == "passed"


async def _all(*works: Awaitable[None]) -> None:
    """Do all of it side by side; the first exception ends the rest."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:  # unlike `gather`, `wait` does not cancel what is cancelled below, and may be tidying up
        for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))[0]:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unless_locked_out(
    work: Awaitable[None], fleets: Sequence[CanaryFleet], log: OutcomeLog
) -> AwsError | None:
    """Do the work; but if AWS takes the credentials no more, end it and return why: nothing can
    come of it, and instances may be left.
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


# ------------------------------------------------------------ the checks


async def _doctor(plan: CanaryPlan) -> list[CheckOutcome]:
    began, changes = time.monotonic(), plan.asked.overrides()
    findings = await asyncio.to_thread(doctor.examine, plan.asked.path, changes, plan.home)
    problems = [f"{one.check}: {one.found}" for one in findings if one.level == "problem"]
    if problems:
        return [CheckOutcome("doctor", "failed", "; ".join(problems))]
    said = f"{len(findings)} checks, no problem"
    return [CheckOutcome("doctor", "passed", said, time.monotonic() - began)]


async def _printed_policy(plan: CanaryPlan) -> list[CheckOutcome]:
    document = policy(await needs_of(plan.spec, plan.cluster))
    changes = [word for one in plan.asked.set_ or [] for word in ("--set", one)]
    home = ["--home", str(plan.home.path)]
    words = ["doctor", str(plan.asked.path), *changes, *home, "--json"]
    async with Cloud(plan.cluster.region) as cloud:
        return [await terminals.printed_policy(cloud, plan.arn, document, words)]


async def _small(plan: CanaryPlan, fleet: CanaryFleet, log: OutcomeLog, folder: Path) -> None:
    await _all(
        _proved(plan, fleet, log, folder),
        _ended(fleet, log, LEASE, endings.lease),
        _ended(fleet, log, REBOOT, endings.reboot),
    )


async def _ended(
    fleet: CanaryFleet,
    log: OutcomeLog,
    token: str,
    ending: Callable[[Post, Watched], Awaitable[CheckOutcome]],
) -> None:
    with _failing(log, token):
        log.add(await ending(fleet.post, await fleet.launch(token)))


async def _proved(plan: CanaryPlan, fleet: CanaryFleet, log: OutcomeLog, folder: Path) -> None:
    """Launch an instance, look at everything, and end it."""
    watched = fleet.cloud.launch(PROVED)
    trouble = ""
    try:
        await fleet.launch(PROVED)
    except Exception as error:  # noqa: BLE001
        trouble = why_of(error)
    log.add(*timeline(watched.moments, trouble))
    if trouble:
        return
    home = folder / "elsewhere"
    home.mkdir()
    sweep = terminals.sweep(fleet.cloud, watched.instance, str(home))
    await _tried(log, _token_again(fleet, watched), "one token, one instance")
    await _tried(log, _inside(fleet, watched), *inside.CHECKED)
    await _all(
        _tried(log, _stored(plan, fleet, watched, folder), *storage.CHECKED),
        _tried(log, refusals.look(fleet.cloud, watched.request), *refusals.ABOUT),
        _tried(log, _one(sweep), "sweep"),
    )
    ended = endings.termination(fleet.post, PROVED, watched)
    await _tried(log, ended, "termination", "shutting-down")


async def _one(work: Awaitable[CheckOutcome]) -> list[CheckOutcome]:
    return [await work]


async def _tried(log: OutcomeLog, work: Awaitable[list[CheckOutcome]], *checks: str) -> None:
    """Write down what comes of this work; if it fails, that these checks could not be made."""
    with _failing(log, *checks):
        log.add(*await work)


@contextlib.contextmanager
def _failing(log: OutcomeLog, *checks: str) -> Iterator[None]:
    """Write down for these checks what goes wrong here. Mistakes of seerd are outcomes, too: what
    was paid for is reported.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001
        log.add(*(CheckOutcome(check, "failed", why_of(error)) for check in checks))


async def _token_again(fleet: CanaryFleet, watched: Watched) -> list[CheckOutcome]:
    """Send the same request again. Raises `AwsError`."""
    check = "one token, one instance"
    again = await fleet.cloud.ask("ec2", "run_instances", **watched.request)
    given = {row["InstanceId"] for row in again["Instances"]}
    if given != {watched.instance}:
        return [CheckOutcome(check, "failed", "EC2 has given another instance for the same token")]
    return [CheckOutcome(check, "passed", "asked twice, EC2 has given one")]


async def _inside(fleet: CanaryFleet, watched: Watched) -> list[CheckOutcome]:
    before = wall()
    told = await fleet.door.run(watched.instance, f"{PYTHON} -I -", inside.PROGRAM)
    told_at = (before + wall()) / 2
    facts = msgspec.json.decode(told, type=inside.Facts)
    return inside.judged(facts, inside.ExpectedFacts(watched.moments, told_at, fleet.hard_end))


async def _stored(
    plan: CanaryPlan, fleet: CanaryFleet, watched: Watched, folder: Path
) -> list[CheckOutcome]:
    async def run(program: str) -> str:
        command = f"{PYTHON} -I -"
        return await fleet.door.run(watched.instance, command, program, for_s=120.0)

    fleet.shelf = shelf = storage.Shelf(
        address=plan.cluster.store or "",
        run=fleet.run,
        region=fleet.cloud.region,
        until=fleet.hard_end,
        zip=fleet.zip,
        folder=folder,
    )
    outcomes = await storage.look(shelf, run)
    fleet.shelf = None
    return outcomes


async def _with_gpu(
    plan: CanaryPlan, fleet: CanaryFleet, log: OutcomeLog, result: CanaryResult
) -> None:
    """Launch the instance with a GPU, import torch there twice, and end it, all in time."""
    try:
        async with asyncio.timeout(GPU_WORK_S):
            await _torch(plan, fleet, log, result)
    except TimeoutError:
        said = "the five minutes of this instance were over before"
        log.add(*(CheckOutcome(check, "unknown", said) for check in ("GPU", *_IMPORTS)))
    # Whether it is left is found out in the end, whatever is refused here, or cancels this: all is
    # given back then. How long it takes to be gone is told in the launches of the report.
    watched = fleet.cloud.launch(GPU)
    if watched.instance:
        with contextlib.suppress(SeerdError):
            await endings.termination(fleet.post, GPU, watched)


_IMPORTS = ("torch, cold", "torch, warm")


async def _torch(
    plan: CanaryPlan, fleet: CanaryFleet, log: OutcomeLog, result: CanaryResult
) -> None:
    with _failing(log, "GPU"):
        log.add(await _driver(fleet, await fleet.launch(GPU)))
    for check in _IMPORTS:
        if log.outcomes["GPU"].result == "passed":
            with _failing(log, check):
                log.add(await _imported(plan, fleet, check, result))


async def _driver(fleet: CanaryFleet, watched: Watched) -> CheckOutcome:
    listed = await fleet.door.run(watched.instance, "nvidia-smi -L")
    moments = watched.moments
    seconds = (moments.agent or wall()) - (moments.asked or wall())
    if not listed.startswith("GPU 0"):
        return CheckOutcome("GPU", "failed", "nvidia-smi lists none", seconds)
    return CheckOutcome("GPU", "passed", listed.partition("(")[0].strip(), seconds)


async def _imported(
    plan: CanaryPlan, fleet: CanaryFleet, check: str, result: CanaryResult
) -> CheckOutcome:
    command = f"{shlex.join(shlex.split(python_of(plan.spec)))} -c {shlex.quote(TORCH)}"
    instance, began = fleet.cloud.launch(GPU).instance, time.monotonic()
    try:
        has_gpu = await fleet.door.run(instance, command, for_s=GPU_WORK_S)
    except ProviderError as error:
        raise ProviderError(f"torch cannot be imported with the spec's python: {error}") from error
    took_s = time.monotonic() - began
    result.torch_s = result.torch_s if result.torch_s is not None else took_s
    if "True" in has_gpu:
        return CheckOutcome(check, "passed", "it has the GPU", took_s)
    return CheckOutcome(check, "failed", "it was imported, and has no GPU", took_s)
