"""EC2's answers before anything is rented: prices, GPUs of a type, quota, the owner."""

from __future__ import annotations

import asyncio
from pathlib import Path

from seerd.aws import identity, prices, quotas, types
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError
from seerd.backends.base import Quote
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import THE_SPEC, bundled, one_size, quote_of
from seerd.errors import CloudError, UsageError
from seerd.planner.clouds import INSTANCE_TYPES

SPOT_MARGIN = 1.2
"""The bid, in times of the present spot price, above which AWS takes instances back."""


def quote(keys: Ec2Keys, cache: Path) -> Quote:
    """Ask EC2 what would be rented; `cache`: a folder for prices. Raises `CloudError`, or
    `UsageError` for types without GPUs, or with different numbers of them.
    """

    async def ask() -> Quote:
        async with Cloud(keys.region) as cloud:
            owner, kinds = await asyncio.gather(
                identity.caller(cloud), types.describe(cloud, keys.types)
            )
            without = ", ".join(kind.name for kind in kinds if kind.gpus == 0)
            if without:
                raise UsageError(f"cluster.instance_type: {without} has no GPUs")
            gpus = one_size({kind.name: kind.gpus for kind in kinds})
            threads = max(1, min(kind.vcpus for kind in kinds) // gpus)
            price, source = await _price(keys, cloud, cache)
            return quote_of(keys, gpus, price, source, threads=threads, owner=owner)

    return asyncio.run(ask())


def quota(keys: Ec2Keys, peak: int) -> quotas.Quota:
    """Ask whether the account may have `peak` instances at a time."""

    async def ask() -> quotas.Quota:
        async with Cloud(keys.region) as cloud:
            kinds = await types.describe(cloud, keys.types)
            return await quotas.check_all(cloud, kinds, keys.market, peak)

    return asyncio.run(ask())


async def price_of(keys: Ec2Keys, kind: str, cloud: Cloud, cache: Path) -> prices.Price:
    """Ask for the price of this instance type in the spec's market. Raises `AwsError`."""
    if keys.market == "spot":
        return await prices.spot(cloud, kind)
    return await prices.on_demand(cloud, kind, cache)


async def _price(keys: Ec2Keys, cloud: Cloud, cache: Path) -> tuple[float, str]:
    """Return USD for an hour of the dearest type, and the source. Raises `CloudError`."""
    if keys.price:
        return keys.price, THE_SPEC
    asked = (price_of(keys, kind, cloud, cache) for kind in keys.types)
    try:
        known = await asyncio.gather(*asked)
    except AwsError as error:
        if any(kind not in INSTANCE_TYPES for kind in keys.types):
            raise CloudError(
                f'{error}\nSay what an hour costs: price = "$3.912" in [cluster].'
            ) from error
        _, price, source = bundled(keys)
        return price, f"{source}; AWS did not tell: {error}"
    dearest = max(known, key=lambda price: price.usd_per_h)
    if keys.market == "spot":
        more = f"above {SPOT_MARGIN - 1:.0%} more it is given up"
        return dearest.usd_per_h * SPOT_MARGIN, f"spot costs {dearest} now; {more}"
    return dearest.usd_per_h, str(dearest)
