"""What EC2 offers for the keys of a spec: quote, bundled facts, settings of launches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from seerd.backends.base import MachineType, Quote
from seerd.backends.ec2.keys import Ec2Keys
from seerd.errors import UsageError
from seerd.planner.clouds import (
    INSTANCE_TYPES,
    ORPHAN_SPARE_S,
    PRICES_AS_OF,
    RENTED_TERMINATE_S,
    UNPRICED_GPUS,
)
from seerd.planner.model import ClusterFacts
from seerd.units import count, format_duration

if TYPE_CHECKING:
    from seerd.aws.types import Ec2Type
    from seerd.backends.ec2.request import Ec2Settings
    from seerd.spec.spec import Spec


PRICES_S = 60.0
"""Between two looks at spot prices, seconds; three times that if a look fails."""
THE_SPEC = "the spec says so"  # the source of a price that the user has given


PLACEHOLDER = re.compile(r"YOUR-|^sg-0123456789abcdef0$")
"""What the examples and pages have in the place of names of the user's own."""


def check_filled_in(spec: Spec, keys: Ec2Keys) -> None:
    """Check that no name is still an example's. Raises `UsageError`."""
    named = [("cluster.store", keys.store or ""), ("cluster.image", keys.image)]
    named += [("cluster.key", keys.key or "")]
    named += [("cluster.subnets", subnet) for subnet in keys.subnets]
    named += [("cluster.security_groups", group) for group in keys.security_groups]
    named += [("train.data", item.source) for item in spec.train.data]
    wrong = [f'{key} = "{value}"' for key, value in named if PLACEHOLDER.search(value)]
    if wrong:
        be = "is an example's name" if len(wrong) == 1 else "are an example's names"
        raise UsageError(f"{', '.join(wrong)} {be}: put your own there")


def quote_of(
    keys: Ec2Keys,
    types: Sequence[MachineType],
    source: str,
    *,
    threads: int = 0,
    owner: str = "",
) -> Quote:
    """Return the quote for instances of these types, at prices that `source` gives."""
    facts = ClusterFacts(
        billing="rented",
        gpus_per_instance=types[0].gpus,
        terminate_s=RENTED_TERMINATE_S,
        orphan_s=keys.boot_s + ORPHAN_SPARE_S,
        hints_move=keys.on_rebalance == "move",
        price_lag_s=3 * PRICES_S if any(kind.most_usd_per_h for kind in types) else 0.0,
        wait_s=keys.wait,
        keep_s=keys.keep or 0.0,
    )
    quote = Quote(facts, threads, owner=owner).of_types(types)
    most = "at most" if len(types) > 1 else "at"
    usd_per_h = max(kind.usd_per_h for kind in types)
    note = f"{' or '.join(kind.name for kind in types)} {most} ${usd_per_h:.4g} an hour ({source})"
    if quote.facts.other_sizes:
        names = " or ".join(f"{kind.name} ({count(kind.gpus, 'GPU')})" for kind in types)
        note = f"{names}: planned as {types[0].name}, each GPU at ${quote.facts.usd_per_gpu_h:.4g} "
        note += f"an hour, as the dearest ({source})"
    if keys.keep:
        dearest = max(max(kind.usd_per_h, kind.most_usd_per_h) for kind in types)
        most_gpus = max(kind.gpus for kind in types)
        return replace(quote, notes=(note, kept_note(keys.keep, most_gpus, dearest)))
    return replace(quote, notes=(note,))


def kept_note(keep_s: float, gpus: int, usd_per_h: float) -> str:
    """Return what keeping an instance costs at most, for people."""
    hours = keep_s / 3600
    return (
        f"instances that the run has at its end are kept for {format_duration(keep_s)} for the "
        f"next run: at most ${usd_per_h * hours:.4g} and {gpus * hours * 60:.4g} GPU-min for each, "
        "set aside from what the limits then have left"
    )


def place_of(owner: str, region: str, subnet: str) -> str:
    """Return the place of an instance as a file's name. `owner`: the ARN of who rents it; `subnet`
    is empty for those of the default network.
    """
    account = (owner.split(":") + [""] * 5)[4]
    return "-".join(part or "default" for part in (account, region, subnet))


def bundled(keys: Ec2Keys) -> tuple[list[MachineType], str]:
    """Return the types, preferred first, and the source of their prices, without asking AWS."""
    known = {name: kind.gpus for name, kind in INSTANCE_TYPES.items()} | dict(UNPRICED_GPUS)
    unknown = [name for name in keys.types if name not in known]
    if unknown and keys.gpus is None:
        raise UsageError(
            f"seerd does not know the GPUs of {', '.join(unknown)}. Say how many an instance has "
            'and what an hour costs: gpus = 1 and price = "$4" in [cluster]; `seerd doctor` and '
            "`seerd run` ask AWS"
        )
    gpus = {name: known.get(name, keys.gpus or 0) for name in keys.types}
    check_gpus(keys, gpus)
    if keys.price:
        return [MachineType(name, gpus[name], keys.price) for name in keys.types], THE_SPEC
    unpriced = [name for name in keys.types if name not in INSTANCE_TYPES]
    if unpriced:
        raise UsageError(
            f"seerd brought no price of {', '.join(unpriced)} along. Say what an hour costs: "
            'price = "$4" in [cluster]; `seerd doctor` asks AWS for it'
        )
    source = f"on-demand prices of us-east-1 that seerd brought along, as of {PRICES_AS_OF}"
    prices = ((name, INSTANCE_TYPES[name].usd_per_h) for name in keys.types)
    return [MachineType(name, gpus[name], usd) for name, usd in prices], source


def check_gpus(keys: Ec2Keys, gpus: Mapping[str, int]) -> None:
    """Check the GPUs of the types. Raises `UsageError` if `cluster.gpus` says otherwise."""
    if keys.gpus is not None and {*gpus.values()} != {keys.gpus}:
        sizes = ", ".join(f"{name} {has}" for name, has in gpus.items())
        raise UsageError(f"cluster.gpus = {keys.gpus} is not so: {sizes}")


def check_scratch(keys: Ec2Keys, kinds: Sequence[Ec2Type]) -> None:
    """Check that all types have an instance store, if it is waited for. Raises `UsageError`."""
    without = ", ".join(kind.name for kind in kinds if not kind.storage_gb)
    if keys.scratch and without:
        why = f"no instance store, so nothing would ever be mounted at {keys.scratch}"
        raise UsageError(f"cluster.scratch: {without} has {why}: leave it out, or name other types")


def settings_of(wanted: Ec2Keys, **own: Any) -> Ec2Settings:
    """Return the settings of a run's instances, without a bid. Fields that the spec has too are
    taken from it, unless they are in `own`, which gives all others (`keys`: the folder of the run's
    key pairs).
    """
    from seerd.backends.ec2.request import Ec2Settings

    names = {field.name for field in fields(Ec2Settings)}
    of_spec = {key.name: getattr(wanted, key.name) for key in fields(wanted) if key.name in names}
    of_spec |= {"instance_types": wanted.types, "boot_s": wanted.boot_s}
    of_spec |= {"market": wanted.market[0], "falls_back": wanted.falls_back}
    of_spec |= {"keep_s": wanted.keep or 0.0}
    return Ec2Settings(**{**of_spec, **own})
