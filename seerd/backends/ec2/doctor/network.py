"""Where instances would be, and who can connect to them. Whether this machine can is judged only as
far as rules show it; else the rule that is needed is named.
"""

from __future__ import annotations

import ipaddress
import shutil
import socket
from collections.abc import Callable, Sequence

from seerd.aws import network, routes
from seerd.aws.errors import AwsError
from seerd.aws.network import SecurityGroup, Subnet
from seerd.backends.ec2.doctor.renting import AwsNotes, Rented
from seerd.backends.examining import Finding

SSH = 22
ALLOW = "aws ec2 authorize-security-group-ingress"
AWAY = "203.0.113.1"  # an address elsewhere in the world (RFC 5737)
EVERYONE = frozenset({"0.0.0.0/0", "::/0"})


async def look(notes: AwsNotes, rented: Rented) -> tuple[list[Subnet], list[SecurityGroup]]:
    """Check subnets, zones and security groups; return the subnets and groups that exist."""
    cluster = notes.keys
    asked = network.subnets(notes.aws, cluster.subnets)
    places = await notes.ask("subnets", "ec2:DescribeSubnets", asked) or []
    if places:
        free, networks = sum(place.free for place in places), {place.vpc for place in places}
        text = f"{', '.join(f'{p.subnet} ({p.zone})' for p in places)}: {free} free addresses"
        if len(networks) > 1:
            text += f"; they are in {len(networks)} networks"
            notes.problem("subnets", text, "name subnets of one VPC")
        elif free < rented.peak.instances:
            text += f", and the plan's peak needs {rented.peak.instances}"
            notes.problem("subnets", text, "name larger or more subnets")
        else:
            notes.ok("subnets", text)
        await _offered(notes, places, rented)
        await _routes(notes, places)
    groups = await _groups(notes, places)
    if groups:
        notes.lines.append(access(groups, cluster.address, _our_address))
    if groups and rented.types and rented.peak.largest > rented.types[0].gpus:
        notes.lines.append(among(groups, rented.peak.largest))
    return places, groups


async def _routes(notes: AwsNotes, places: Sequence[Subnet]) -> None:
    """Check that instances can be reached at a public address, and that they reach the store."""
    try:
        ways = await routes.ways_out(notes.aws, places)
    except AwsError as error:
        action = "ec2:DescribeRouteTables"
        action = "ec2:DescribeVpcEndpoints" if "DescribeVpcEndpoints" in str(error) else action
        notes.refused("routes", action, error, "warning")
        return
    is_public = notes.keys.address == "public"
    closed = [way for way in ways if not (way.internet if is_public else way.relay or way.s3)]
    if closed:
        names, table = ", ".join(way.subnet for way in closed), closed[0].table
        if is_public:
            found = f"{names} has no route to an internet gateway, so nobody can log in there"
            todo = f"aws ec2 create-route --route-table-id {table} --gateway-id INTERNET-GATEWAY"
            todo = f"name other subnets, or: {todo} --destination-cidr-block {routes.EVERYWHERE}"
        else:
            tables = " ".join(dict.fromkeys(way.table for way in closed))
            found = f"{names} has no way to S3, so no checkpoint can be stored"
            todo = f"aws ec2 create-vpc-endpoint --vpc-id {places[0].vpc} --route-table-ids "
            todo += f"{tables} --service-name com.amazonaws.{notes.aws.region}.s3"
        notes.problem("routes", found, todo)
        return
    only_s3 = [] if is_public else [way.subnet for way in ways if not way.relay]
    found = "instances reach the internet, and S3"
    if only_s3:
        found = f"S3 is reached through an endpoint; {', '.join(only_s3)} reaches nothing else"
    if only_s3 and notes.case.spec.train.setup:
        todo = "what train.setup downloads needs a NAT gateway, or an image that has it"
        notes.warn("routes", found, todo)
    else:
        notes.ok("routes", found)


async def _offered(notes: AwsNotes, places: Sequence[Subnet], rented: Rented) -> None:
    names = [kind.name for kind in rented.types]
    zones = {place.zone for place in places}
    if not names:
        return
    try:
        offered = await network.offers(notes.aws, names)
    except AwsError as error:
        notes.refused("zones", "ec2:DescribeInstanceTypeOfferings", error, "warning")
        return
    nowhere = [name for name in names if not offered[name] & zones]
    if len(nowhere) == len(names):
        notes.problem("zones", network.nowhere_offered(offered), "name others")
        return
    found = "; ".join(
        f"{name} in {', '.join(sorted(offered[name] & zones)) or 'none of them'}" for name in names
    )
    notes.note("zones", "warning" if nowhere else "ok", found)


async def _groups(notes: AwsNotes, places: Sequence[Subnet]) -> list[SecurityGroup]:
    named = notes.keys.security_groups
    vpc = places[0].vpc if places else ""
    if not named and not vpc:
        return []
    asked = network.groups(notes.aws, named, vpc)
    groups = await notes.ask("security groups", "ec2:DescribeSecurityGroups", asked, "warning")
    elsewhere = [group.group for group in groups or [] if vpc and group.vpc and group.vpc != vpc]
    if elsewhere:
        found = f"{', '.join(elsewhere)} is not of the subnets' network {vpc}"
        notes.problem("security groups", found, "name groups of that VPC")
    return groups or []


def _endpoint(groups: Sequence[SecurityGroup]) -> Finding:
    """Check what an EC2 Instance Connect Endpoint needs here and of the groups."""
    let_in = f"{', '.join(group.group for group in groups)}: SSH comes through an endpoint"
    if shutil.which("aws") is None:
        todo = "install the AWS CLI, which opens the way to it: `aws` is not on the PATH"
        return Finding("SSH", "problem", let_in, todo)
    if not any(rule.takes_tcp(SSH) for group in groups for rule in group.rules):
        todo = f"{ALLOW} --group-id {groups[0].group} --protocol tcp --port {SSH}"
        return Finding("SSH", "problem", let_in, f"{todo} --source-group GROUP-OF-THE-ENDPOINT")
    return Finding("SSH", "ok", f"{let_in} that is in one of their sources")


def access(groups: Sequence[SecurityGroup], address: str, ours_to: Callable[[str], str]) -> Finding:
    """Check whether SSH from this machine is let in. `address`: the one that seerd connects to;
    `ours_to`: returns this machine's address on the way to another, empty if there is no way.
    """
    if address == "instance-connect":
        return _endpoint(groups)
    ours = ours_to(AWAY)
    rules = [rule for group in groups for rule in group.rules if rule.takes_tcp(SSH)]
    if address == "public":
        source = "--cidr $(curl -s https://checkip.amazonaws.com)/32"
    else:
        source = f"--cidr {ours}/32" if ours else "--source-group GROUP-OF-THIS-MACHINE"
    todo = f"{ALLOW} --group-id {groups[0].group} --protocol tcp --port {SSH} {source}"
    networks = sorted({network for rule in rules for network in rule.networks})
    members = sorted({member for rule in rules for member in (*rule.groups, *rule.lists)})
    sources = ", ".join([*networks, *members]) or "nowhere"
    let_in = f"{', '.join(group.group for group in groups)}: SSH is let in from {sources}"
    if not rules or (address == "public" and not networks):
        return Finding("SSH", "problem", let_in, todo)
    if EVERYONE & set(networks) or (
        address == "private" and any(_inside(network, ours_to) for network in networks)
    ):
        return Finding("SSH", "ok", let_in)
    if address == "public":
        listed = f"this machine's public address must be among them, else: {todo}"
        return Finding("SSH", "warning", let_in, listed)
    if members:
        here = f"this machine ({ours or 'no address'})"
        return Finding("SSH", "ok", f"{let_in}; {here} must be a member, or in one of the networks")
    here = f"this machine is {ours or 'without an address'}"
    return Finding("SSH", "warning", f"{let_in}, and {here}", todo)


def among(groups: Sequence[SecurityGroup], largest: int) -> Finding:
    """Check whether instances of these groups may talk to each other on all ports."""
    names = {group.group for group in groups}
    if any(
        rule.protocol == "-1" and names & set(rule.groups)
        for group in groups
        for rule in group.rules
    ):
        text = "instances of the group reach each other on all ports"
        return Finding("among instances", "ok", text)
    group = groups[0].group
    text = (
        f"trials of {largest} GPUs span instances, "
        "and no rule lets these reach each other on all ports"
    )
    todo = f"{ALLOW} --group-id {group} --protocol=-1 --source-group {group}"
    return Finding("among instances", "problem", text, f"{todo}; or a smaller policy.p_max")


def _inside(network: str, ours_to: Callable[[str], str]) -> bool:
    """Return whether this machine belongs to this network, by its address on the way there."""
    cidr = ipaddress.ip_network(network, strict=False)
    ours = ours_to(str(cidr[min(2, cidr.num_addresses - 1)]))
    return bool(ours) and ipaddress.ip_address(ours) in cidr


def _our_address(to: str) -> str:
    """Return this machine's address on the way to `to`; nothing is sent."""
    if ":" in to:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((to, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
