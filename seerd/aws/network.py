"""What surrounds an instance: subnets, security groups, and where types are offered.
Functions raise `AwsError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind

PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Rule:
    """Traffic that a security group lets in."""

    protocol: str  # "-1": every protocol
    first: int | None  # the lowest port; None: all
    last: int | None  # the highest port; None: all
    networks: tuple[str, ...]  # CIDRs that it may come from
    groups: tuple[str, ...]  # security groups whose members it may come from
    lists: tuple[str, ...] = ()  # prefix lists that it may come from

    def takes_tcp(self, port: int) -> bool:
        """Return whether the rule covers TCP to this port."""
        if self.protocol == "-1":
            return True
        inside = self.first is None or self.last is None or self.first <= port <= self.last
        return self.protocol in {"tcp", "6"} and inside


@dataclass(frozen=True, slots=True)
class SecurityGroup:
    """A security group."""

    group: str  # its id
    name: str
    vpc: str  # its network
    rules: tuple[Rule, ...]  # which traffic it lets in


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet."""

    subnet: str  # its id
    zone: str  # its availability zone
    vpc: str  # its network
    free: int  # addresses left


async def subnets(cloud: Cloud, named: Sequence[str]) -> list[Subnet]:
    """Return these subnets, in this order; if none is named, those of the default network."""
    request: dict[str, Any] = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    if named:
        request = {"SubnetIds": list(named)}
    rows = await cloud.pages("ec2", "describe_subnets", lambda a: a["Subnets"], **request)
    if not rows:
        why = f"nothing was started: {cloud.region} has no default network in this account"
        raise AwsError(f"{why}; give `cluster.subnets`", ErrorKind.REFUSED, "Subnet")
    order = {subnet: place for place, subnet in enumerate(named)}
    subnets = (
        Subnet(
            r["SubnetId"], r["AvailabilityZone"], r["VpcId"], r.get("AvailableIpAddressCount", 0)
        )
        for r in rows
    )
    return sorted(subnets, key=lambda s: (order.get(s.subnet, 0), s.zone))


async def groups(cloud: Cloud, named: Sequence[str], vpc: str) -> list[SecurityGroup]:
    """Return these groups; if none is named, the default one of this network."""
    of_vpc = {"Name": "vpc-id", "Values": [vpc]}
    request: dict[str, Any] = {"Filters": [of_vpc, {"Name": "group-name", "Values": ["default"]}]}
    if named:
        request = {"GroupIds": list(named)}
    rows = await cloud.pages(
        "ec2",
        "describe_security_groups",
        lambda a: a["SecurityGroups"],
        patience_s=PATIENCE_S,
        **request,
    )
    return [
        SecurityGroup(
            r["GroupId"],
            r.get("GroupName", ""),
            r.get("VpcId", ""),
            tuple(map(_rule, r.get("IpPermissions", []))),
        )
        for r in rows
    ]


async def offers(cloud: Cloud, names: Sequence[str]) -> dict[str, set[str]]:
    """Return the zones in which each of these types is offered."""
    rows = await cloud.pages(
        "ec2",
        "describe_instance_type_offerings",
        lambda a: a["InstanceTypeOfferings"],
        patience_s=PATIENCE_S,
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(names)}],
    )
    zones: dict[str, set[str]] = {name: set() for name in names}
    for row in rows:
        zones.setdefault(row["InstanceType"], set()).add(row["Location"])
    return zones


def nowhere_offered(zones: Mapping[str, AbstractSet[str]]) -> str:
    """Return that no subnet is in any of the zones that offer these types, for people."""
    where = ", ".join(sorted(set().union(*zones.values()))) or "no zone of the region"
    return f"{', '.join(zones)} is offered in {where}, and no subnet is there"


def _rule(row: dict[str, Any]) -> Rule:
    networks = [r["CidrIp"] for r in row.get("IpRanges", [])]
    networks += [r["CidrIpv6"] for r in row.get("Ipv6Ranges", [])]
    return Rule(
        str(row.get("IpProtocol", "")),
        row.get("FromPort"),
        row.get("ToPort"),
        tuple(networks),
        tuple(r["GroupId"] for r in row.get("UserIdGroupPairs", []) if "GroupId" in r),
        tuple(r["PrefixListId"] for r in row.get("PrefixListIds", [])),
    )
