"""What a cloud says before anything is rented: prices, GPUs of a type, quota, who asks.

The one rule: it is asked before the plan is made, and a plan that cannot be rented is refused before anything starts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from seerd.errors import CloudError, UsageError
from seerd.planner.clouds import INSTANCE_TYPES
from seerd.planner.stages import instances_for
from seerd.planning.facts import Lease, Offer, bundled_offer, check_sizes, types_of
from seerd.planning.plans import Planned
from seerd.shell.aws import owner, prices, quotas, types
from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AwsError
from seerd.shell.home import Home
from seerd.spec.spec import Spec

SPOT_MARGIN = 1.2
"""A spot price may rise so much before AWS takes the instances back: the bid, and what is counted with."""


def ask(spec: Spec, home: Home) -> Lease | None:
    """What would be rented for this spec; None where nothing is. Raises `CloudError`: credentials, region, permissions, unknown types."""
    if spec.cluster.provider != "ec2":
        return None
    return asyncio.run(_ask(spec, home.path / "prices"))


def check_quota(spec: Spec, lease: Lease | None, planned: Planned) -> None:
    """Raise `CloudError` if the account's quota is smaller than the plan's peak."""
    if lease is None:
        return
    size = planned.cluster.gpus_per_instance
    peak = max(instances_for(stage.groups, size) for stage in planned.outline.stages)
    quota = asyncio.run(_quota(spec, peak))
    if quota.enough is False:
        fits = f", or run with what it allows: --max-gpus {quota.instances * size}" if quota.instances else ""
        raise CloudError(f"nothing was started: {quota.text}{fits}")


async def _ask(spec: Spec, cache: Path) -> Lease:
    async with Cloud(spec.cluster.more.get("region")) as cloud:
        whose, kinds = await asyncio.gather(owner.caller(cloud), types.describe(cloud, types_of(spec)))
        without = [kind.name for kind in kinds if kind.gpus == 0]
        if without:
            raise UsageError(f"cluster.instance_type: {', '.join(without)} has no GPUs")
        check_sizes({kind.name: kind.gpus for kind in kinds})
        threads = max(1, min(kind.vcpus for kind in kinds) // kinds[0].gpus)
        price, source = await _price(spec, cloud, cache)
        return Lease(Offer(kinds[0].gpus, price, source), whose, threads)


async def _price(spec: Spec, cloud: Cloud, cache: Path) -> tuple[float, str]:
    """USD for an hour of the dearest type, and where that comes from."""
    if spec.cluster.more.get("price"):
        return spec.cluster.more["price"], "the spec says so"
    try:
        found = await asyncio.gather(*(_asked(spec, kind, cloud, cache) for kind in types_of(spec)))
    except AwsError as error:
        if any(kind not in INSTANCE_TYPES for kind in types_of(spec)):
            raise CloudError(f'{error}\nSay what an hour costs: price = "$3.912" in [cluster].') from error
        bundled = bundled_offer(spec)
        return bundled.usd_per_h, f"{bundled.source}; AWS did not tell: {error}"
    dearest = max(found, key=lambda price: price.usd_per_h)
    if _market(spec) == "spot":
        return (
            dearest.usd_per_h * SPOT_MARGIN,
            f"spot costs {dearest} now; above {SPOT_MARGIN - 1:.0%} more it is given up",
        )
    return dearest.usd_per_h, str(dearest)


async def _asked(spec: Spec, kind: str, cloud: Cloud, cache: Path) -> prices.Price:
    return await (prices.spot(cloud, kind) if _market(spec) == "spot" else prices.on_demand(cloud, kind, cache))


async def _quota(spec: Spec, peak: int) -> quotas.Quota:
    async with Cloud(spec.cluster.more.get("region")) as cloud:
        return await quotas.check_all(cloud, await types.describe(cloud, types_of(spec)), _market(spec), peak)


def _market(spec: Spec) -> Literal["on-demand", "spot"]:
    return "spot" if spec.cluster.more.get("market") == "spot" else "on-demand"
