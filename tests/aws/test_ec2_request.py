"""The request for an instance: a function of run, launch and place alone, so that a launch that is
tried again is the same one for EC2.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seerd.aws.images import Image
from seerd.backends.ec2.request import (
    Candidate,
    Ec2Settings,
    client_token,
    run_instances,
    tags,
)

PLACE = Candidate("g4dn.12xlarge", "subnet-1", "us-east-1a")
SETTINGS = Ec2Settings(
    run="2026-11-20-a",
    name="digits",
    owner="arn:aws:iam::123456789012:user/me",
    region="us-east-1",
    instance_types=("g4dn.12xlarge",),
    gpus=4,
    market="spot",
    image="ami-1",
    volume_gb=100,
    hard_end=1_800_000_000.0,
    boot_s=30.0,
    keys=Path("keys"),
)


def test_a_launch_has_the_token_that_it_had_in_every_earlier_process() -> None:
    """EC2 knows a repeated launch by nothing else: a version of seerd that made another token would
    launch twice what is under way.
    """
    known = "seerd-6a41238af7545d857f0cd4fb25073b0a8d1ed57c846cc9e52abf8419a0"
    assert client_token("2026-11-20-a", "1.0", PLACE) == known


@pytest.mark.parametrize(
    ("run", "token", "place"),
    [
        ("2026-11-20-b", "1.0", PLACE),
        ("2026-11-20-a", "2.0", PLACE),
        ("2026-11-20-a1", ".0", PLACE),
        ("2026-11-20-a", "1.0", replace(PLACE, type="p3.8xlarge")),
        ("2026-11-20-a", "1.0", replace(PLACE, subnet="subnet-2")),
    ],
)
def test_no_other_launch_has_its_token(run: str, token: str, place: Candidate) -> None:
    assert client_token(run, token, place) != client_token("2026-11-20-a", "1.0", PLACE)
    assert len(client_token(run, token, place)) == 64


def test_the_same_launch_is_the_same_request(image: Image) -> None:
    first, again = (run_instances(SETTINGS, "1.0", PLACE, image, "#!/bin/sh") for _ in range(2))
    assert first == again
    assert first["ClientToken"] == client_token(SETTINGS.run, "1.0", PLACE)


def test_an_instance_is_one_that_ends_with_its_power_and_takes_its_disks_along(
    image: Image,
) -> None:
    request = run_instances(SETTINGS, "1.0", PLACE, image, "")
    assert (request["MinCount"], request["MaxCount"]) == (1, 1)
    assert "IamInstanceProfile" not in request  # it would give scripts credentials of AWS
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    disks = {disk["DeviceName"]: disk["Ebs"] for disk in request["BlockDeviceMappings"]}
    assert {device: ebs["VolumeSize"] for device, ebs in disks.items()} == {
        "/dev/sda1": 100,
        "/dev/sdb": 20,
    }
    assert all(ebs["DeleteOnTermination"] and ebs["Encrypted"] for ebs in disks.values())


def test_everything_that_a_launch_makes_bears_our_tags_whatever_the_users_are(image: Image) -> None:
    theirs = {
        "seerd:run": "another",
        "seerd:owner": "nobody",
        "seerd:command": "9.9",
        "team": "vision",
    }
    settings = replace(SETTINGS, tags=theirs)
    found = tags(settings, "1.0")
    assert found == theirs | {
        "Name": "seerd 2026-11-20-a",
        "seerd:run": "2026-11-20-a",
        "seerd:command": "1.0",
        "seerd:name": "digits",
        "seerd:owner": "arn:aws:iam::123456789012:user/me",
        "seerd:hard-end": "2027-01-15T08:00:00Z",
    }
    kinds = run_instances(settings, "1.0", PLACE, image, "")["TagSpecifications"]
    assert [kind["ResourceType"] for kind in kinds] == [
        "instance",
        "volume",
        "network-interface",
        "spot-instances-request",
    ]
    assert all({pair["Key"]: pair["Value"] for pair in kind["Tags"]} == found for kind in kinds)


@pytest.fixture
def image() -> Image:
    return Image("ami-1", "ours", "x86_64", "/dev/sda1", (("/dev/sda1", 8), ("/dev/sdb", 20)))


def test_disks_are_as_fast_as_the_person_says(image: Image) -> None:
    def disk(**changes: int) -> dict[str, object]:
        request = run_instances(replace(SETTINGS, **changes), "1.0", PLACE, image, "")
        return dict(request["BlockDeviceMappings"][0]["Ebs"])

    assert not {"Throughput", "Iops", "VolumeInitializationRate"} & set(disk())
    fast = disk(throughput=1000, load_rate=200)
    assert (fast["Throughput"], fast["Iops"]) == (1000, 4000)
    assert fast["VolumeInitializationRate"] == 200
    assert disk(throughput=250)["Iops"] == 3000
    assert disk(iops=9000) == disk() | {"Iops": 9000}
    assert disk(throughput=1000, iops=3500)["Iops"] == 4000
