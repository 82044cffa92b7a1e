"""What is reported of an instance until its agent answers, and why nobody can log in, in virtual
time.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from seerd.backends.base import LaunchProgress
from seerd.backends.ec2.flight import AGAIN_S
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ssh.connecting import UnreachableError
from tests.aws.kit import TRY_S, Door
from tests.aws.scripted import Script
from tests.aws.test_ec2_fleet import now, row, told
from tests.aws.test_ec2_launches import PENDING, RUNNING, TOKEN, failed, play

SILENT = UnreachableError("timed out: no answer on port 22", no_way=True)
REFUSED = UnreachableError("connection refused: nothing listens on its port 22")
GROUP = {"SecurityGroups": [{"GroupId": "sg-7", "GroupName": "default"}]}
LET_IN = "aws ec2 authorize-security-group-ingress --region us-east-1 --group-id sg-7"


async def news(provider: Ec2Provider) -> list[tuple[float, LaunchProgress]]:
    """All news of one launch, and when each came."""
    launching = asyncio.create_task(provider.launch(TOKEN))
    heard: list[tuple[float, LaunchProgress]] = []
    while not heard or heard[-1][1].what != "reached":
        progress = await provider.progress()
        heard.append((now(), progress))
    await launching
    return heard


def test_the_answer_the_start_and_the_login_are_reported(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.refusals = [SILENT] * 3
        assert [progress for _, progress in await news(provider)] == [
            LaunchProgress(TOKEN, "i-1", "launched", "p3.2xlarge in us-east-1a"),
            LaunchProgress(TOKEN, "i-1", "running"),
            LaunchProgress(TOKEN, "i-1", "reached"),
        ]

    here = {"InstanceType": "p3.2xlarge", "Placement": {"AvailabilityZone": "us-east-1a"}}
    play(tmp_path, scenario, run_instances={"Instances": [PENDING | here]})


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("public", '--port 22 --cidr "$(curl -s https://checkip.amazonaws.com)"/32'),
        ("private", '`cluster.address` is "private"'),
    ],
)
def test_from_a_minute_on_it_is_reported_why_nobody_can_log_in_and_what_to_type(
    tmp_path: Path, address: str, says: str
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.refusals = [SILENT] * 40
        ((at, why),) = [one for one in await news(provider) if one[1].what == "unreached"]
        assert 60.0 <= at <= 60.0 + TRY_S + 1.0
        assert why.why.startswith(str(SILENT))
        assert LET_IN in why.why
        assert says in why.why

    reached = {"PublicIpAddress": "3.3.3.3"}
    answers: dict[str, Any] = {
        "run_instances": {"Instances": [PENDING | GROUP]},
        "describe_instances": told(RUNNING | GROUP | reached),
    }
    play(tmp_path, scenario, {"address": address}, **answers)


def test_another_cause_is_reported_again_and_causes_that_alternate_not_each_time(
    tmp_path: Path,
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.refusals = [SILENT] * 20 + [REFUSED] * 20 + [SILENT, REFUSED] * 20
        heard = [one for one in await news(provider) if one[1].what == "unreached"]
        causes = [progress.why.partition(";")[0] for _, progress in heard]
        assert causes[:3] == [str(SILENT), str(REFUSED), str(SILENT)]
        times = [at for at, _ in heard]
        assert all(b - a >= AGAIN_S for a, b in pairwise(times))
        assert len(heard) <= 2 + 40 * TRY_S / AGAIN_S

    play(tmp_path, scenario)


def test_a_launch_to_which_nobody_could_log_in_says_so_and_what_to_type(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.refusals, door.trouble = [SILENT], lambda machine: "not reached within 120s"
        error = await failed(provider.launch(TOKEN))
        assert (error.retry, error.cause) == (True, "ssh")
        assert "not reached within 120s" in str(error)
        assert LET_IN in str(error)

    play(tmp_path, scenario, describe_instances=told(RUNNING | GROUP))


@pytest.mark.parametrize(
    ("code", "cause"),
    [("Client.InstanceInitiatedShutdown", "ssh"), ("Server.SpotInstanceTermination", "")],
)
def test_an_instance_that_powers_itself_off_was_not_reached_and_one_that_is_taken_is_another_case(
    tmp_path: Path, code: str, cause: str
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.refusals = [SILENT] * 40
        launching = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.sleep(30.0)
        ended = row("i-1", "terminated") | {"StateReason": {"Code": code, "Message": "gone"}}
        script.answers["describe_instances"] = told(ended)
        error = await failed(launching)
        assert error.cause == cause
        assert (str(SILENT) in str(error)) is bool(cause)

    play(tmp_path, scenario)


def test_no_more_is_launched_in_a_subnet_from_which_the_store_cannot_be_used(
    tmp_path: Path,
) -> None:
    first = {"SubnetId": "s-a", "VpcId": "vpc-1"}
    second = {"SubnetId": "s-b", "VpcId": "vpc-1"}

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        await provider.launch(TOKEN)
        assert provider.place("i-1") == "default-us-east-1-default", "of the default network"
        only_said = provider.without_store("i-1", silent=True, leave=False)
        advice, others = provider.without_store("i-1", silent=True)
        assert others
        assert only_said == (advice, False)
        assert "aws ec2 create-vpc-endpoint --region us-east-1 --vpc-id vpc-1" in advice
        script.answers["run_instances"] = {
            "Instances": [row("i-2", "pending", token="3.0") | second]
        }
        script.answers["describe_instances"] = told(
            RUNNING | first, row("i-2", "running", token="3.0") | second
        )
        await provider.launch("3.0")
        asked = [request for of, request in script.calls if of == "run_instances"]
        subnets = [request["NetworkInterfaces"][0]["SubnetId"] for request in asked]
        assert subnets == ["s-a", "s-b"]
        advice, others = provider.without_store("i-2", silent=False)
        assert not others
        assert "a policy of the bucket or of an endpoint of vpc-1" in advice

    play(
        tmp_path,
        scenario,
        run_instances={"Instances": [PENDING | first]},
        describe_instances=told(RUNNING | first),
    )
