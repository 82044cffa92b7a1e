"""What EC2 offers for the keys of a spec: quote, bundled facts, settings of launches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from seerd.backends.base import Quote
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
from seerd.units import format_duration

if TYPE_CHECKING:
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
    gpus: int,
    usd_per_h: float,
    source: str,
    *,
    most_usd_per_h: float = 0.0,
    threads: int = 0,
    owner: str = "",
) -> Quote:
    """Return the quote for instances of `gpus` GPUs at `usd_per_h`, that of the dearest type, which
    may rise to `most_usd_per_h` (0: never).
    """
    facts = ClusterFacts(
        billing="rented",
        gpus_per_instance=gpus,
        usd_per_gpu_h=usd_per_h / gpus,
        terminate_s=RENTED_TERMINATE_S,
        orphan_s=keys.boot_s + ORPHAN_SPARE_S,
        hints_move=keys.on_rebalance == "move",
        most_usd_per_gpu_h=most_usd_per_h / gpus,
        price_lag_s=3 * PRICES_S if most_usd_per_h else 0.0,
        wait_s=keys.wait,
        keep_s=keys.keep or 0.0,
    )
    most = "at most" if len(keys.types) > 1 else "at"
    note = f"{' or '.join(keys.types)} {most} ${usd_per_h:.4g} an hour ({source})"
    dearest = max(usd_per_h, most_usd_per_h)
    notes = (note, *([kept_note(keys.keep, gpus, dearest)] if keys.keep else []))
    return Quote(facts, threads, usd_per_h=dearest, owner=owner, notes=notes)


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


def bundled(keys: Ec2Keys) -> tuple[int, float, str]:
    """Return GPUs, USD an hour of the dearest type, and the source, without asking AWS."""
    known = {name: kind.gpus for name, kind in INSTANCE_TYPES.items()} | dict(UNPRICED_GPUS)
    unknown = [name for name in keys.types if name not in known]
    if unknown and keys.gpus is None:
        raise UsageError(
            f"seerd does not know the GPUs of {', '.join(unknown)}. Say how many an instance has "
            'and what an hour costs: gpus = 1 and price = "$4" in [cluster]; `seerd doctor` and '
            "`seerd run` ask AWS"
        )
    gpus = one_size(keys, {name: known.get(name, keys.gpus or 0) for name in keys.types})
    if keys.price:
        return gpus, keys.price, THE_SPEC
    unpriced = [name for name in keys.types if name not in INSTANCE_TYPES]
    if unpriced:
        raise UsageError(
            f"seerd brought no price of {', '.join(unpriced)} along. Say what an hour costs: "
            'price = "$4" in [cluster]; `seerd doctor` asks AWS for it'
        )
    source = f"on-demand prices of us-east-1 that seerd brought along, as of {PRICES_AS_OF}"
    return gpus, max(INSTANCE_TYPES[name].usd_per_h for name in keys.types), source


def one_size(keys: Ec2Keys, gpus: Mapping[str, int]) -> int:
    """Return how many GPUs all types have. Raises `UsageError` if they differ, or `cluster.gpus`
    says otherwise.
    """
    sizes = ", ".join(f"{name} {count}" for name, count in gpus.items())
    if keys.gpus is not None and {*gpus.values()} != {keys.gpus}:
        raise UsageError(f"cluster.gpus = {keys.gpus} is not so: {sizes}")
    if len(set(gpus.values())) > 1:
        raise UsageError(
            "the types in cluster.instance_type must have the same number of GPUs, and have: "
            f"{sizes}"
        )
    return next(iter(gpus.values()))


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
