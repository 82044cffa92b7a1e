"""The checks of what only some specs use: credentials that end, spot with on-demand behind it,
capacity that was bought, fast disks, the way to port 22. A check that a spec has no use for is
`untried`, and says which key would have it tried.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from seerd.aws import reservations
from seerd.aws.cloud import Cloud
from seerd.aws.identity import caller
from seerd.backends.backend import MARGIN_S
from seerd.backends.ec2.asking import outlasts
from seerd.backends.ec2.keys import Ec2Keys
from seerd.commands.canary.launching import CanaryFleet, CanaryPlan
from seerd.commands.canary.outcome import (
    CAPACITY,
    CREDENTIALS,
    DISKS,
    FALLBACK,
    GPU_PARTS,
    SCRATCH,
    WAY_IN,
    CheckOutcome,
    WatchedLaunch,
    failed,
    passed,
    unknown,
    untried,
)

USES: Mapping[str, tuple[Callable[[Ec2Keys], Any], str]] = {
    FALLBACK: (
        lambda keys: keys.falls_back and not keys.capacity,
        'cluster.market = ["spot", "on-demand"]',
    ),
    CAPACITY: (lambda keys: keys.capacity, "cluster.capacity"),
    DISKS: (lambda keys: keys.iops or keys.throughput, "cluster.iops or cluster.throughput"),
    SCRATCH: (lambda keys: keys.scratch, "cluster.scratch"),
}
"""By check: whether a spec uses what it is about, and the keys that would have it tried."""


def not_tried(keys: Ec2Keys, *, gpu: bool) -> list[CheckOutcome]:
    """Return an outcome for each check of what is not used, or what only `gpu` can try."""
    unused = [check for check, (uses, _) in USES.items() if not uses(keys)]
    by_gpu = [check for check in GPU_PARTS if not gpu and check not in unused]
    return [
        *(untried(check, f"the spec has no {USES[check][1]}") for check in unused),
        *(untried(check, "--gpu tries it") for check in by_gpu),
    ]


async def credentials(plan: CanaryPlan) -> list[CheckOutcome]:
    """Check that the credentials outlast a run of the spec, and that a session which is made anew,
    as after a refusal, has the same caller. Raises `AwsError`.
    """
    needed_s = (plan.spec.limits.deadline_s or 3600.0) + MARGIN_S
    async with Cloud(plan.cluster.region) as cloud:
        lifetime, again = await cloud.lifetime(), await caller(cloud)
    ends, todo = outlasts(lifetime, needed_s, time.time())
    renewed = "are renewed by themselves" if lifetime.renewed else "do not end"
    said = f"those from {lifetime.source} {ends or renewed}"
    if todo:
        return [failed(CREDENTIALS, f"{said}; {todo}")]
    if again != plan.owner:
        return [failed(CREDENTIALS, f"{said}; read anew, they are those of {again}")]
    return [passed(CREDENTIALS, f"{said}; read anew, they are the same caller's")]


async def capacity(plan: CanaryPlan) -> list[CheckOutcome]:
    """Check that what was bought has instances that nobody uses. Raises `AwsError`."""
    async with Cloud(plan.cluster.region) as cloud:
        bought = await reservations.reservation(cloud, plan.cluster.capacity or "")
    if bought.free or bought.begins is not None:
        return [passed(CAPACITY, bought.text)]
    return [failed(CAPACITY, f"{bought.text}: a run would wait until another one ends")]


def fell_back(launch: WatchedLaunch) -> CheckOutcome:
    """Judge a launch that has first bid for spot what no pool takes."""
    if "InstanceMarketOptions" in launch.request:
        return failed(FALLBACK, "EC2 has given a spot instance for a bid that is too low")
    seconds = (launch.answered or 0.0) - (launch.asked or 0.0)
    said = f"spot was refused ({launch.refused}), and on-demand was given in its place"
    return passed(FALLBACK, said, seconds)


def way_in(launch: WatchedLaunch, keys: Ec2Keys) -> CheckOutcome:
    """Report which way the login went."""
    straight = f"straight to the {keys.address} address"
    if launch.login is None:
        return unknown(WAY_IN, f"nobody was let in; tried {launch.way or straight}")
    return passed(WAY_IN, launch.way or straight)


async def disks(fleet: CanaryFleet, instance: str) -> CheckOutcome:
    """Check that an instance's disks are as fast as the spec asks. Raises `AwsError`."""
    filters = [{"Name": "attachment.instance-id", "Values": [instance]}]
    rows = (await fleet.cloud.ask("ec2", "describe_volumes", Filters=filters))["Volumes"]
    slowest = [min(row.get(key, 0) for row in rows) for key in ("Iops", "Throughput")]
    said = "{} IOPS and {} MiB/s".format(*slowest)
    wanted = [fleet.cluster.iops or 0, fleet.cluster.throughput or 0]
    if any(has < wants for has, wants in zip(slowest, wanted, strict=True)):
        return failed(DISKS, f"{said}, where {{}} and {{}} were asked for".format(*wanted))
    return passed(DISKS, said)


async def scratch(fleet: CanaryFleet, instance: str) -> CheckOutcome:
    """Check that an agent's home is on the instance store. Raises `ProviderError`."""
    at = fleet.cluster.scratch
    command = f"readlink ~/.seerd/{fleet.run}; df -BG --output=avail {at}"
    place, *_, free = (await fleet.door.run(instance, command)).split()
    if not place.startswith(f"{at}/"):
        return failed(SCRATCH, f"the agent's home is {place}")
    return passed(SCRATCH, f"the agent's home is on it, and {free} are free")


ON_GPU: Mapping[str, Callable[[CanaryFleet, str], Awaitable[CheckOutcome]]] = {
    DISKS: disks,
    SCRATCH: scratch,
}
"""The checks of the instance with a GPU, which is made as the spec asks."""
