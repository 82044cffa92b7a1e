"""Giving back: at once, whatever else is going on, and in few calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from seerd.backends.ec2.provider import Ec2Provider
from tests.aws.front import Fault, Front, Params, front
from tests.aws.kit import Door, holds, settings

Scenario = Callable[[Front, Ec2Provider, list[str]], Awaitable[None]]


def play(moto: str, folder: Path, count: int, scenario: Scenario) -> None:
    """A scenario with so many instances."""

    async def run() -> None:
        async with front(moto) as there:
            provider = Ec2Provider(settings(there, folder), Door())  # type: ignore[arg-type]
            try:
                await provider.open()
                tokens = [f"{n}.0" for n in range(count)]
                launched = await asyncio.gather(*map(provider.launch, tokens))
                await scenario(there, provider, [one.instance for one in launched])
            finally:
                await provider.close()

    asyncio.run(run())


def named(params: Params) -> set[str]:
    return {value for key, value in params.items() if key.startswith("InstanceId.")}


def endings(there: Front) -> list[set[str]]:
    """Which instances each call was to end."""
    return [named(params) for action, params in there.calls if action == "TerminateInstances"]


def test_what_is_ended_at_one_moment_is_ended_by_one_call_whatever_becomes_of_launches(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, known: list[str]) -> None:
        there.fault = lambda action, params: (
            Fault("RequestLimitExceeded") if action == "RunInstances" else None
        )
        asked = there.count()["RunInstances"]
        launches = [asyncio.create_task(provider.launch(f"{n}.1")) for n in range(20)]
        await holds(lambda: there.count()["RunInstances"] >= asked + 3)
        began = time.monotonic()
        spans = await asyncio.gather(*map(provider.terminate, known))
        assert time.monotonic() - began < 5.0, "a launch that is throttled waits for longer"
        assert endings(there) == [set(known)]
        assert all(span.since is not None and span.until is not None for span in spans)
        assert there.alive() == set()
        for launch in launches:
            launch.cancel()
        await asyncio.gather(*launches, return_exceptions=True)

    play(moto, tmp_path, 10, scenario)


def test_what_was_refused_together_is_asked_for_together_again(moto: str, tmp_path: Path) -> None:
    async def scenario(there: Front, provider: Ec2Provider, known: list[str]) -> None:
        left = [Fault("RequestLimitExceeded"), Fault("InternalError"), Fault("")]
        there.fault = lambda action, params: (
            left.pop(0) if left and action == "TerminateInstances" else None
        )
        await asyncio.gather(*map(provider.terminate, known))
        assert endings(there) == [set(known)] * 4
        assert there.alive() == set()

    play(moto, tmp_path, 5, scenario)


def test_an_instance_that_cannot_be_ended_keeps_no_other_from_its_end(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, known: list[str]) -> None:
        stuck, *others = known
        protected = [True]
        there.fault = lambda action, params: (
            Fault("OperationNotPermitted")
            if action == "TerminateInstances" and protected[0] and stuck in named(params)
            else None
        )
        endless = asyncio.create_task(provider.terminate(stuck))
        await asyncio.gather(*map(provider.terminate, others))
        assert there.alive() == {stuck}
        assert not endless.done()
        assert endings(there)[0] == set(known)
        assert all(len(one) == 1 for one in endings(there)[1:])
        protected[0] = False
        await endless
        assert there.alive() == set()

    play(moto, tmp_path, 4, scenario)
