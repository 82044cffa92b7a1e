"""Many instances at once, from an account whose calls are counted as EC2 counts them
(bench/testbed/rig/buckets.py). `make rig` has twice as many, and enough of them, too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.testbed.rig.buckets import Buckets
from seerd.backends.base import Launched
from seerd.backends.ec2.provider import Ec2Provider
from seerd.errors import LaunchError
from tests.aws.front import Fault, Front, Params, front
from tests.aws.kit import Door, settings

LONG = bool(os.environ.get("SEERD_RIG_LONG"))
WANTED, WITHIN_S = 60 if LONG else 30, 60.0


def zones_of(there: Front) -> list[str]:
    """The default subnets, in the order in which they are asked."""
    rows = there.client("ec2").describe_subnets()["Subnets"]
    return [row["SubnetId"] for row in sorted(rows, key=lambda row: row["AvailabilityZone"])]


def dry(there: Front, room: dict[str, int]) -> Callable[[str, Params], Fault | None]:
    """So many instances are to be had in each subnet; what was given is given again."""
    left = dict(room)

    def judge(action: str, params: Params) -> Fault | None:
        if action != "RunInstances" or params["ClientToken"] in there.answers:
            return None
        subnet = params["NetworkInterface.1.SubnetId"]
        left[subnet] = left.get(subnet, 0) - 1
        return Fault("InsufficientInstanceCapacity") if left[subnet] < 0 else None

    return judge


@pytest.mark.timeout(240)
@pytest.mark.parametrize("there_are", [WANTED, 50] if LONG else [25])
def test_all_that_is_to_be_had_is_had_within_a_minute_and_without_a_storm(
    moto: str, tmp_path: Path, there_are: int
) -> None:
    """Of six zones five are dry, and the last has enough, or not quite."""

    async def scenario() -> None:
        async with front(moto) as there:
            zones = zones_of(there)
            assert len(zones) == 6
            there.pending_s, there.buckets = 1.0, Buckets()
            there.fault = dry(there, {zones[-1]: there_are})
            made = settings(there, tmp_path, instance_types=("g4dn.12xlarge",))
            provider = Ec2Provider(made, Door())  # type: ignore[arg-type]
            await provider.open()
            began = time.monotonic()
            answers = await asyncio.gather(
                *(provider.launch(f"{n}.0") for n in range(WANTED)), return_exceptions=True
            )
            took_s = time.monotonic() - began
            had = [answer for answer in answers if isinstance(answer, Launched)]
            refused = [answer for answer in answers if isinstance(answer, LaunchError)]
            calls = there.count()
            asked = Counter(
                params["NetworkInterface.1.SubnetId"]
                for action, params in there.calls
                if action == "RunInstances"
            )
            print(
                f"{len(had)} instances in {took_s:.0f} s: {dict(calls)}, throttled {there.buckets.throttled}"
            )
            print(f"asked in each zone: {[asked[zone] for zone in zones]}")
            assert len(had) == len({one.instance for one in had}) == there_are
            assert len(refused) == WANTED - there_are
            assert all(error.retry and error.since is None for error in refused)
            assert took_s < WITHIN_S
            # Where this machine has too much to do, calls arrive in bursts.
            assert sum(there.buckets.throttled.values()) <= 3
            assert calls["RunInstances"] <= there_are + 6 * 5, "a dry zone is asked a few times"
            await provider.close()

    asyncio.run(scenario())
