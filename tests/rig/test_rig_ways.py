"""Whom an instance is reached by, and what it reaches: groups, routes and public addresses count."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import asyncssh
import pytest

from bench.testbed.rig import Rig, RigInstance
from bench.testbed.rig.guest import Keys, client, launch, until

IN_VAIN_S = 1.5
"""How long is waited for what must not come; what may come takes a hundredth of that."""


@pytest.fixture
def up(rig: Rig) -> Callable[..., RigInstance]:
    """Launches an instance in this subnet, and waits until sshd answers there."""

    def launched(keys: Keys, subnet: str, *, public: bool) -> RigInstance:
        card = {
            "DeviceIndex": 0,
            "SubnetId": subnet,
            "Groups": [rig.security_group],
            "AssociatePublicIpAddress": public,
        }
        changes: dict[str, Any] = {"SubnetId": None, "SecurityGroupIds": None}
        launch(rig, **changes, NetworkInterfaces=[card], UserData=keys.script)
        (instance,) = until(lambda: [one for one in rig.instances() if one.pid is not None])
        return instance

    return launched


def main_table(rig: Rig) -> dict[str, Any]:
    (table,) = client(rig, "ec2").describe_route_tables(
        Filters=[{"Name": "association.main", "Values": ["true"]}]
    )["RouteTables"]
    return dict(table)


def answers(address: str) -> bool:
    """Whether a connection to port 22 comes."""

    async def asked() -> None:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, 22), IN_VAIN_S)
        writer.close()

    try:
        asyncio.run(asked())
    except TimeoutError:
        return False
    except ConnectionRefusedError:  # sshd begins a moment later
        return True
    return True


def reaches_s3(rig: Rig, instance: RigInstance) -> bool:
    words = ("nsenter", f"--net={instance.ns}", "curl", "-s", "-o", "/dev/null")
    done = subprocess.run(
        [*words, "--max-time", str(IN_VAIN_S), rig.endpoint], check=False, capture_output=True
    )
    assert done.returncode in {0, 28}, "it is lost without a word"
    return done.returncode == 0


def test_a_public_address_answers_to_whom_the_group_names_and_to_nobody_else(
    rig: Rig, up: Callable[..., RigInstance]
) -> None:
    ec2, keys = client(rig, "ec2"), Keys()
    instance = up(keys, rig.subnets["us-east-1a"], public=True)
    (told,) = ec2.describe_instances()["Reservations"][0]["Instances"]
    assert told["PublicIpAddress"] == instance.public
    rule: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    rule["IpRanges"] = [{"CidrIp": f"{rig.outside}/32"}]
    assert answers(instance.address), "the group lets in its own network"
    assert not answers(instance.public)
    ec2.authorize_security_group_ingress(GroupId=rig.security_group, IpPermissions=[rule])

    async def logged_in() -> asyncssh.SSHCompletedProcess:
        async with await keys.connect(instance.public) as connection:
            return await connection.run("echo $SSH_CONNECTION")

    assert str(asyncio.run(logged_in()).stdout).split()[::2] == [rig.outside, instance.public]
    ec2.revoke_security_group_ingress(GroupId=rig.security_group, IpPermissions=[rule])
    assert not answers(instance.public)


def test_a_public_address_needs_a_way_to_the_internet(
    rig: Rig, up: Callable[..., RigInstance]
) -> None:
    ec2, table = client(rig, "ec2"), main_table(rig)["RouteTableId"]
    rule = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_ingress(GroupId=rig.security_group, IpPermissions=[rule])
    instance = up(Keys(), rig.subnets["us-east-1a"], public=True)
    assert answers(instance.public)
    ec2.delete_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0")
    assert not answers(instance.public)
    assert answers(instance.address)


def test_s3_is_reached_through_an_endpoint_a_gateway_or_a_relay(
    rig: Rig, up: Callable[..., RigInstance]
) -> None:
    ec2, table = client(rig, "ec2"), main_table(rig)
    subnet = rig.subnets["us-east-1b"]
    instance = up(Keys(), subnet, public=False)
    assert reaches_s3(rig, instance), "there is an endpoint"
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    assert not reaches_s3(rig, instance), "an internet gateway is for public addresses"
    (other,) = up_public(rig, subnet)
    assert reaches_s3(rig, other)
    own = ec2.create_route_table(VpcId=table["VpcId"])["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=own, SubnetId=subnet)
    assert not reaches_s3(rig, other), "a table of its own leads nowhere"
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=rig.subnets["us-east-1a"], AllocationId=address)
    to = nat["NatGateway"]["NatGatewayId"]
    ec2.create_route(RouteTableId=own, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=to)
    assert reaches_s3(rig, instance)


def up_public(rig: Rig, subnet: str) -> list[RigInstance]:
    card = {"DeviceIndex": 0, "SubnetId": subnet, "AssociatePublicIpAddress": True}
    ids = launch(rig, SubnetId=None, SecurityGroupIds=None, NetworkInterfaces=[card])
    return until(lambda: [one for one in rig.instances() if one.id in ids and one.pid is not None])
