"""What AWS bills besides instances. The ledger does not count it, since only AWS's bill has it;
plans say about how much it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.backends.backend import Uncounted
from seerd.backends.ec2.keys import Ec2Keys

MONTH_H = 730.0
GB_MONTH_USD, MIB_S_MONTH_USD, IOPS_MONTH_USD = 0.08, 0.04, 0.005  # gp3
FREE_MIB_S, FREE_IOPS = 125, 3000  # those that every gp3 disk has
LOADED_GB_USD = 0.0036  # loading a GB of a snapshot at a rate that was asked for
ADDRESS_H_USD = 0.005  # a public IPv4 address
NAT_USD = 0.045  # a NAT gateway, for an hour and for a GB
PUT_USD = 0.005 / 1000  # a PUT or LIST of S3
REQUESTS = 4  # of a checkpoint: two objects are written, and what is old is looked for
STORED_GB_USD = 0.023  # a GB in S3 for a month
"""Prices of us-east-1, as of 2026-11 (aws.amazon.com/ebs/pricing, /vpc/pricing, /s3/pricing)."""
IMAGE_GB = 75  # a Deep Learning image's root disk, where the spec does not name a size


@dataclass(frozen=True, slots=True)
class _DiskCosts:
    """What the disk of an instance costs, in USD."""

    hour: float
    start: float  # once for each instance


def speed_usd_per_h(keys: Ec2Keys) -> float:
    """Return what an hour of a disk costs in USD for being faster than others."""
    mib_s = keys.throughput or FREE_MIB_S
    speed = (mib_s - FREE_MIB_S) * MIB_S_MONTH_USD
    iops = max(4 * mib_s if keys.throughput else 0, keys.iops or 0)
    return (speed + max(0, iops - FREE_IOPS) * IOPS_MONTH_USD) / MONTH_H


def _disk_costs(keys: Ec2Keys, gb: int) -> _DiskCosts:
    load = gb * LOADED_GB_USD if keys.load_rate else 0.0
    return _DiskCosts(gb * GB_MONTH_USD / MONTH_H + speed_usd_per_h(keys), load)


def uncounted(keys: Ec2Keys, instances: int, instance_h: float) -> Uncounted:
    """Return what so many instances cost besides, in so many hours together."""
    gb = keys.volume_gb or IMAGE_GB
    disks = _disk_costs(keys, gb)
    parts = {f"disks of {gb} GB": instance_h * disks.hour + instances * disks.start}
    if keys.address == "public":
        parts["public addresses"] = instance_h * ADDRESS_H_USD
    more = f"S3 ${1000 * REQUESTS * PUT_USD:.2f} for 1,000 checkpoints and ${STORED_GB_USD} a month"
    more += " for each GB"
    if keys.address != "public":
        more += f", a NAT gateway if there is one ${NAT_USD} for each hour and GB"
    texts = [f"{what} ${usd:.3f}" for what, usd in parts.items()]
    return Uncounted(sum(parts.values()), f"{', '.join(texts)}; {more}")
