"""What AWS is asked beside instances: whose it is, prices of spot, types that it no longer lists,
what was left behind, errors in words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore import exceptions as boto
from hypothesis import given
from hypothesis import strategies as st

from seerd.aws import identity, images, prices, quotas, types
from seerd.aws.cloud import LONGEST_S, Bucket, Cloud, longest_wait_s
from seerd.aws.errors import AwsError, ErrorKind, explained, kind_of
from seerd.aws.images import Image
from seerd.backends.ec2.sweeping import Ec2Sweeper
from seerd.errors import CloudError
from tests.aws.front import REGION, Fault, Front, front
from tests.aws.kit import linux

ME = "arn:aws:iam::123456789012:user/me"


def play(moto: str, scenario: Callable[[Front, Cloud], Awaitable[None]]) -> None:
    async def run() -> None:
        async with front(moto) as there, Cloud(REGION) as cloud:
            await scenario(there, cloud)

    asyncio.run(run())


def tags(**values: str) -> list[dict[str, str]]:
    return [{"Key": f"seerd:{key}", "Value": value} for key, value in values.items()]


def test_the_owner_is_who_the_credentials_are(moto: str) -> None:
    async def scenario(there: Front, cloud: Cloud) -> None:
        assert (await identity.caller(cloud)).startswith("arn:aws:")

    play(moto, scenario)


def test_a_sweep_finds_and_removes_what_is_this_owners_and_seerds_alone(moto: str) -> None:
    async def scenario(there: Front, cloud: Cloud) -> None:
        ec2 = there.client("ec2")

        def start(*pairs: dict[str, str]) -> str:
            kinds = (
                [{"ResourceType": kind, "Tags": list(pairs)} for kind in ("instance", "volume")]
                if pairs
                else []
            )
            rows = ec2.run_instances(
                ImageId=linux(there), MinCount=1, MaxCount=1, TagSpecifications=kinds
            )["Instances"]
            return str(rows[0]["InstanceId"])

        mine = start(*tags(run="r1", owner=ME, name="digits"))
        others = {
            start(*tags(run="r2", owner="arn:aws:iam::1:user/you")),
            start(*tags(run="r2", owner=f"{ME}/somebody-else")),
            start(*tags(owner=ME)),
            start(),
        }
        spec = [{"ResourceType": "volume", "Tags": tags(run="r1", owner=ME)}]
        disk = ec2.create_volume(AvailabilityZone="us-east-1a", Size=8, TagSpecifications=spec)[
            "VolumeId"
        ]
        found = (await Ec2Sweeper.find(cloud, ME)).left
        assert {left.id for left in found} == {mine, disk}
        assert all(
            0.0 <= left.age_s < 60.0 and left.run == "r1" and "r1" in str(left) for left in found
        )
        for left in [*found, *found]:
            await Ec2Sweeper.remove(cloud, left)
        assert (await Ec2Sweeper.find(cloud, ME)).left == []
        assert there.alive() == others

    play(moto, scenario)


def test_a_star_in_the_path_of_an_owner_stands_for_itself(moto: str) -> None:
    async def scenario(there: Front, cloud: Cloud) -> None:
        owners = [f"arn:aws:iam::123456789012:user/{path}/me" for path in ("*", "somebody")]
        for one in owners:
            pairs = [{"ResourceType": "instance", "Tags": tags(run="r1", owner=one)}]
            there.client("ec2").run_instances(
                ImageId=linux(there), MinCount=1, MaxCount=1, TagSpecifications=pairs
            )
        assert len((await Ec2Sweeper.find(cloud, owners[0])).left) == 1

    play(moto, scenario)


def test_a_price_of_spot_is_the_highest_where_it_may_be_launched(moto: str) -> None:
    async def scenario(there: Front, cloud: Cloud) -> None:
        price = await prices.spot(cloud, "g4dn.12xlarge")
        assert price.source == "spot history"
        assert price.usd_per_h > 0.0
        assert abs(price.at - time.time()) < 60
        with pytest.raises(CloudError, match="no spot price"):
            await prices.spot(cloud, "mars.12xlarge")

    play(moto, scenario)


def test_types_come_from_ec2_or_from_the_table_and_a_wrong_one_is_told(moto: str) -> None:
    async def scenario(there: Front, cloud: Cloud) -> None:
        old, new = await types.describe(cloud, ["p3.8xlarge", "g4dn.12xlarge"])
        assert (old.gpus, old.gpu, old.vcpus) == (4, "V100", 32)
        assert (new.gpus, new.gpu, new.vcpus) == (4, "T4", 48)
        with pytest.raises(CloudError, match=r"p9\.huge"):
            await types.describe(cloud, ["p3.8xlarge", "p9.huge"])

    play(moto, scenario)


def kind(name: str) -> types.Ec2Type:
    return types.Ec2Type(name, 8, "", 96)


def test_each_family_has_its_quota() -> None:
    assert quotas.code_of("p3.8xlarge", "on-demand") == ("P", "L-417A185B")
    assert quotas.code_of("p4d.24xlarge", "spot") == ("P", "L-7212CCBC")
    assert quotas.code_of("p5.48xlarge", "spot") == ("P", "L-C4BD4855")
    assert quotas.code_of("g4dn.12xlarge", "spot")[0] == "G and VT"
    assert quotas.code_of("inf2.xlarge", "on-demand")[0] == "Inf"
    assert quotas.code_of("m5.large", "on-demand")[0] == "Standard"


def answer(code: str, status: int = 400, message: str = "m") -> boto.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return boto.ClientError(response, "RunInstances")


def test_a_lack_of_capacity_is_told_apart_from_a_failure_of_the_server() -> None:
    assert kind_of("InsufficientInstanceCapacity", 500) is ErrorKind.CAPACITY
    assert kind_of("RequestLimitExceeded", 503) is ErrorKind.THROTTLED
    assert kind_of("SomethingNew", 503) is ErrorKind.UNCLEAR
    assert kind_of("SomethingNew", 429) is ErrorKind.THROTTLED
    assert kind_of("SomethingNew", 400) is ErrorKind.UNKNOWN
    assert kind_of("InvalidParameterValue", 400) is ErrorKind.REFUSED


def test_a_first_spot_request_that_may_not_make_its_role_says_how_to_have_it_made() -> None:
    code = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    error = explained(answer(code, 403, "The provided credentials do not have permission"), "x")
    assert error.kind is ErrorKind.DENIED
    assert "aws iam create-service-linked-role --aws-service-name spot" in str(error)


def test_a_denied_call_is_told_without_its_encoded_blob() -> None:
    error = explained(
        answer(
            "UnauthorizedOperation",
            403,
            "You may not. Encoded authorization failure message: QUJD" * 9,
        ),
        "RunInstances",
    )
    assert error.kind is ErrorKind.DENIED
    assert "QUJD" not in str(error)
    assert "seerd doctor" in str(error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (boto.EndpointConnectionError(endpoint_url="http://x"), ErrorKind.THROTTLED),
        (boto.ReadTimeoutError(endpoint_url="http://x"), ErrorKind.UNCLEAR),
        (boto.ConnectionClosedError(endpoint_url="http://x"), ErrorKind.UNCLEAR),
        (boto.NoCredentialsError(), ErrorKind.CREDENTIALS),
        (boto.NoRegionError(), ErrorKind.CREDENTIALS),
        (boto.ParamValidationError(report="x"), ErrorKind.REFUSED),
        (ConnectionResetError("gone"), ErrorKind.UNCLEAR),
    ],
)
def test_what_never_arrived_is_told_apart_from_what_may_have_been_done(
    error: Exception, expected: ErrorKind
) -> None:
    assert explained(error, "RunInstances").kind is expected


@given(code=st.text(), status=st.integers(0, 599), message=st.text(max_size=2000))
def test_whatever_aws_says_there_is_a_message_of_a_decent_length(
    code: str, status: int, message: str
) -> None:
    error = explained(answer(code, status, message), "RunInstances")
    assert isinstance(error, AwsError)
    assert len(str(error)) < 1000 + len(code)


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=200))
def test_repetitions_keep_to_their_rate_however_many_ask(gaps: list[float]) -> None:
    retries, now, starts = Bucket(5.0, 2.0), 0.0, []
    for gap in gaps:
        now += gap
        starts.append(now + retries.take(now))
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert last - first + 1 <= 5.0 + 2.0 * (starts[last] - starts[first]) + 1.0 + 1e-6


def test_waits_grow_and_end_growing() -> None:
    waits = [longest_wait_s(failures) for failures in range(1, 50)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_S


def test_what_aws_is_too_busy_for_is_asked_again_and_what_it_refuses_is_not(moto: str) -> None:
    async def scenario(there: Front, cloud: Cloud) -> None:
        left = [Fault("RequestLimitExceeded"), Fault("InternalError"), Fault("")]
        there.fault = lambda action, params: left.pop() if left else None
        assert "Images" in await cloud.ask("ec2", "describe_images", Owners=["self"])
        assert there.count()["DescribeImages"] == 4
        there.fault = lambda action, params: Fault("UnauthorizedOperation")
        with pytest.raises(CloudError, match="do not permit"):
            await cloud.ask("ec2", "describe_images", Owners=["self"])
        assert there.count()["DescribeImages"] == 5

    play(moto, scenario)


def test_an_image_whose_driver_does_not_know_the_gpus_is_refused() -> None:
    """AWS's Deep Learning images drive G4dn and newer."""
    name = "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.9 (Ubuntu 24.04) 20260103"
    image = Image("ami-1", name, "x86_64", "/dev/sda1", ())
    images.check(image, ["g4dn.xlarge", "g6e.12xlarge", "p5.48xlarge"])
    with pytest.raises(AwsError, match=r"no driver for the GPUs of p3\.8xlarge; name others"):
        images.check(image, ["g5.12xlarge", "p3.8xlarge"])
    images.check(replace(image, name="mine"), ["p3.8xlarge"])
