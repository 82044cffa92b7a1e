"""What seerd makes of AWS's answers, and what it asks for: every field, and every moment."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from seerd.aws import cloud as clouds
from seerd.aws import (
    identity,
    images,
    instances,
    network,
    policy,
    prices,
    quotas,
    types,
)
from seerd.aws.cloud import Cloud
from seerd.aws.credentials import Lifetime
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.images import MadeImage
from seerd.aws.instances import EndedInstance, SeenInstance, Volume
from seerd.aws.network import Rule, SecurityGroup, Subnet
from seerd.aws.prices import Price
from seerd.aws.quotas import Quota
from seerd.aws.types import Ec2Type
from seerd.backends.base import Found, Left
from seerd.backends.ec2.sweeping import Ec2Sweeper
from seerd.backends.examining import denied_action
from seerd.planner.clouds import INSTANCE_TYPES
from tests.aws.scripted import cloud_of, played, raised
from tests.faults.ec2 import refusal
from tests.faults.timeline import EPOCH

BUSY, BROKEN = refusal("RequestLimitExceeded", 503), refusal("InternalError", 500)
DENIED = refusal("UnauthorizedOperation", 403)


@pytest.fixture(autouse=True)
def dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits before repetitions are as long as they can be."""
    longest = random.Random()
    longest.uniform = lambda least, most: most  # type: ignore[method-assign]
    monkeypatch.setattr(clouds, "_dice", longest)


# ------------------------------------------------------------ calls and their repetition


def test_a_call_is_repeated_for_a_minute_with_growing_pauses() -> None:
    cloud, script = cloud_of(describe_images=BUSY)
    error, until = played(raised(cloud.ask("ec2", "describe_images", Owners=["self"])))
    assert isinstance(error, AwsError)
    assert (error.kind, error.code, error.status) == (
        ErrorKind.THROTTLED,
        "RequestLimitExceeded",
        503,
    )
    pauses = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0, 10.0]
    gaps = [later - at for at, later in zip(script.times, script.times[1:], strict=False)]
    assert gaps == pytest.approx(pauses)
    assert until == pytest.approx(sum(pauses))
    assert script.calls == [("describe_images", {"Owners": ["self"]})] * 12


@pytest.mark.parametrize("patience_s", [0.0, 0.5, 3.0])
def test_a_call_is_repeated_while_there_is_patience(patience_s: float) -> None:
    cloud, script = cloud_of(describe_images=BROKEN)
    played(raised(cloud.ask("ec2", "describe_images", patience_s=patience_s)))
    assert script.times[-1] > patience_s or patience_s == 0.0 < len(script.times) - 1
    assert all(at <= patience_s for at in script.times[:-1])


def test_what_may_be_asked_once_is_asked_once_in_its_region() -> None:
    cloud, script = cloud_of(create_image=BUSY, get_products={"PriceList": []})
    error, _ = played(raised(cloud.call("ec2", "create_image")))
    assert isinstance(error, AwsError)
    assert script.operations == ["create_image"]
    played(cloud.call("pricing", "get_products", region="eu-west-1", A=1))
    assert script.calls[1:] == [("get_products", {"A": 1})]
    assert cloud.asked == [("ec2", "us-east-1"), ("pricing", "eu-west-1")]


def test_all_pages_of_a_listing_are_read() -> None:
    pages = [
        {"Rows": [1], "NextToken": "two"},
        {"Rows": [2, 3], "NextToken": "three"},
        {"Rows": []},
    ]
    cloud, script = cloud_of(describe_things=pages)
    rows, _ = played(cloud.pages("ec2", "describe_things", lambda a: a["Rows"], Of="me"))
    assert rows == [1, 2, 3]
    assert [request for _, request in script.calls] == [
        {"Of": "me"},
        {"Of": "me", "NextToken": "two"},
        {"Of": "me", "NextToken": "three"},
    ]


@pytest.mark.parametrize(
    ("source", "renewed"),
    [("env", False), ("shared-credentials-file", False), ("config-file", False), ("sso", True)],
)
def test_credentials_of_files_and_of_the_environment_are_not_renewed(
    source: str, renewed: bool
) -> None:
    assert Lifetime(source, ends_at=None).renewed is renewed


def test_credentials_of_the_environment_say_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    lasts, _ = played(Cloud().lifetime())
    assert lasts == Lifetime("env", ends_at=None)
    with pytest.raises(AwsError, match="no AWS region is named") as none:
        _ = Cloud().region
    assert (none.value.kind, none.value.code) == (ErrorKind.CREDENTIALS, "NoRegion")
    assert Cloud("eu-north-1").region == "eu-north-1"
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert played(Cloud().lifetime())[0] == Lifetime("env", ends_at=None, temporary=True)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error, _ = played(raised(Cloud().lifetime()))
    assert isinstance(error, AwsError)
    assert (error.kind, error.code) == (ErrorKind.CREDENTIALS, "NoCredentialsError")
    closed = Cloud("eu-north-1")
    played(closed.close())
    error, _ = played(raised(closed.call("ec2", "describe_images")))
    assert isinstance(error, AwsError)
    assert (error.kind, error.code) == (ErrorKind.REFUSED, "Closed")


DATE = {
    "HTTPHeaders": {"date": format_datetime(datetime.fromtimestamp(EPOCH - 100, UTC), usegmt=True)}
}


def test_this_machine_s_clock_is_compared_with_the_middle_of_the_call() -> None:
    said = {"Arn": "arn:aws:iam::1:user/me", "Account": "1", "ResponseMetadata": DATE}
    cloud, script = cloud_of(get_caller_identity=[BUSY, said])
    who, until = played(identity.introduce(cloud))
    assert (who.arn, who.account, who.error) == ("arn:aws:iam::1:user/me", "1", None)
    assert until == pytest.approx(0.2)
    assert who.ahead_s == pytest.approx(100 - 0.5 + 0.1)
    cloud, script = cloud_of(get_caller_identity=BROKEN)
    who, until = played(identity.introduce(cloud))
    assert (who.arn, who.account, who.ahead_s) == ("", "", None)
    assert isinstance(who.error, AwsError)
    assert who.error.code == "InternalError"
    assert script.times[-2] <= identity.PATIENCE_S < until < 2 * identity.PATIENCE_S
    denied = refusal("AccessDenied", 403)
    denied.response["ResponseMetadata"]["HTTPHeaders"] = DATE["HTTPHeaders"]
    cloud, script = cloud_of(get_caller_identity=denied)
    assert played(identity.introduce(cloud))[0].ahead_s == pytest.approx(99.5)


# ------------------------------------------------------------ instances, volumes, what was left

TAGS = [{"Key": "seerd:run", "Value": "r1"}, {"Key": "seerd:command", "Value": "2.0"}]


def row(name: str, at: float, state: str = "running", **more: Any) -> dict[str, Any]:
    """An instance as DescribeInstances tells of it."""
    moment = datetime.fromtimestamp(at, UTC)
    return {"InstanceId": name, "State": {"Name": state}, "LaunchTime": moment, **more}


def test_instances_are_read_field_by_field_in_the_order_of_their_launches() -> None:
    rich = row(
        "i-2",
        EPOCH + 5,
        "terminated",
        Tags=TAGS,
        StateTransitionReason="User initiated (2026-01-31 12:00:01 GMT)",
        StateReason={"Code": "Client.X", "Message": "gone"},
        PrivateIpAddress="10.0.0.1",
        PublicIpAddress="3.3.3.3",
        InstanceType="p3.2xlarge",
        Placement={"AvailabilityZone": "us-east-1b"},
        InstanceLifecycle="spot",
    )
    plain = [row("i-3", EPOCH), row("i-1", EPOCH)]
    cloud, script = cloud_of(
        describe_instances={"Reservations": [{"Instances": [rich]}, {"Instances": plain}]}
    )
    found, _ = played(instances.find(cloud, instances.tagged("seerd:run", "r1")))
    assert found == [
        SeenInstance("i-1", "running", {}, EPOCH, None, ("", ""), "", "", "", "", spot=False),
        SeenInstance("i-3", "running", {}, EPOCH, None, ("", ""), "", "", "", "", spot=False),
        SeenInstance(
            "i-2",
            "terminated",
            {"seerd:run": "r1", "seerd:command": "2.0"},
            EPOCH + 5,
            datetime(2026, 1, 31, 12, 0, 1, tzinfo=UTC).timestamp(),
            ("Client.X", "gone"),
            "10.0.0.1",
            "3.3.3.3",
            "p3.2xlarge",
            "us-east-1b",
            spot=True,
        ),
    ]
    assert [one.token for one in found] == ["", "", "2.0"]
    assert script.calls == [
        (
            "describe_instances",
            {"Filters": [{"Name": "tag:seerd:run", "Values": ["r1"]}], "MaxResults": 1000},
        )
    ]


def test_instances_are_looked_for_for_a_minute() -> None:
    cloud, script = cloud_of(describe_instances=BUSY)
    played(raised(instances.find(cloud, [])))
    assert script.times[-2] <= 60.0 < script.times[-1] < 72.0


@pytest.mark.parametrize(("values", "parts"), [(0, []), (200, [200]), (201, [200, 1])])
def test_no_filter_has_more_values_than_ec2_takes(values: int, parts: list[int]) -> None:
    cloud, script = cloud_of(describe_instances={"Reservations": [{"Instances": [row("i-1", 0)]}]})
    names = [f"seerd-{number}" for number in range(values)]
    found, _ = played(instances.find_among(cloud, "client-token", names))
    asked = [request["Filters"][0] for _, request in script.calls]
    assert [len(one["Values"]) for one in asked] == parts
    assert [value for one in asked for value in one["Values"]] == names
    assert len(found) == len(parts)


def disk(name: str, state: str, *holders: str, **more: Any) -> dict[str, Any]:
    """A volume as DescribeVolumes tells of it."""
    held = [{"InstanceId": holder} for holder in holders]
    made = datetime.fromtimestamp(EPOCH - 50, UTC)
    return {"VolumeId": name, "State": state, "CreateTime": made, "Attachments": held, **more}


def test_volumes_are_read_and_go_with_the_last_instance_that_holds_them() -> None:
    rows = [disk("vol-1", "in-use", "i-1", "i-2", Size=8, Tags=TAGS)]
    cloud, script = cloud_of(describe_volumes={"Volumes": rows})
    (found,), _ = played(instances.volumes(cloud, []))
    tags = {"seerd:run": "r1", "seerd:command": "2.0"}
    assert found == Volume("vol-1", "in-use", tags, 8, EPOCH - 50, frozenset({"i-1", "i-2"}))
    assert script.calls == [("describe_volumes", {"Filters": [], "MaxResults": 500})]
    assert found.ends_with({"i-1", "i-2", "i-3"})
    assert found.ends_with({"i-1", "i-2"})
    assert not found.ends_with({"i-1"})
    assert Volume("v", "deleting", {}, 8, 0.0).ends_with(set())
    assert not Volume("v", "in-use", {}, 8, 0.0).ends_with({"i-1"})
    assert not Volume("v", "available", {}, 8, 0.0, frozenset({"i-1"})).ends_with({"i-1"})


def test_the_answer_to_a_termination_is_told_for_each_instance() -> None:
    rows = [
        {"InstanceId": n, "PreviousState": {"Name": "running"}, "CurrentState": {"Name": "x"}}
        for n in ("i-1", "i-2")
    ]
    cloud, script = cloud_of(terminate_instances={"TerminatingInstances": rows})
    ended, _ = played(instances.end(cloud, ("i-1", "i-2")))
    assert ended == dict.fromkeys(("i-1", "i-2"), EndedInstance("running", "x"))
    assert script.calls == [("terminate_instances", {"InstanceIds": ["i-1", "i-2"]})]


ME = "arn:aws:iam::1:user/me"


def owned(owner: str, **more: str) -> list[dict[str, str]]:
    """Tags of what belongs to this owner."""
    tags = {"seerd:run": "r1", "seerd:owner": owner, **more}
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def test_what_was_left_behind_is_told_oldest_first_and_what_ends_apart() -> None:
    named = owned(ME, **{"seerd:name": "digits", "seerd:hard-end": "noon"})
    rows = [
        row("i-young", EPOCH - 10, Tags=owned(ME), InstanceType="g4dn.xlarge"),
        row("i-old", EPOCH - 7200, "stopped", Tags=named, InstanceType="p3.2xlarge"),
        row("i-ending", EPOCH - 20, "shutting-down", Tags=owned(ME)),
        row("i-gone", EPOCH - 30, "terminated", Tags=owned(ME)),
        row("i-other", EPOCH, Tags=owned(f"{ME}2")),
    ]
    disks = [
        disk("vol-free", "available", Size=8, Tags=named),
        disk("vol-ending", "in-use", "i-ending", Tags=owned(ME)),
        disk("vol-used", "in-use", "i-young", Tags=owned(ME)),
        disk("vol-other", "available", Tags=owned("you")),
    ]
    cloud, script = cloud_of(
        describe_instances={"Reservations": [{"Instances": rows}]},
        describe_volumes={"Volumes": disks},
    )
    found, _ = played(Ec2Sweeper.find(cloud, ME))
    old = Left("instance", "i-old", "r1", "digits", "noon", "stopped", "p3.2xlarge", 7200.0)
    price = INSTANCE_TYPES["g4dn.xlarge"].usd_per_h
    young = Left("instance", "i-young", "r1", "", "", "running", "g4dn.xlarge", 10.0, price)
    free = Left("volume", "vol-free", "r1", "digits", "noon", "available", "8 GB", 50.0)
    assert found == Found([old, free, young], ["i-ending", "vol-ending"])
    assert "2.0h old" in str(old)
    filters = [
        {"Name": "tag:seerd:owner", "Values": [ME]},
        {"Name": "tag-key", "Values": ["seerd:run"]},
    ]
    assert [request["Filters"] for _, request in script.calls] == [filters, filters]
    assert played(Ec2Sweeper.find_instances(cloud, ME))[0] == [old, young]


@pytest.mark.parametrize("length", [255, 256, 257, 300])
def test_the_owner_s_tag_is_as_long_as_ec2_takes(length: int) -> None:
    owner = "o" * length
    cloud, script = cloud_of(
        describe_instances={
            "Reservations": [{"Instances": [row("i-1", 0, Tags=owned(owner[:256]))]}]
        }
    )
    assert len(played(Ec2Sweeper.find_instances(cloud, owner))[0]) == 1
    values = script.calls[0][1]["Filters"][0]["Values"]
    assert values == [owner[:256]]


@pytest.mark.parametrize(
    ("kind", "operation"), [("instance", "terminate_instances"), ("volume", "delete_volume")]
)
def test_what_is_gone_already_is_removed_and_what_is_refused_is_told(
    kind: Any, operation: str
) -> None:
    left = Left(kind, "x-1", "r1", "", "", "", "", 0.0)
    code = "InvalidInstanceID.NotFound" if kind == "instance" else "InvalidVolume.NotFound"
    cloud, script = cloud_of(**{operation: [{}, refusal(code, 400), DENIED]})
    played(Ec2Sweeper.remove(cloud, left))
    played(Ec2Sweeper.remove(cloud, left))
    error, _ = played(raised(Ec2Sweeper.remove(cloud, left)))
    assert isinstance(error, AwsError)
    assert error.kind is ErrorKind.DENIED
    asked = {"InstanceIds": ["x-1"]} if kind == "instance" else {"VolumeId": "x-1"}
    assert script.calls == [(operation, asked)] * 3


# ------------------------------------------------------------ networks, images, types


def test_subnets_come_in_the_order_in_which_they_are_named_or_by_zone() -> None:
    rows = [
        {"SubnetId": f"s-{zone}", "AvailabilityZone": f"us-east-1{zone}", "VpcId": "vpc-1"}
        for zone in "cab"
    ]
    rows[0]["AvailableIpAddressCount"] = 250  # type: ignore[assignment]
    cloud, script = cloud_of(describe_subnets={"Subnets": rows})
    found, _ = played(network.subnets(cloud, []))
    assert found == [
        Subnet("s-a", "us-east-1a", "vpc-1", 0),
        Subnet("s-b", "us-east-1b", "vpc-1", 0),
        Subnet("s-c", "us-east-1c", "vpc-1", 250),
    ]
    found, _ = played(network.subnets(cloud, ["s-b", "s-c", "s-a"]))
    assert [one.subnet for one in found] == ["s-b", "s-c", "s-a"]
    assert [request for _, request in script.calls] == [
        {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]},
        {"SubnetIds": ["s-b", "s-c", "s-a"]},
    ]
    cloud, _ = cloud_of(describe_subnets={"Subnets": []})
    error, _ = played(raised(network.subnets(cloud, [])))
    assert isinstance(error, AwsError)
    assert (error.kind, error.code) == (ErrorKind.REFUSED, "Subnet")


def test_security_groups_are_read_with_all_of_their_rules() -> None:
    permission = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 23,
        "IpRanges": [{"CidrIp": "10.0.0.0/8"}],
        "Ipv6Ranges": [{"CidrIpv6": "::/0"}],
        "UserIdGroupPairs": [{"GroupId": "sg-2"}, {"UserId": "1"}],
        "PrefixListIds": [{"PrefixListId": "pl-1"}],
    }
    rows = [
        {
            "GroupId": "sg-1",
            "GroupName": "mine",
            "VpcId": "vpc-1",
            "IpPermissions": [permission, {"IpProtocol": -1}],
        },
        {"GroupId": "sg-3"},
    ]
    cloud, script = cloud_of(describe_security_groups={"SecurityGroups": rows})
    found, _ = played(network.groups(cloud, ["sg-1", "sg-3"], "vpc-1"))
    ssh = Rule("tcp", 22, 23, ("10.0.0.0/8", "::/0"), ("sg-2",), ("pl-1",))
    everything = Rule("-1", None, None, (), ())
    assert found == [
        SecurityGroup("sg-1", "mine", "vpc-1", (ssh, everything)),
        SecurityGroup("sg-3", "", "", ()),
    ]
    assert (ssh.protocol, everything.protocol) == ("tcp", "-1")
    assert [port for port in range(20, 26) if ssh.takes_tcp(port)] == [22, 23]
    assert everything.takes_tcp(1)
    assert Rule("6", None, None, (), ()).takes_tcp(1)
    assert Rule("tcp", 22, None, (), ()).takes_tcp(1)
    assert Rule("tcp", None, 22, (), ()).takes_tcp(99)
    assert not Rule("udp", 22, 22, (), ()).takes_tcp(22)
    played(network.groups(cloud, [], "vpc-9"))
    assert [request for _, request in script.calls] == [
        {"GroupIds": ["sg-1", "sg-3"]},
        {
            "Filters": [
                {"Name": "vpc-id", "Values": ["vpc-9"]},
                {"Name": "group-name", "Values": ["default"]},
            ]
        },
    ]


def test_types_have_the_zones_that_offer_them() -> None:
    rows = [
        {"InstanceType": "p3.2xlarge", "Location": "us-east-1b"},
        {"InstanceType": "p3.2xlarge", "Location": "us-east-1a"},
        {"InstanceType": "other", "Location": "us-east-1a"},
    ]
    cloud, script = cloud_of(
        describe_instance_type_offerings={"InstanceTypeOfferings": rows},
    )
    zones, _ = played(network.offers(cloud, ["p3.2xlarge", "p9"]))
    assert zones == {
        "p3.2xlarge": {"us-east-1a", "us-east-1b"},
        "p9": set(),
        "other": {"us-east-1a"},
    }
    assert script.calls == [
        (
            "describe_instance_type_offerings",
            {
                "LocationType": "availability-zone",
                "Filters": [{"Name": "instance-type", "Values": ["p3.2xlarge", "p9"]}],
            },
        ),
    ]


@pytest.mark.parametrize(
    "work",
    [
        lambda cloud: network.groups(cloud, [], "v"),
        lambda cloud: network.offers(cloud, ["p3"]),
        policy.has_spot_role,
    ],
)
def test_checks_have_patience_for_a_quarter_of_a_minute(work: Any) -> None:
    cloud, script = cloud_of(
        describe_security_groups=BUSY,
        describe_instance_type_offerings=BUSY,
        get_role=BUSY,
    )
    played(raised(work(cloud)))
    assert script.times[-2] <= 15.0 < script.times[-1]


def test_images_are_looked_up_by_id_or_by_parameter() -> None:
    disks = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 60}},
        {"DeviceName": "/dev/sdb", "Ebs": {}},
        {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
    ]
    full = {
        "ImageId": "ami-1",
        "Name": "mine",
        "Architecture": "arm64",
        "RootDeviceName": "/dev/sda1",
        "RootDeviceType": "ebs",
        "State": "available",
        "BlockDeviceMappings": disks,
    }
    cloud, script = cloud_of(
        describe_images=[{"Images": [full]}, {"Images": [{"ImageId": "ami-2"}]}],
        get_parameter=[
            {"Parameter": {"Value": " ami-2\n"}},
            {"Parameter": {"Value": json.dumps({"image_id": "ami-3"})}},
            {"Parameter": {"Value": json.dumps({})}},
        ],
    )
    found, _ = played(images.resolve(cloud, "ami-1"))
    assert found == images.Image(
        "ami-1", "mine", "arm64", "/dev/sda1", (("/dev/sda1", 60), ("/dev/sdb", 0))
    )
    found, _ = played(images.resolve(cloud, "ssm:/a/b"))
    assert found == images.Image("ami-2", "", "", "/dev/xvda", ())
    played(images.resolve(cloud, "ssm:/a/b"))
    error, _ = played(raised(images.resolve(cloud, "ssm:/a/b")))
    assert isinstance(error, AwsError)
    assert "holds no image id" in str(error)
    assert script.calls == [
        ("describe_images", {"ImageIds": ["ami-1"]}),
        ("get_parameter", {"Name": "/a/b"}),
        ("describe_images", {"ImageIds": ["ami-2"]}),
        ("get_parameter", {"Name": "/a/b"}),
        ("describe_images", {"ImageIds": ["ami-3"]}),
        ("get_parameter", {"Name": "/a/b"}),
    ]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "there is no image ami-1 in us-east-1"),
        ([{"ImageId": "ami-1", "State": "pending"}], "the image ami-1 is pending"),
        ([{"ImageId": "ami-1", "RootDeviceType": "instance-store"}], "has no EBS root disk"),
    ],
)
def test_an_image_that_cannot_be_started_starts_nothing(rows: Any, why: str) -> None:
    cloud, _ = cloud_of(describe_images={"Images": rows})
    error, _ = played(raised(images.resolve(cloud, "ami-1")))
    assert isinstance(error, AwsError)
    assert str(error).startswith("nothing was started: ")
    assert why in str(error)
    assert (error.kind, error.code) == (ErrorKind.REFUSED, "Image")


def test_types_are_read_field_by_field() -> None:
    gpus = [
        {"Name": "A100", "Count": 4, "MemoryInfo": {"SizeInMiB": 40960}},
        {"Name": "T4", "Count": 2, "MemoryInfo": {"SizeInMiB": 1}},
    ]
    rows = [
        {
            "InstanceType": "x1.large",
            "VCpuInfo": {"DefaultVCpus": 12},
            "MemoryInfo": {"SizeInMiB": 1000},
            "GpuInfo": {"Gpus": gpus},
            "ProcessorInfo": {"SupportedArchitectures": ["arm64"]},
        },
        {
            "InstanceType": "m5.large",
            "VCpuInfo": {"DefaultVCpus": 2},
            "MemoryInfo": {"SizeInMiB": 8},
        },
    ]
    cloud, script = cloud_of(describe_instance_types={"InstanceTypes": rows})
    found, _ = played(types.describe(cloud, ["m5.large", "x1.large"]))
    assert found == [
        Ec2Type("m5.large", 0, "", 2),
        Ec2Type("x1.large", 6, "A100", 12, ("arm64",)),
    ]
    assert found[0].architectures == ("x86_64",)
    assert script.calls[0][1] == {
        "Filters": [{"Name": "instance-type", "Values": ["m5.large", "x1.large"]}]
    }
    error, _ = played(raised(types.describe(cloud, ["x1.large", "p9.a", "p9.b"])))
    assert isinstance(error, AwsError)
    assert "us-east-1 has no instance type p9.a, p9.b;" in str(error)
    assert (error.kind, error.code) == (ErrorKind.REFUSED, "InvalidInstanceType")


OLD_TYPES = """
p3.2xlarge     1  16  V100   8   61
p3.8xlarge     4  16  V100  32  244
p3.16xlarge    8  16  V100  64  488
p3dn.24xlarge  8  32  V100  96  768
p2.xlarge      1  12  K80    4   61
p2.8xlarge     8  12  K80   32  488
p2.16xlarge   16  12  K80   64  732
"""
"""Type, GPUs, GiB of each, their name, vCPUs, GiB: aws.amazon.com/ec2/instance-types."""


def test_types_that_ec2_lists_no_more_are_as_aws_s_page_has_them() -> None:
    cells = [line.split() for line in OLD_TYPES.split("\n") if line]
    known, _ = played(
        types.describe(
            cloud_of(describe_instance_types={"InstanceTypes": []})[0], [c[0] for c in cells]
        )
    )
    assert [
        (
            k.name,
            str(k.gpus),
            k.gpu,
            str(k.vcpus),
        )
        for k in known
    ] == [(n, g, name, cpus) for n, g, _, name, cpus, _ in cells]


# ------------------------------------------------------------ rights, quotas, prices


def test_the_permission_that_a_refusal_names_is_the_one_that_is_lacking() -> None:
    text = "You are not authorized to perform: ec2:CreateTags on resource: x"
    assert denied_action(text, "ec2:RunInstances") == "ec2:CreateTags"
    assert denied_action("no", "ec2:RunInstances") == "ec2:RunInstances"


def test_whether_the_account_has_the_role_for_spot() -> None:
    cloud, script = cloud_of(get_role=[{}, refusal("NoSuchEntity", 404), DENIED])
    assert played(policy.has_spot_role(cloud))[0] is True
    assert played(policy.has_spot_role(cloud))[0] is False
    error, _ = played(raised(policy.has_spot_role(cloud)))
    assert isinstance(error, AwsError)
    assert error.kind is ErrorKind.DENIED
    assert script.calls == [("get_role", {"RoleName": "AWSServiceRoleForEC2Spot"})] * 3


def test_a_dry_run_says_why_a_call_would_be_refused() -> None:
    answers = [
        {},
        refusal("DryRunOperation", 412),
        refusal("InvalidInstanceID.NotFound", 400),
        DENIED,
        refusal("InvalidAMIID.NotFound", 400),
    ]
    cloud, script = cloud_of(terminate_instances=answers)
    found = [
        played(policy.dry_run(cloud, "terminate_instances", InstanceIds=["i-0"]))[0]
        for _ in range(5)
    ]
    assert found[:3] == [None, None, None]
    assert [error.code for error in found[3:] if error] == [
        "UnauthorizedOperation",
        "InvalidAMIID.NotFound",
    ]
    asked = {"DryRun": True, "InstanceIds": ["i-0"]}
    assert script.calls == [("terminate_instances", asked)] * 5


P3, G4 = (
    Ec2Type("p3.8xlarge", 4, "", 32),
    Ec2Type("g4dn.xlarge", 1, "", 4),
)


def running(*types_and_spot: tuple[str, bool]) -> dict[str, Any]:
    """The answer about these instances."""
    rows = [
        row(f"i-{n}", 0, InstanceType=name, **({"InstanceLifecycle": "spot"} if spot else {}))
        for n, (name, spot) in enumerate(types_and_spot)
    ]
    return {"Reservations": [{"Instances": rows}]}


def quota(vcpus: float) -> dict[str, Any]:
    """The answer about a quota."""
    return {"Quota": {"Value": vcpus}}


def test_a_quota_is_what_it_allows_beside_what_runs_already() -> None:
    there = running(
        ("p3.8xlarge", False), ("p3.8xlarge", True), ("p2.xlarge", False), ("g4dn.xlarge", False)
    )
    cloud, script = cloud_of(
        get_service_quota=quota(100.0),
        describe_instances=there,
        describe_instance_types={"InstanceTypes": []},
    )
    got, _ = played(quotas.check(cloud, P3, "on-demand", 2))
    called = "the vCPU quota for on-demand P instances in us-east-1 (L-417A185B) is 100"
    assert got == Quota(True, f"{called}, of which 36 are in use, enough for 2 p3.8xlarge", 2, 64)
    got, _ = played(quotas.check(cloud, P3, "on-demand", 3))
    assert got == Quota(
        False,
        f"{called}, of which 36 are in use; 3 p3.8xlarge need 96, and it allows 2. Ask for more: "
        "aws service-quotas request-service-quota-increase --region us-east-1 --service-code ec2 "
        "--quota-code L-417A185B --desired-value 132",
        2,
        64,
    )
    got, _ = played(quotas.check(cloud, P3, "spot", 1))
    assert (got.enough, got.instances, got.free) == (True, 2, 68)
    assert script.calls[0] == (
        "get_service_quota",
        {"ServiceCode": "ec2", "QuotaCode": "L-417A185B"},
    )
    assert script.calls[1][1]["Filters"] == [
        {"Name": "instance-state-name", "Values": ["pending", "running"]}
    ]
    assert script.calls[2][1]["Filters"] == [
        {"Name": "instance-type", "Values": ["p2.xlarge", "p3.8xlarge"]}
    ]


def test_a_quota_with_nothing_in_use_and_one_that_is_overdrawn() -> None:
    cloud, script = cloud_of(get_service_quota=quota(32), describe_instances=running())
    got, _ = played(quotas.check(cloud, P3, "on-demand", 1))
    assert (got.enough, got.instances, got.free) == (True, 1, 32)
    assert "in use" not in got.text
    assert "describe_instance_types" not in script.operations
    cloud, _ = cloud_of(
        get_service_quota=quota(16),
        describe_instances=running(("p3.8xlarge", False)),
        describe_instance_types={"InstanceTypes": []},
    )
    got, _ = played(quotas.check(cloud, P3, "on-demand", 1))
    assert (got.enough, got.instances, got.free) == (False, 0, 0)


def test_a_quota_that_cannot_be_read_stops_nothing() -> None:
    cloud, script = cloud_of(get_service_quota=BUSY)
    got, _ = played(quotas.check(cloud, P3, "on-demand", 1))
    assert (got.enough, got.instances) == (None, None)
    assert "could not be read, so it was not checked" in got.text
    assert script.times[-2] <= 10.0 < script.times[-1]
    cloud, script = cloud_of(get_service_quota=quota(64), describe_instances=BUSY)
    got, _ = played(quotas.check(cloud, P3, "on-demand", 2))
    assert (got.enough, got.instances) == (None, None)
    assert script.times[-2] <= 10.0 < script.times[-1]


def test_quotas_of_several_types_are_used_in_order_of_preference() -> None:
    p3, small, g4 = Quota(False, "a", 1, 40), Quota(True, "a", 10, 40), Quota(False, "b", 1, 4)
    p2 = Ec2Type("p2.xlarge", 1, "", 4)
    both = [(P3, p3), (p2, small), (G4, g4)]
    assert quotas.together(both, "on-demand", 4) == Quota(True, "a\nb", 4)
    assert quotas.together(both, "on-demand", 5) == Quota(False, "a\nb", 4)
    unknown = Quota(None, "?")
    assert quotas.together([(P3, p3), (G4, unknown)], "on-demand", 1) is unknown
    cloud, _ = cloud_of(get_service_quota=quota(36), describe_instances=running())
    got, _ = played(quotas.check_all(cloud, [P3, G4], "on-demand", 10))
    assert (got.enough, got.instances) == (True, 1 + 9)


def product(*prices_and_units: tuple[str, str]) -> str:
    """A product as the price list has it."""
    dimensions = {
        str(n): {"unit": unit, "pricePerUnit": {"USD": usd}}
        for n, (usd, unit) in enumerate(prices_and_units)
    }
    return json.dumps({"terms": {"OnDemand": {"x": {"priceDimensions": dimensions}}}})


def test_a_price_is_the_highest_by_the_hour_and_kept_for_a_day(tmp_path: Path) -> None:
    rows = [
        product(("1.5", "Hrs"), ("9.0", "Quantity"), ("0.0", "Hrs")),
        product(("2.5", "Hrs")),
        "{}",
    ]
    cloud, script = cloud_of(
        get_products=[
            {"PriceList": rows, "NextToken": "more"},
            {"PriceList": [json.loads(product(("2.0", "Hrs")))]},
            {"PriceList": []},
        ]
    )
    price, _ = played(prices.on_demand(cloud, "p3.2xlarge"))
    assert price == Price(2.5, "price list", EPOCH)
    assert str(price) == "$2.5000/h (AWS price list, 2027-01-15)"
    assert cloud.asked == [("pricing", "us-east-1")] * 2
    filters = {one["Field"]: one["Value"] for one in script.calls[0][1].pop("Filters")}
    assert filters == {
        "instanceType": "p3.2xlarge",
        "regionCode": "us-east-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    assert script.calls[0][1] == {"ServiceCode": "AmazonEC2", "MaxResults": 100}
    error, _ = played(raised(prices.on_demand(cloud, "p9")))
    assert isinstance(error, AwsError)
    assert (error.kind, error.code) == (ErrorKind.GONE, "NoPrice")


def test_the_price_of_spot_is_the_latest_of_each_zone_and_the_highest_of_them() -> None:
    def at(zone: str, usd: str, when: float) -> dict[str, Any]:
        moment = datetime.fromtimestamp(when, UTC)
        return {"AvailabilityZone": zone, "SpotPrice": usd, "Timestamp": moment}

    rows = [at("a", "1.0", 30), at("a", "9.0", 10), at("b", "2.0", 5), at("c", "3.0", 5)]
    cloud, script = cloud_of(describe_spot_price_history={"SpotPriceHistory": rows})
    price, _ = played(prices.spot(cloud, "p3.2xlarge"))
    assert (price.usd_per_h, price.source) == (3.0, "spot history")
    request = script.calls[0][1]
    assert request.pop("StartTime") == request.pop("EndTime")
    assert request == {
        "InstanceTypes": ["p3.2xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
    }
    cloud, _ = cloud_of(describe_spot_price_history={"SpotPriceHistory": []})
    error, _ = played(raised(prices.spot(cloud, "p3.2xlarge")))
    assert isinstance(error, AwsError)
    assert "no spot price of p3.2xlarge in us-east-1" in str(error)
    assert (error.kind, error.code) == (ErrorKind.GONE, "NoPrice")


# ------------------------------------------------------------ images that are made

WANTED = ("i-1", "seerd-x", "with torch", {"seerd:run": "b1", "team": "v"})
ASKED = {
    "InstanceId": "i-1",
    "Name": "seerd-x",
    "Description": "with torch",
    "TagSpecifications": [
        {
            "ResourceType": kind,
            "Tags": [{"Key": "seerd:run", "Value": "b1"}, {"Key": "team", "Value": "v"}],
        }
        for kind in ("image", "snapshot")
    ],
}
BY_RUN = {"Owners": ["self"], "Filters": [{"Name": "tag:seerd:run", "Values": ["b1"]}]}


def made(state: str, *disks: str, **more: Any) -> dict[str, Any]:
    """An image as DescribeImages tells of it."""
    mappings = [{"Ebs": {"SnapshotId": name}} for name in disks]
    mappings += [{"Ebs": {}}, {"VirtualName": "x"}]  # type: ignore[list-item]
    return {"ImageId": "ami-1", "State": state, "BlockDeviceMappings": mappings, **more}


def test_an_image_is_made_once_and_looked_for_where_the_answer_was_lost() -> None:
    cloud, script = cloud_of(
        create_image=[BUSY, {"ImageId": "ami-1"}, BROKEN],
        describe_images=[{"Images": []}, {"Images": [made("pending")]}],
    )
    assert played(images.create(cloud, *WANTED)) == ("ami-1", pytest.approx(0.2))
    assert script.calls == [
        ("create_image", ASKED),
        ("describe_images", BY_RUN),
        ("create_image", ASKED),
    ]
    assert played(images.create(cloud, *WANTED)) == ("ami-1", pytest.approx(0.2))
    assert script.operations[3:] == ["create_image", "describe_images"]
    cloud, script = cloud_of(create_image=DENIED)
    error, at = played(raised(images.create(cloud, *WANTED)))
    assert isinstance(error, AwsError)
    assert (at, script.operations) == (0.0, ["create_image"])


def test_an_image_that_cannot_be_made_is_given_up_after_two_minutes() -> None:
    cloud, script = cloud_of(create_image=BROKEN, describe_images={"Images": []})
    error, at = played(raised(images.create(cloud, *WANTED)))
    assert isinstance(error, AwsError)
    tries = [
        when
        for when, of in zip(script.times, script.operations, strict=True)
        if of == "create_image"
    ]
    assert tries[-2] <= 120.0 < tries[-1] == at < 131.0


def test_an_image_is_waited_for_and_its_state_told_once() -> None:
    pending = made("pending", "snap-1", "snap-2", Name="seerd-x")
    done = made("available", "snap-1", "snap-2", Name="seerd-x", StateReason={"Message": "ok"})
    told: list[str] = []
    cloud, script = cloud_of(
        describe_images=[
            {"Images": []},
            {"Images": [made("pending")]},
            *[{"Images": [pending]}] * 3,
            {"Images": [done]},
        ],
    )
    image, at = played(images.wait(cloud, "ami-1", 60.0, told.append))
    assert image == MadeImage("ami-1", "seerd-x", "available", "ok", ("snap-1", "snap-2"))
    assert told == ["the image ami-1 is pending"]
    assert at == pytest.approx(sum(0.2 * 1.5**n for n in range(5)))
    by_id = {"Owners": ["self"], "Filters": [{"Name": "image-id", "Values": ["ami-1"]}]}
    assert script.calls[0] == ("describe_images", by_id)


def test_an_image_is_looked_at_every_ten_seconds_until_its_time_is_up() -> None:
    cloud, script = cloud_of(describe_images={"Images": [made("pending")]})
    error, at = played(raised(images.wait(cloud, "ami-1", 100.0, lambda text: None)))
    assert isinstance(error, AwsError)
    assert str(error) == "the image ami-1 was not available after 100s"
    assert (error.kind, error.code) == (ErrorKind.UNCLEAR, "Image")
    gaps = [later - before for before, later in zip(script.times, script.times[1:], strict=False)]
    assert gaps == pytest.approx([min(10.0, 0.2 * 1.5**n) for n in range(len(gaps))])
    assert script.times[-2] <= 100.0 < at == script.times[-1]


@pytest.mark.parametrize("state", ["failed", "error", "invalid", "deregistered"])
def test_an_image_that_failed_is_not_waited_for(state: str) -> None:
    for more, why in (({}, "AWS does not say why"), ({"StateReason": {"Message": "disk"}}, "disk")):
        cloud, _ = cloud_of(describe_images={"Images": [made(state, **more)]})
        error, at = played(raised(images.wait(cloud, "ami-1", 60.0, lambda text: None)))
        assert isinstance(error, AwsError)
        assert (str(error), at) == (f"the image ami-1 is {state}: {why}", 0.0)
        assert (error.kind, error.code) == (ErrorKind.REFUSED, "Image")


def test_an_image_is_removed_with_its_snapshots_though_some_are_gone() -> None:
    gone = refusal("InvalidSnapshot.NotFound", 400)
    cloud, script = cloud_of(
        describe_images={"Images": [made("available", "snap-2", Name="n")]},
        describe_snapshots={"Snapshots": [{"SnapshotId": "snap-3"}, {"SnapshotId": "snap-1"}]},
        deregister_image=refusal("InvalidAMIID.Unavailable", 400),
        delete_snapshot=[{}, gone, {}],
    )
    removed, _ = played(images.remove(cloud, "b1"))
    assert removed == ["ami-1", "snap-1", "snap-2", "snap-3"]
    assert script.calls == [
        ("describe_images", BY_RUN),
        ("describe_snapshots", {"OwnerIds": ["self"], "Filters": BY_RUN["Filters"]}),
        ("deregister_image", {"ImageId": "ami-1"}),
        *(("delete_snapshot", {"SnapshotId": f"snap-{n}"}) for n in (1, 2, 3)),
    ]
    cloud, script = cloud_of(
        describe_images={"Images": [made("available", Name="n")]},
        describe_snapshots={"Snapshots": []},
        deregister_image=DENIED,
    )
    error, _ = played(raised(images.remove(cloud, "b1")))
    assert isinstance(error, AwsError)
    assert error.kind is ErrorKind.DENIED
    assert played(images.named(cloud, "n"))[0] == [MadeImage("ami-1", "n", "available", "", ())]
    assert script.calls[-1][1] == {
        "Owners": ["self"],
        "Filters": [{"Name": "name", "Values": ["n"]}],
    }
