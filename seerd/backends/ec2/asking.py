"""EC2's answers before anything is rented: prices, GPUs of a type, quota, the owner."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from seerd.aws import identity, prices, quotas, reservations, types
from seerd.aws.cloud import Cloud
from seerd.aws.credentials import SSO, Lifetime
from seerd.aws.errors import AwsError
from seerd.aws.reservations import Reservation
from seerd.backends.backend import MARGIN_S
from seerd.backends.base import MachineType, Quote
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import (
    THE_SPEC,
    bundled,
    check_gpus,
    check_scratch,
    place_of,
    quote_of,
)
from seerd.errors import UsageError
from seerd.planner.clouds import INSTANCE_TYPES
from seerd.units import format_duration

SPOT_MARGIN = 1.2
"""The bid, in times of the present spot price, where nobody knows the on-demand price."""


async def quote(keys: Ec2Keys) -> Quote:
    """Ask EC2 what would be rented. Raises `CloudError`, or `UsageError` for types without GPUs."""
    async with Cloud(keys.region) as cloud:
        bought = await reservations.reservation(cloud, keys.capacity) if keys.capacity else None
        if bought is not None:
            if keys.types and bought.type not in keys.types:
                raise UsageError(
                    f"cluster.capacity: {bought.id} has instances of type {bought.type}, and "
                    f"cluster.instance_type is {', '.join(keys.types)}: leave that out"
                )
            keys = replace(keys, instance_type=(bought.type,))
        owner, kinds = await asyncio.gather(
            identity.caller(cloud), types.describe(cloud, keys.types)
        )
        without = ", ".join(kind.name for kind in kinds if kind.gpus == 0)
        if without:
            raise UsageError(f"cluster.instance_type: {without} has no GPUs")
        gpus = {kind.name: kind.gpus for kind in kinds}
        check_gpus(keys, gpus)
        check_scratch(keys, kinds)
        threads = max(1, min(kind.vcpus // kind.gpus for kind in kinds))
        region = cloud.region
        free = AskedPrice(dict.fromkeys(keys.types, 0.0), "")
        price = free if bought is not None else await price_of(keys, cloud)
    source = price.source + (f"; AWS did not tell: {price.error}" if price.error else "")
    if bought is not None:
        offer = quote_of(
            keys, price.types(gpus), f"bought: {bought.id}", threads=threads, owner=owner
        )
        return replace(offer, facts=replace(offer.facts, max_instances=bought.total))
    offer = quote_of(keys, price.types(gpus), source, threads=threads, owner=owner)
    offer = replace(offer, bid=price.bid)
    sizes_vary = bool(offer.facts.other_sizes)
    if len(set(price.prices.values())) > 1 or keys.falls_back or sizes_vary:
        offer = replace(offer, prices=price.prices)
    if not keys.scout:
        return offer
    subnets = keys.subnets or ("",)
    return replace(offer, places=tuple(place_of(owner, region, subnet) for subnet in subnets))


async def doubts(keys: Ec2Keys, for_s: float) -> list[str]:
    """Return what may end a run of `for_s` seconds early. Raises `AwsError` without credentials,
    and `UsageError` if what was bought ends earlier.
    """
    async with Cloud(keys.region) as cloud:
        lifetime = await cloud.lifetime()
        bought = await reservations.reservation(cloud, keys.capacity) if keys.capacity else None
    if bought is not None:
        must_outlast(bought, for_s)
    ends, todo = outlasts(lifetime, for_s, time.time())
    return [f"the credentials from {lifetime.source} {ends}; {todo}"] if todo else []


def must_outlast(bought: Reservation, for_s: float) -> None:
    """Raise `UsageError` if what was bought ends within `for_s` seconds."""
    if bought.ends is not None and bought.ends < time.time() + for_s:
        left = format_duration(max(0, math.floor(bought.ends - time.time() - MARGIN_S)))
        early = ", 30 min before the block's end" if bought.block else ""
        raise UsageError(
            f"cluster.capacity: the instances of {bought.id} end in {left}{early}: give a "
            "--deadline of at most that"
        )


def outlasts(lifetime: Lifetime, for_s: float, now: float) -> tuple[str, str]:
    """Return when credentials end, and what to do if they may end within `for_s` seconds of `now`
    (wall clock, seconds since 1970). Empty if they do not end, or are renewed by themselves.
    """
    if lifetime.ends_at is None:
        if lifetime.renewed or not lifetime.temporary:
            return "", ""
        ends = "are temporary, do not say when they end, and nothing renews them"
    else:
        left_s = max(0, round(lifetime.ends_at - now))
        if lifetime.renewed and lifetime.source != SSO:
            return "", ""
        ends = f"end in {format_duration(left_s)}"
        if left_s >= for_s:
            return ends, ""
    todo = f"a run takes up to {format_duration(for_s)}: log in again first, or use a role"
    if lifetime.source == "env":
        todo += "; a run that goes on cannot see a new environment, but new files (AWS_PROFILE)"
    return ends, todo


async def quota(keys: Ec2Keys, peak: int) -> quotas.Quota:
    """Ask whether the account may have `peak` instances at a time."""
    async with Cloud(keys.region) as cloud:
        kinds = await types.describe(cloud, keys.types)
        asked = [await quotas.check_all(cloud, kinds, market, peak) for market in keys.market]
    return next((quota for quota in asked if quota.enough is not False), asked[-1])


@dataclass(frozen=True, slots=True)
class AskedPrice:
    """What an hour of each type costs, in USD."""

    now: Mapping[str, float]  # of an instance as it is asked for first
    source: str  # who says so, for people
    prices: Mapping[str, float] = field(default_factory=dict)  # on demand; none: as `now`
    error: AwsError | None = None  # why AWS does not say so; None: it does, or was not asked
    most: Mapping[str, float] = field(default_factory=dict)  # for spot; none: prices do not change
    bid: float | None = None  # what is bid for spot; None: AWS's default, the on-demand price

    @property
    def usd(self) -> float:
        """The price of the dearest type."""
        return max(self.now.values())

    def types(self, gpus: Mapping[str, int]) -> list[MachineType]:
        """Return the types of which the GPUs are given, preferred first."""
        return [
            MachineType(kind, gpus[kind], usd, self.most.get(kind, 0.0))
            for kind, usd in self.now.items()
            if kind in gpus
        ]


async def price_of(keys: Ec2Keys, cloud: Cloud) -> AskedPrice:
    """Return the spec's price, else AWS's, else that of the bundled table. Raises `AwsError` if
    none of them has it.
    """
    if keys.is_spot:
        return await _spot_price(keys, cloud)
    if keys.price:
        same = dict.fromkeys(keys.types, keys.price)
        return AskedPrice(same, THE_SPEC, same)
    try:
        known = await asyncio.gather(*(prices.on_demand(cloud, kind) for kind in keys.types))
    except AwsError as error:
        return _brought_along(keys, error)
    dearest = max(known, key=lambda price: price.usd_per_h)
    by_type = {kind: price.usd_per_h for kind, price in zip(keys.types, known, strict=True)}
    return AskedPrice(by_type, str(dearest), by_type)


def _brought_along(keys: Ec2Keys, error: AwsError) -> AskedPrice:
    """Return the bundled price where AWS gives none. Raises `AwsError` if there is none."""
    if any(kind not in INSTANCE_TYPES for kind in keys.types):
        advice = 'Say what an hour costs: price = "$3.912" in [cluster].'
        why = f"{error}\n{advice}"
        raise AwsError(why, error.kind, error.code, error.said, error.status) from error
    types_, source = bundled(keys)
    by_type = {kind.name: kind.usd_per_h for kind in types_}
    return AskedPrice(by_type, source, by_type, error)


async def _spot_price(keys: Ec2Keys, cloud: Cloud) -> AskedPrice:
    """Return the present spot price of the dearest type. What is bid is `price` if the spec has it,
    else the on-demand price, as AWS advises; where nobody knows that, `SPOT_MARGIN` more than now.
    """
    if keys.price:
        same = dict.fromkeys(keys.types, keys.price)
        given = AskedPrice(same, THE_SPEC, most=same, bid=keys.price)
        if not keys.falls_back:
            return given
        listed = await price_of(replace(keys, market=("on-demand",), price=None), cloud)
        most = {kind: max(keys.price, usd) for kind, usd in listed.now.items()}
        return replace(given, prices=listed.prices, most=most)
    try:
        known = await asyncio.gather(*(prices.spot(cloud, kind) for kind in keys.types))
    except AwsError as error:
        listed = _brought_along(keys, error)
        kept = listed.prices if keys.falls_back else {}
        return replace(listed, prices=kept, most=listed.now)
    now = {kind: price.usd_per_h for kind, price in zip(keys.types, known, strict=True)}
    dearest = max(known, key=lambda price: price.usd_per_h)
    bid, most = None, dict.fromkeys(keys.types, dearest.usd_per_h * SPOT_MARGIN)
    kept = {}
    try:
        listed = await price_of(replace(keys, market=("on-demand",)), cloud)
        most = dict(listed.now)
        kept = listed.prices if keys.falls_back else {}
    except AwsError:
        if keys.falls_back:
            raise
        bid = max(most.values())
    source = f"spot costs {dearest} now; up to ${max(most.values()):.4g} is bid"
    source += ", and paid on demand where spot has none" if keys.falls_back else ""
    return AskedPrice(now, source, kept, most=most, bid=bid)
