"""The rig's EC2 refuses, forgets and hides what AWS does."""

from __future__ import annotations

import json
import time
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import client, launch, order, until

P_ON_DEMAND = "L-417A185B"


def refusal(call: Any, **asked: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**asked)
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"][
        "HTTPStatusCode"
    ]


def described(rig: Rig, **asked: Any) -> dict[str, dict[str, Any]]:
    pages = client(rig, "ec2").get_paginator("describe_instances").paginate(**asked)
    return {
        one["InstanceId"]: one
        for page in pages
        for each in page["Reservations"]
        for one in each["Instances"]
    }


def by(name: str, value: str) -> dict[str, Any]:
    return {"Filters": [{"Name": name, "Values": [value]}]}


def test_a_client_token_gives_the_same_instances_again(rig: Rig) -> None:
    rig.set_shutting_down(60)
    first = launch(rig, ClientToken="one", MaxCount=2)
    assert launch(rig, ClientToken="one", MaxCount=2) == first
    code, status = refusal(
        client(rig, "ec2").run_instances, **order(rig, ClientToken="one", MaxCount=3)
    )
    assert (code, status) == ("IdempotentParameterMismatch", 400)
    other = launch(rig, ClientToken="two", MaxCount=2)
    assert set(other).isdisjoint(first)
    assert set(described(rig, **by("client-token", "one"))) == set(first)
    client(rig, "ec2").terminate_instances(InstanceIds=first)
    again = client(rig, "ec2").run_instances(**order(rig, ClientToken="one", MaxCount=2))[
        "Instances"
    ]
    assert [(one["InstanceId"], one["State"]["Name"]) for one in again] == [
        (name, "shutting-down") for name in first
    ]


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound", 400),
        ({"ImageId": "ubuntu"}, "InvalidAMIID.Malformed", 400),
        ({"InstanceType": "p3.3xlarge"}, "InvalidParameterValue", 400),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound", 400),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound", 400),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound", 400),
        ({"MinCount": 3}, "InvalidParameterValue", 400),
        ({"UserData": "x" * 17000}, "InvalidParameterValue", 400),
        ({"DryRun": True}, "DryRunOperation", 412),
    ],
)
def test_what_aws_refuses_the_rig_refuses(
    rig: Rig, change: dict[str, Any], code: str, status: int
) -> None:
    assert refusal(client(rig, "ec2").run_instances, **order(rig, **change)) == (code, status)
    assert described(rig) == {}


def test_capacity_is_a_pool_of_a_type_in_a_zone_for_a_market(rig: Rig) -> None:
    rig.set_capacity("p3.8xlarge", "us-east-1a", 3)
    assert len(launch(rig, MaxCount=4)) == 3
    assert refusal(client(rig, "ec2").run_instances, **order(rig)) == (
        "InsufficientInstanceCapacity",
        500,
    )
    assert len(launch(rig, InstanceMarketOptions={"MarketType": "spot"})) == 1
    assert len(launch(rig, SubnetId=rig.subnets["us-east-1b"])) == 1
    client(rig, "ec2").terminate_instances(
        InstanceIds=list(described(rig, **by("availability-zone", "us-east-1a")))
    )
    assert len(launch(rig, MaxCount=4)) == 3


def test_quota_counts_vcpus_and_service_quotas_says_the_same(rig: Rig) -> None:
    rig.set_quota("P", 64)
    quotas = client(rig, "service-quotas")
    assert (
        quotas.get_service_quota(ServiceCode="ec2", QuotaCode=P_ON_DEMAND)["Quota"]["Value"] == 64.0
    )
    assert P_ON_DEMAND in {
        one["QuotaCode"] for one in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]
    }
    assert len(launch(rig, MaxCount=4)) == 2
    assert refusal(client(rig, "ec2").run_instances, **order(rig)) == ("VcpuLimitExceeded", 400)
    rig.set_quota("P", 0, market="spot")
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    assert (
        refusal(client(rig, "ec2").run_instances, **order(rig, **spot))[0]
        == "MaxSpotInstanceCountExceeded"
    )


def state(rig: Rig, name: str) -> str:
    return str(described(rig, InstanceIds=[name])[name]["State"]["Name"])


def test_a_new_id_may_not_be_known_yet(rig: Rig) -> None:
    ec2 = client(rig, "ec2")
    rig.set_boot(hidden_s=60)
    (hidden,) = launch(rig)
    assert refusal(ec2.describe_instances, InstanceIds=[hidden]) == (
        "InvalidInstanceID.NotFound",
        400,
    )
    assert refusal(ec2.terminate_instances, InstanceIds=[hidden]) == (
        "InvalidInstanceID.NotFound",
        400,
    )
    assert described(rig) == {}
    assert [one.id for one in rig.instances()] == [hidden]
    rig.set_boot(hidden_s=0.2)
    (found,) = launch(rig)
    until(lambda: found in described(rig))


def test_states_come_in_their_order(rig: Rig) -> None:
    ec2 = client(rig, "ec2")
    rig.set_boot(pending_s=60)
    rig.set_shutting_down(60)
    (early,) = launch(rig)
    assert state(rig, early) == "pending"
    ec2.terminate_instances(InstanceIds=[early])
    assert state(rig, early) == "shutting-down"
    assert rig.account()[early].billed_s(time.time()) == 0.0
    rig.set_boot()
    rig.set_shutting_down(0.1)
    (name,) = launch(rig)
    until(lambda: state(rig, name) == "running")
    ec2.terminate_instances(InstanceIds=[name])
    until(lambda: state(rig, name) == "terminated")
    gone = described(rig)[name]
    assert not {"PrivateIpAddress", "SubnetId", "VpcId"} & set(gone)
    assert gone["StateTransitionReason"].startswith("User initiated (")
    assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def test_an_instance_is_described_as_it_was_asked_for_and_its_volume_goes_with_it(rig: Rig) -> None:
    (name,) = launch(
        rig,
        InstanceMarketOptions={"MarketType": "spot"},
        BlockDeviceMappings=[
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {"VolumeSize": 50, "Encrypted": True, "VolumeType": "gp3"},
            }
        ],
        TagSpecifications=[
            {"ResourceType": kind, "Tags": [{"Key": "run", "Value": "r1"}]}
            for kind in ("instance", "volume")
        ],
    )
    found = described(rig, **by("tag:run", "r1"))[name]
    assert found["InstanceLifecycle"] == "spot"
    assert found["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert set(described(rig, **by("instance-lifecycle", "spot"))) == {name}
    ec2 = client(rig, "ec2")
    (volume,) = ec2.describe_volumes(**by("tag:run", "r1"))["Volumes"]
    assert (volume["Size"], volume["Encrypted"], volume["State"]) == (50, True, "in-use")
    ec2.terminate_instances(InstanceIds=[name])
    until(lambda: not ec2.describe_volumes(**by("tag:run", "r1"))["Volumes"])
    ec2.terminate_instances(InstanceIds=[name])


def test_the_account_is_exact(rig: Rig) -> None:
    before = time.time()
    (name,) = launch(rig)
    until(lambda: rig.account()[name].state == "running")
    client(rig, "ec2").terminate_instances(InstanceIds=[name])
    after = time.time()
    found = rig.account()[name]
    assert found.since is not None
    assert found.until is not None
    assert before < found.launched < found.since < found.until < after
    assert rig.calls["ec2:RunInstances"] == rig.calls["ec2:TerminateInstances"] == 1


def test_facts_and_prices(rig: Rig) -> None:
    (kind,) = client(rig, "ec2").describe_instance_types(InstanceTypes=["p3.8xlarge"])[
        "InstanceTypes"
    ]
    assert (kind["VCpuInfo"]["DefaultVCpus"], kind["GpuInfo"]["Gpus"][0]["Count"]) == (32, 4)
    asked = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in
             {"instanceType": "p3.8xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux", "tenancy": "Shared"}.items()]  # fmt: skip
    (text,) = client(rig, "pricing").get_products(ServiceCode="AmazonEC2", Filters=asked)[
        "PriceList"
    ]
    (term,) = json.loads(text)["terms"]["OnDemand"].values()
    (price,) = term["priceDimensions"].values()
    assert (price["unit"], float(price["pricePerUnit"]["USD"])) == ("Hrs", 12.24)
    history = client(rig, "ec2").describe_spot_price_history(
        InstanceTypes=["p3.8xlarge"], ProductDescriptions=["Linux/UNIX"]
    )["SpotPriceHistory"]
    assert {one["AvailabilityZone"] for one in history} == set(rig.subnets)
    assert all(0 < float(one["SpotPrice"]) < 12.24 for one in history)
    found = client(rig, "ssm").get_parameter(Name=rig.image_parameter)["Parameter"]["Value"]
    assert found == rig.image
    assert client(rig, "sts").get_caller_identity()["Account"] == "123456789012"


def test_faults_are_as_many_as_were_ordered(rig: Rig) -> None:
    ec2 = client(rig, "ec2")
    rig.fail("RunInstances", "InsufficientInstanceCapacity", times=2)
    assert [refusal(ec2.run_instances, **order(rig)) for _ in range(2)] == [
        ("InsufficientInstanceCapacity", 500)
    ] * 2
    assert len(launch(rig)) == 1
    rig.throttle("ec2:Describe*")
    assert refusal(ec2.describe_instances) == ("RequestLimitExceeded", 503)
    rig.no_faults()
    rig.deny("TerminateInstances")
    assert refusal(ec2.terminate_instances, InstanceIds=list(described(rig))) == (
        "UnauthorizedOperation",
        403,
    )
    rig.deny("pricing:*")
    assert (
        refusal(client(rig, "pricing").get_products, ServiceCode="AmazonEC2")[0]
        == "AccessDeniedException"
    )
    rig.deny("s3:PutObject")
    assert refusal(client(rig, "s3").put_object, Bucket=rig.bucket, Key="k", Body=b"v") == (
        "AccessDenied",
        403,
    )
    rig.no_faults()
    rig.fail("DescribeInstances", "InternalError", times=None, rate=0.5, status=500)
    outcomes = []
    for _ in range(40):
        try:
            outcomes.append(bool(described(rig)))
        except ClientError:
            outcomes.append(False)
    assert 8 < sum(outcomes) < 32


def test_a_lost_reply_is_a_launch_that_the_token_finds_again(rig: Rig) -> None:
    rig.lose_reply("RunInstances")
    with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
        launch(rig, ClientToken="lost")
    assert launch(rig, ClientToken="lost") == [one.id for one in rig.instances()]


def test_a_wrong_secret_is_no_way_in(rig: Rig) -> None:
    def with_keys(key: str, secret: str) -> Any:
        once = Config(retries={"total_max_attempts": 1})
        return boto3.client(
            "ec2",
            endpoint_url=rig.endpoint,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=once,
        )

    key = rig.env["AWS_ACCESS_KEY_ID"]
    assert refusal(with_keys(key, "guessed").describe_instances)[0] == "SignatureDoesNotMatch"
    assert refusal(with_keys("AKIANOBODY", "guessed").describe_instances) == ("AuthFailure", 401)


def test_two_rigs_do_not_meet(rig: Rig) -> None:
    with Rig.start(fast=True) as other:
        assert other.endpoint != rig.endpoint
        (mine,), (theirs,) = launch(rig), launch(other)
        assert rig.account()[mine].address != other.account()[theirs].address
        assert set(rig.account()) == {mine}
        assert set(other.account()) == {theirs}


def test_a_session_may_do_what_its_policy_names(rig: Rig) -> None:
    statement = {"Effect": "Allow", "Action": ["ec2:DescribeInstances"], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sts = client(rig, "sts")
    narrow = sts.get_federation_token(Name="narrow", Policy=policy)["Credentials"]
    wide = sts.get_session_token()["Credentials"]

    def of(service: str, session: dict[str, Any]) -> Any:
        return boto3.client(
            service,
            endpoint_url=rig.endpoint,
            region_name="us-east-1",
            aws_access_key_id=session["AccessKeyId"],
            aws_secret_access_key=session["SecretAccessKey"],
            aws_session_token=session["SessionToken"],
        )

    assert of("ec2", narrow).describe_instances()["Reservations"] == []
    assert refusal(of("ec2", narrow).describe_images) == ("UnauthorizedOperation", 403)
    assert refusal(of("s3", narrow).list_objects_v2, Bucket=rig.bucket) == ("AccessDenied", 403)
    assert of("sts", narrow).get_caller_identity()["Arn"].endswith("federated-user/narrow")
    assert refusal(of("sts", narrow).get_session_token) == ("AccessDenied", 403)
    assert of("s3", wide).list_objects_v2(Bucket=rig.bucket)["KeyCount"] == 0


def test_a_bid_below_the_spot_price_is_refused(rig: Rig) -> None:
    bid = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.0001"}}
    asked = order(rig, InstanceMarketOptions=bid)
    assert refusal(client(rig, "ec2").run_instances, **asked) == ("SpotMaxPriceTooLow", 400)
