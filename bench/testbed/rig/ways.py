"""What reaches an instance, and what it reaches: by the rules of its security groups and the routes
of its subnet.

The one rule: moto keeps groups and route tables, and what follows from them for one instance are
rules of routing in its network namespace. What is not let through is lost without a word, as on
AWS. Of groups the rule for port 22 counts; one that names a group lets in the whole network but for
the coordinator.
"""

from __future__ import annotations

from typing import Any

from bench.testbed.rig.network import Bridge

SSH = 22
ALL = "-1"
EVERYWHERE = "0.0.0.0/0"
INTO_NOTHING = "lookup 99"
"""A table of routes with one, to a hardware address that nothing has."""
CHANGING = frozenset(
    {
        *("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"),
        *("CreateRoute", "DeleteRoute", "ReplaceRoute"),
        *("AssociateRouteTable", "DisassociateRouteTable", "ReplaceRouteTableAssociation"),
        *("CreateVpcEndpoint", "DeleteVpcEndpoints", "ModifyVpcEndpoint"),
    }
)
"""Calls after which other rules may hold."""


def rules(ec2: Any, made: Any, bridge: Bridge) -> list[str]:
    """What `ip rule add` takes, the first that fits counts. `made`: moto's instance."""
    card = made.nics[0]
    table = _table_of(ec2, card.subnet)
    internet, relay, to_s3 = _ways_out(ec2, table)
    lines = []
    if card.public_ip and not internet:
        lines.append(f"from {card.public_ip} {INTO_NOTHING}")
    answers = f"ipproto tcp sport {SSH}"
    networks, groups = _let_in(card)
    lines += [f"to {network} {answers} lookup main" for network in networks]
    lines.append(f"to {bridge.address} {answers} {INTO_NOTHING}")
    if groups:
        lines.append(f"to {bridge.vpc_cidr} {answers} lookup main")
    lines.append(f"{answers} {INTO_NOTHING}")
    if not (relay or to_s3 or (internet and card.public_ip)):
        lines.append(f"to {bridge.address} {INTO_NOTHING}")
    return lines


def _let_in(card: Any) -> tuple[list[str], bool]:
    """The networks that get in by SSH, and whether members of groups do."""
    rules = [rule for group in card._group_set for rule in group.ingress_rules if _is_ssh(rule)]
    networks = {rule.ip_range["CidrIp"] for rule in rules if "CidrIp" in rule.ip_range}
    return sorted(networks), any(rule.source_group for rule in rules)


def _is_ssh(rule: Any) -> bool:
    if rule.ip_protocol == ALL:
        return True
    return rule.ip_protocol == "tcp" and rule.from_port <= SSH <= rule.to_port


def _ways_out(ec2: Any, table: Any) -> tuple[bool, bool, bool]:
    """Whether a route table leads to the internet for those with a public address, for all, and to
    S3 through an endpoint.
    """
    out = [route for route in table.routes if route.destination_cidr_block == EVERYWHERE]
    internet = any(str(route.gateway_id).startswith("igw-") for route in out)
    relay = any(route.nat_gateway or route.instance or route.interface for route in out)
    to_s3 = any(
        endpoint.service_name.endswith(".s3") and table.id in (endpoint.route_table_ids or [])
        for endpoint in ec2.vpc_end_points.values()
        if endpoint.state == "available"
    )
    return internet, relay, to_s3


def _table_of(ec2: Any, subnet: Any) -> Any:
    """The subnet's own route table, else the main one of its network."""
    tables = [table for table in ec2.route_tables.values() if table.vpc_id == subnet.vpc_id]
    for table in tables:
        if subnet.id in table._associations.values():
            return table
    return next(table for table in tables if table.main_association_id)
