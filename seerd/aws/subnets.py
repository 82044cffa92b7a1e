"""The subnets that instances may be started in.

The one rule: each candidate is one subnet of one zone, so that a lack of capacity says where it
was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet."""

    subnet: str  # its id
    zone: str  # its availability zone
    vpc: str  # its network
    free: int  # addresses left


async def resolve(cloud: Cloud, named: Sequence[str]) -> list[Subnet]:
    """Look up these subnets, in this order; if none is named, those of the default network.

    Raises `AwsError`.
    """
    request: dict[str, Any] = (
        {"SubnetIds": list(named)}
        if named
        else {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    )
    rows = await cloud.pages("ec2", "describe_subnets", lambda a: a["Subnets"], **request)
    found = [
        Subnet(
            r["SubnetId"], r["AvailabilityZone"], r["VpcId"], r.get("AvailableIpAddressCount", 0)
        )
        for r in rows
    ]
    if not found:
        raise AwsError(
            f"nothing was started: {cloud.region} has no default network in this account; "
            "give `cluster.subnets`",
            ErrorKind.REFUSED,
            "Subnet",
        )
    order = {subnet: place for place, subnet in enumerate(named)}
    return sorted(found, key=lambda s: (order.get(s.subnet, 0), s.zone))
