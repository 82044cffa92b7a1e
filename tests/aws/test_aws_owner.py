"""Whose instances are whose: the same owner in every process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from seerd.aws.cloud import Cloud
from seerd.aws.identity import caller, owner_of
from seerd.commands import sweep
from seerd.shell.home import Home
from tests.aws.front import REGION, past

ROLE = "arn:aws:sts::123456789012:assumed-role/tuning"
SSO = "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_ML_0123456789abcdef"


@pytest.mark.parametrize(
    ("arn", "owner"),
    [
        (f"{ROLE}/botocore-session-1764000000", ROLE),
        (f"{ROLE}/i-0123456789abcdef0", ROLE),
        (ROLE, ROLE),
        (f"{SSO}/ann@example.org", f"{SSO}/ann@example.org"),
        ("arn:aws-cn:sts::1:assumed-role/r/s", "arn:aws-cn:sts::1:assumed-role/r"),
        ("arn:aws:iam::123456789012:user/team/me", "arn:aws:iam::123456789012:user/team/me"),
        ("arn:aws:iam::123456789012:root", "arn:aws:iam::123456789012:root"),
        ("arn:aws:sts::1:federated-user/me", "arn:aws:sts::1:federated-user/me"),
    ],
)
def test_an_owner_is_the_same_in_every_process(arn: str, owner: str) -> None:
    assert owner_of(arn) == owner
    assert owner_of(owner) == owner


def assume(moto: str, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process use the role, as botocore would in a new process."""
    given = past("sts", moto).assume_role(
        RoleArn="arn:aws:iam::123456789012:role/tuning", RoleSessionName=session
    )["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", given["SessionToken"])


def launch(moto: str, owner: str) -> str:
    """An instance as a run of this owner leaves it behind."""
    ec2 = past("ec2", moto)
    image = ec2.describe_images(Owners=["099720109477"])["Images"][0]["ImageId"]
    tags = {
        "seerd:run": "elsewhere",
        "seerd:owner": owner,
        "seerd:hard-end": "2020-01-01T00:00:00Z",
    }
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    made = ec2.run_instances(
        ImageId=image,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": kind, "Tags": pairs} for kind in ("instance", "volume")
        ],
    )
    return str(made["Instances"][0]["InstanceId"])


def test_another_session_of_the_role_sweeps_what_is_left_by_this_owner_alone(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def owner() -> str:
        async with Cloud(REGION) as cloud:
            return await caller(cloud)

    assume(moto, "botocore-session-1764000000", monkeypatch)
    told = asyncio.run(owner())
    ours = launch(moto, told)
    others = launch(moto, f"{ROLE}2/s"), launch(moto, "arn:aws:iam::123456789012:user/tuning")

    assume(moto, "botocore-session-1764086400", monkeypatch)
    assert asyncio.run(owner()) == told == ROLE
    _, results = asyncio.run(sweep.swept(Home(tmp_path / "home"), REGION, dry_run=False))
    assert {one.left.id for one in results if one.ended} == {ours}
    assert not {one.left.id for one in results} & set(others)
