"""The ways out of subnets: to the internet, and to S3. Functions raise `AwsError`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.network import PATIENCE_S, Subnet

EVERYWHERE = "0.0.0.0/0"
TARGETS = (
    *("GatewayId", "NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId"),
    *("VpcPeeringConnectionId", "LocalGatewayId", "CarrierGatewayId", "CoreNetworkArn"),
)
"""What a route may lead to
(docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Route.html).
"""
S3_SERVICE = ".s3"  # how the names of S3's endpoint services end


@dataclass(frozen=True, slots=True)
class WaysOut:
    """Where the instances of a subnet can connect to, by its routes."""

    subnet: str
    table: str  # id of its route table
    internet: bool  # the internet, for those with a public address
    relay: bool  # the internet, through a NAT gateway or anything else that takes what is sent
    s3: bool  # S3, through an endpoint


async def ways_out(cloud: Cloud, subnets: Sequence[Subnet]) -> list[WaysOut]:
    """Return the ways out of these subnets, in their order. What a network's firewall or an
    endpoint's policy does is not looked at.
    """
    of_vpc = [{"Name": "vpc-id", "Values": sorted({subnet.vpc for subnet in subnets})}]
    pages = partial(cloud.pages, "ec2", patience_s=PATIENCE_S, Filters=of_vpc)
    tables, endpoints = await asyncio.gather(
        pages("describe_route_tables", lambda a: a["RouteTables"]),
        pages("describe_vpc_endpoints", lambda a: a["VpcEndpoints"]),
    )
    to_s3 = [e for e in endpoints if e["ServiceName"].endswith(S3_SERVICE) and _is_up(e)]
    through = {table for endpoint in to_s3 for table in endpoint.get("RouteTableIds", [])}
    private = {e["VpcId"] for e in to_s3 if e.get("PrivateDnsEnabled")}
    ways = []
    for subnet in subnets:
        table = _table_of(subnet, tables)
        name = table.get("RouteTableId", "")
        out = [route for route in table.get("Routes", []) if _is_default(route)]
        internet = any(_target(route).startswith("igw-") for route in out)
        relay = any(_target(route) and not _target(route).startswith("igw-") for route in out)
        s3 = name in through or subnet.vpc in private
        ways.append(WaysOut(subnet.subnet, name, internet, relay, s3))
    return ways


def _table_of(subnet: Subnet, tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the subnet's own table, else the main one of its network."""
    main: Mapping[str, Any] = {}
    for table in tables:
        for association in table.get("Associations", []):
            if association.get("SubnetId") == subnet.subnet:
                return table
            if association.get("Main") and table.get("VpcId") == subnet.vpc:
                main = table
    return main


def _is_default(route: Mapping[str, Any]) -> bool:
    return route.get("DestinationCidrBlock") == EVERYWHERE and route.get("State") != "blackhole"


def _target(route: Mapping[str, Any]) -> str:
    """Return the id of what a route leads to; empty if it leads nowhere."""
    return next((str(route[name]) for name in TARGETS if route.get(name)), "")


def _is_up(endpoint: Mapping[str, Any]) -> bool:
    return str(endpoint.get("State", "available")).lower() == "available"
