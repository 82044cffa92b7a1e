"""The EC2 provider against moto behind a front: what it asks for, what it makes of refusals, what
it takes up and what it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seerd.backends.base import Span
from seerd.backends.ec2.provider import Ec2Provider
from seerd.errors import CloudError, LaunchError, ProviderError
from tests.aws.front import Fault, Front, Params, front
from tests.aws.kit import Door, holds, settings

Scenario = Callable[[Front, Ec2Provider, Door], Awaitable[None]]


def play(moto: str, folder: Path, scenario: Scenario, **changes: object) -> None:
    """A scenario with an opened provider, which is closed at the end."""

    async def run() -> None:
        async with front(moto) as there:
            door = Door()
            provider = Ec2Provider(settings(there, folder, **changes), door)  # type: ignore[arg-type]
            try:
                await provider.open()
                await scenario(there, provider, door)
            finally:
                await provider.close()

    asyncio.run(run())


def failing(action: str, *faults: Fault | None) -> Callable[[str, Params], Fault | None]:
    """These faults for the first calls of this action."""
    left = list(faults)
    return lambda found, params: left.pop(0) if found == action and left else None


def asked(there: Front) -> list[Params]:
    return [params for action, params in there.calls if action == "RunInstances"]


def test_a_launch_asks_for_one_instance_that_ends_by_itself_and_is_tagged_whole(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.pending_s = 0.3
        before = time.time()
        launched = await provider.launch("12.0")
        assert before <= launched.since <= time.time()
        assert launched.gpus == 4
        (request,) = asked(there)
        expected = {
            "MinCount": "1",
            "MaxCount": "1",
            "InstanceType": "g4dn.12xlarge",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions.HttpTokens": "required",
            "MetadataOptions.HttpPutResponseHopLimit": "1",
            "BlockDeviceMapping.1.Ebs.Encrypted": "true",
            "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
            "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
            "BlockDeviceMapping.1.Ebs.VolumeSize": "100",
            "NetworkInterface.1.AssociatePublicIpAddress": "false",
            "NetworkInterface.1.DeleteOnTermination": "true",
        }
        assert {key: request.get(key) for key in expected} == expected
        assert len(request["ClientToken"]) <= 64
        assert not any(
            key.startswith(("IamInstanceProfile", "InstanceMarketOptions", "KeyName"))
            for key in request
        )
        assert {request[f"TagSpecification.{n}.ResourceType"] for n in (1, 2, 3)} == {
            "instance",
            "volume",
            "network-interface",
        }
        (row,) = there.truth()
        tags = {tag["Key"]: tag["Value"] for tag in row["Tags"]}
        assert tags["seerd:run"] == "2026-11-20-a"
        assert tags["seerd:command"] == "12.0"
        assert tags["seerd:owner"].startswith("arn:aws:iam::")
        assert tags["seerd:hard-end"].endswith("Z")
        assert tags["team"] == "vision"
        volumes = there.client("ec2").describe_volumes(
            Filters=[{"Name": "tag:seerd:run", "Values": ["2026-11-20-a"]}]
        )["Volumes"]
        assert len(volumes) == 1
        (machine,) = door.waited
        assert machine.user == "seerd"
        assert machine.address == row["PrivateIpAddress"] == provider.address(launched.instance)
        assert machine.key == tmp_path / "keys" / "id_ed25519"
        assert machine.key.stat().st_mode & 0o777 == 0o600
        assert machine.key.parent.stat().st_mode & 0o777 == 0o700

    play(moto, tmp_path, scenario)


def test_spot_and_public_and_a_key_pair_are_asked_for_where_they_are_wanted(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.client("ec2").create_key_pair(KeyName="mine")
        launched = await provider.launch("1.0")
        (request,) = asked(there)
        assert request["InstanceMarketOptions.MarketType"] == "spot"
        assert request["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
        assert request["InstanceMarketOptions.SpotOptions.MaxPrice"] == "2.5000"
        assert request["KeyName"] == "mine"
        assert request["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
        assert door.waited[0].address == there.truth()[0]["PublicIpAddress"]
        assert provider.address(launched.instance) == there.truth()[0]["PrivateIpAddress"]

    play(moto, tmp_path, scenario, market="spot", address="public", key="mine", max_usd_per_h=2.5)


def test_where_there_is_no_capacity_the_next_zone_is_asked_and_then_the_next_type(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        full = {"g4dn.12xlarge"}
        there.fault = lambda action, params: (
            Fault("InsufficientInstanceCapacity")
            if action == "RunInstances" and params["InstanceType"] in full
            else None
        )
        await provider.launch("1.0")
        requests = asked(there)
        zones = len({request["NetworkInterface.1.SubnetId"] for request in requests})
        assert [request["InstanceType"] for request in requests] == ["g4dn.12xlarge"] * zones + [
            "p3.8xlarge"
        ]
        assert len({request["ClientToken"] for request in requests}) == len(requests)
        full.add("p3.8xlarge")
        with pytest.raises(LaunchError, match="none of these to give") as told:
            await provider.launch("2.0")
        assert told.value.retry
        assert told.value.since is None
        assert len(there.alive()) == 1

    play(moto, tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "retry", "text"),
    [
        ("InvalidAMIID.NotFound", False, "cluster.image"),
        ("InvalidKeyPair.NotFound", False, "cluster.key"),
        ("InvalidSubnetID.NotFound", False, "cluster.subnets"),
        ("UnauthorizedOperation", False, "seerd doctor"),
        ("InvalidParameterValue", False, "InvalidParameterValue"),
        ("ExpiredToken", True, "log in again"),
        ("VcpuLimitExceeded", False, "vCPU quota"),
        ("Unsupported", False, "not offered there"),
    ],
)
def test_what_would_be_refused_again_is_told_at_once(
    moto: str, tmp_path: Path, code: str, retry: bool, text: str
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.fault = lambda action, params: Fault(code) if action == "RunInstances" else None
        with pytest.raises(LaunchError, match=text) as told:
            await provider.launch("1.0")
        assert told.value.retry is retry
        different = {
            (request["InstanceType"], request["NetworkInterface.1.SubnetId"])
            for request in asked(there)
        }
        assert len(asked(there)) == len(different)

    play(moto, tmp_path, scenario)


def test_a_code_that_nobody_knows_is_told_as_such_with_awss_words(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.fault = failing("RunInstances", Fault("NobodyKnowsThis"))
        with pytest.raises(LaunchError, match="a code that seerd does not know") as told:
            await provider.launch("1.0")
        assert told.value.unknown
        assert not told.value.retry
        assert "NobodyKnowsThis: told by the front" in str(told.value)
        there.fault = failing("RunInstances", Fault("InvalidParameterValue"))
        with pytest.raises(LaunchError, match="does not take a value of") as told:
            await provider.launch("2.0")
        assert not told.value.unknown

    play(moto, tmp_path, scenario)


def test_a_full_quota_means_fewer_instances_where_the_run_has_some(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        await provider.launch("1.0")
        there.fault = lambda action, params: (
            Fault("VcpuLimitExceeded") if action == "RunInstances" else None
        )
        with pytest.raises(LaunchError, match="goes on with the instances that it has") as told:
            await provider.launch("2.0")
        assert told.value.retry

    play(moto, tmp_path, scenario, instance_types=("g4dn.12xlarge",))


@pytest.mark.parametrize(
    "fault",
    [Fault("", done=True), Fault("InternalError", done=True), Fault("RequestLimitExceeded")],
)
def test_an_answer_that_is_lost_costs_no_second_instance(
    moto: str, tmp_path: Path, fault: Fault
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.fault = failing("RunInstances", fault, fault)
        launched = await provider.launch("1.0")
        assert there.alive() == {launched.instance}
        assert len({request["ClientToken"] for request in asked(there)}) == 1
        assert len({request["UserData"] for request in asked(there)}) == 1
        assert len(asked(there)) == 3

    play(moto, tmp_path, scenario)


def test_an_instance_that_is_not_listed_yet_is_waited_for(moto: str, tmp_path: Path) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.hidden_s = 1.5
        launched = await provider.launch("1.0")
        assert time.time() - there.launched[launched.instance] >= 1.5
        assert provider._fleet._losses.empty()

    play(moto, tmp_path, scenario)


@pytest.mark.parametrize("kind", ["private", "public"])
def test_an_instance_that_runs_before_its_address_is_shown_is_asked_for_it_again(
    moto: str, tmp_path: Path, kind: str
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.pending_s, there.address_s = 0.5, 1.5
        launched = await provider.launch("1.0")
        (row,) = there.truth()
        (machine,) = door.waited
        assert machine.address == row[f"{kind.capitalize()}IpAddress"]
        assert provider.address(launched.instance) == row["PrivateIpAddress"]

    play(moto, tmp_path, scenario, address=kind)


def test_an_address_that_never_comes_is_told_and_the_instance_is_given_back(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.address_s = 600.0
        with pytest.raises(LaunchError, match="EC2 has shown no private address of it") as told:
            await provider.launch("1.0")
        assert told.value.retry
        assert "cluster.subnets" in str(told.value)
        assert door.waited == []
        assert there.alive() == set()

    play(moto, tmp_path, scenario, address_s=1.0)


def test_a_machine_that_never_answers_is_given_back_and_its_time_is_told(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        door.trouble = lambda machine: "connection refused"
        with pytest.raises(LaunchError, match="connection refused") as told:
            await provider.launch("1.0")
        assert told.value.retry
        assert told.value.since is not None
        assert told.value.until is not None
        assert 0.0 < told.value.until - told.value.since < 10.0
        assert there.alive() == set()

    play(moto, tmp_path, scenario)


def test_how_long_it_may_boot_is_counted_from_when_it_runs(moto: str, tmp_path: Path) -> None:
    """While it is pending it costs nothing, and EC2 has not begun to boot it."""

    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        there.pending_s = 4.0
        await provider.launch("1.0")
        assert 37.0 < door.patience_s[0] <= 40.0

    play(moto, tmp_path, scenario, boot_s=40.0)


def test_an_instance_that_dies_while_it_boots_is_told_of_at_once(moto: str, tmp_path: Path) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        door.gate = asyncio.Event()
        launch = asyncio.create_task(provider.launch("1.0"))
        await holds(lambda: bool(door.waited))
        await asyncio.to_thread(
            there.client("ec2").terminate_instances, InstanceIds=[door.waited[0].name]
        )
        with pytest.raises(LaunchError, match="somebody terminated it"):
            await launch

    play(moto, tmp_path, scenario)


@pytest.mark.parametrize("moment", ["asking", "pending", "booting"])
@pytest.mark.parametrize("how", ["cancelled", "terminated"])
def test_a_launch_that_is_called_off_leaves_nothing(
    moto: str, tmp_path: Path, moment: str, how: str
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        door.gate = asyncio.Event()
        there.pending_s = 60.0 if moment == "pending" else 0.0
        if moment == "asking":
            there.fault = lambda action, params: (
                Fault("", done=True) if action == "RunInstances" else None
            )
        launch = asyncio.create_task(provider.launch("1.0"))
        await holds(lambda: bool(there.launched) and (moment != "booting" or bool(door.waited)))
        if how == "cancelled":
            launch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await launch
        else:
            span = await provider.terminate("1.0")
            with pytest.raises(LaunchError, match="called off") as told:
                await launch
            assert not told.value.retry
            assert span == Span(told.value.since, told.value.until)
            assert moment != "booting" or span.since is not None
        assert there.alive() == set()
        assert (await provider.leftovers()).costing == []

    play(moto, tmp_path, scenario)


def test_terminating_is_repeated_until_ec2_agrees_and_may_be_repeated_by_anyone(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        launched = await provider.launch("1.0")
        throttled = [Fault("RequestLimitExceeded"), Fault("InternalError"), Fault("")]
        there.fault = failing("TerminateInstances", *throttled)
        first = await provider.terminate(launched.instance)
        assert there.count()["TerminateInstances"] == len(throttled) + 1
        assert first.since == launched.since
        assert await provider.terminate(launched.instance) == first
        assert await provider.terminate("1.0") == first
        assert await provider.terminate("99.0") == Span()
        assert await provider.terminate("i-00000000000000000") == Span()
        assert launched.instance in door.forgotten

    play(moto, tmp_path, scenario)


def test_a_termination_that_is_refused_for_good_names_the_instance_and_the_way_out(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        launched = await provider.launch("1.0")
        there.fault = lambda action, params: (
            Fault("UnauthorizedOperation") if action == "TerminateInstances" else None
        )
        with pytest.raises(
            ProviderError,
            match=f"terminate-instances --region us-east-1 --instance-ids {launched.instance}",
        ):
            await provider.terminate(launched.instance)
        (line, *_) = (await provider.leftovers()).costing
        assert launched.instance in line

    play(moto, tmp_path, scenario, mend_s=1.0)


def test_a_loss_is_told_once_with_its_reason_and_a_given_back_instance_is_none(
    moto: str, tmp_path: Path
) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        gone, kept = await asyncio.gather(provider.launch("1.0"), provider.launch("2.0"))
        await provider.terminate(kept.instance)
        await asyncio.to_thread(
            there.client("ec2").terminate_instances, InstanceIds=[gone.instance]
        )
        loss = await asyncio.wait_for(provider.loss(), 20)
        assert loss.instance == gone.instance
        assert "somebody terminated it" in loss.why
        assert loss.span.since == gone.since
        assert loss.span.until is not None
        assert loss.span.until <= time.time()
        with pytest.raises(ProviderError, match="has ended"):
            await provider.connect(gone.instance)
        assert provider._fleet._losses.empty()

    play(moto, tmp_path, scenario)


def test_what_the_run_has_and_nobody_knows_is_ended(moto: str, tmp_path: Path) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        launched = await provider.launch("1.0")
        tags = [
            {"ResourceType": "instance", "Tags": [{"Key": "seerd:run", "Value": "2026-11-20-a"}]}
        ]
        image = asked(there)[0]["ImageId"]
        await asyncio.to_thread(
            there.client("ec2").run_instances,
            ImageId=image,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=tags,
        )
        await asyncio.to_thread(
            there.client("ec2").run_instances, ImageId=image, MinCount=1, MaxCount=1
        )
        assert len(there.alive()) == 3
        await holds(lambda: len(there.alive()) == 2)
        assert launched.instance in there.alive()

    play(moto, tmp_path, scenario)


def test_a_second_life_takes_up_what_it_knows_leaves_what_is_under_way_and_ends_the_rest(
    moto: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with front(moto) as there:
            door = Door()
            first = Ec2Provider(settings(there, tmp_path), door)  # type: ignore[arg-type]
            await first.open()
            known, forgotten, lost = await asyncio.gather(
                *(first.launch(token) for token in ("1.0", "2.0", "3.0"))
            )
            there.fault = lambda action, params: (
                Fault("", done=True) if action == "RunInstances" else None
            )
            under_way = asyncio.create_task(first.launch("4.0"))
            await holds(lambda: len(there.launched) == 4)
            await first.close()
            assert isinstance(
                (await asyncio.gather(under_way, return_exceptions=True))[0], asyncio.CancelledError
            )
            assert len(there.alive()) == 4
            there.fault = lambda action, params: None
            await asyncio.to_thread(
                there.client("ec2").terminate_instances, InstanceIds=[lost.instance]
            )

            second = Ec2Provider(settings(there, tmp_path), door)  # type: ignore[arg-type]
            await second.open()
            alive, others = await second.adopt([known.instance, lost.instance], ["4.0"])
            assert alive == [known.instance]
            assert [(one.instance, one.launch) for one in others] == [(forgotten.instance, "2.0")]
            assert others[0].span.since is not None
            assert others[0].span.until is not None
            assert forgotten.instance not in there.alive()
            assert len(there.alive()) == 2
            again = await second.launch("4.0")
            assert again.instance == list(there.launched)[3]
            assert there.alive() == {known.instance, again.instance}
            assert second.address(known.instance)
            span = await second.terminate(lost.instance)
            assert span.since is not None
            assert span.until is not None
            hosts = {machine.name: machine.host_keys for machine in door.waited}
            assert len(set(hosts.values())) == len(hosts) == 4
            await asyncio.gather(second.terminate(known.instance), second.terminate("4.0"))
            assert (await second.leftovers()).costing == []
            await second.close()

    asyncio.run(scenario())


def test_a_launch_of_an_earlier_life_is_found_also_where_it_would_not_be_asked_for_first(
    moto: str, tmp_path: Path
) -> None:
    """The first place had no capacity then, and has now: its ClientToken is another one, and only
    the tags say what there is.
    """

    async def scenario() -> None:
        async with front(moto) as there:
            there.pending_s = 60.0
            there.fault = lambda action, params: (
                Fault("InsufficientInstanceCapacity")
                if params.get("InstanceType") == "g4dn.12xlarge"
                else None
            )
            first = Ec2Provider(settings(there, tmp_path), Door())  # type: ignore[arg-type]
            await first.open()
            launch = asyncio.create_task(first.launch("1.0"))
            await holds(lambda: bool(there.launched))
            await first.close()
            await asyncio.gather(launch, return_exceptions=True)
            there.pending_s, there.fault = 0.0, lambda action, params: None
            second = Ec2Provider(settings(there, tmp_path), Door())  # type: ignore[arg-type]
            await second.open()
            await second.adopt([], ["1.0"])
            again = await second.launch("1.0")
            assert list(there.launched) == [again.instance]
            await second.terminate(again.instance)
            await second.close()

    asyncio.run(scenario())


def test_a_launch_of_an_earlier_life_that_is_not_shown_yet_counts_from_when_it_was_first_asked_for(
    moto: str, tmp_path: Path
) -> None:
    """The second life asks again, with the same token: what that answers may have run for long."""

    async def scenario() -> None:
        async with front(moto) as there:
            there.hidden_s = 3.0
            first = Ec2Provider(settings(there, tmp_path), Door())  # type: ignore[arg-type]
            await first.open()
            launch = asyncio.create_task(first.launch("1.0", 300.0))
            await holds(lambda: bool(there.launched))
            launched_at = time.time()
            await first.close()
            await asyncio.gather(launch, return_exceptions=True)
            await asyncio.sleep(1.0)
            second = Ec2Provider(settings(there, tmp_path), Door())  # type: ignore[arg-type]
            await second.open()
            await second.adopt([], ["1.0"])
            again = await second.launch("1.0", 300.0)
            assert list(there.launched) == [again.instance]
            assert again.since <= launched_at
            await second.terminate("1.0")
            await second.close()

    asyncio.run(scenario())


def test_terminating_a_launch_of_an_earlier_life_finds_what_it_brought(
    moto: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with front(moto) as there:
            there.hidden_s = 1.0
            first = Ec2Provider(settings(there, tmp_path), Door())  # type: ignore[arg-type]
            await first.open()
            launch = asyncio.create_task(first.launch("1.0"))
            await holds(lambda: bool(there.launched))
            await first.close()
            await asyncio.gather(launch, return_exceptions=True)
            second = Ec2Provider(settings(there, tmp_path), Door())  # type: ignore[arg-type]
            await second.open()
            await second.adopt([], ["1.0"])
            span = await second.terminate("1.0")
            assert span.since is not None
            assert there.alive() == set()
            await second.close()

    asyncio.run(scenario())


def test_without_credentials_or_region_it_says_what_to_do(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(**changes: object) -> str:
        async with front(moto) as there:
            made = settings(there, tmp_path, **changes)
            provider = Ec2Provider(made, Door())  # type: ignore[arg-type]
            with pytest.raises(CloudError) as told:
                await provider.open()
            await provider.close()
            return str(told.value)

    assert "AWS_DEFAULT_REGION" in asyncio.run(refused(region=None, image="ami-1"))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "no such AWS profile" in asyncio.run(refused(image="ami-1"))
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "aws configure" in asyncio.run(refused(image="ami-1"))


def test_a_wrong_image_or_subnet_is_told_before_anything_starts(moto: str, tmp_path: Path) -> None:
    async def refused(**changes: object) -> str:
        async with front(moto) as there:
            provider = Ec2Provider(settings(there, tmp_path, **changes), Door())  # type: ignore[arg-type]
            with pytest.raises(CloudError) as told:
                await provider.open()
            await provider.close()
            return str(told.value)

    assert "cluster.image" in asyncio.run(refused(image="ami-00000000"))
    assert "cluster.image" in asyncio.run(refused(image="ssm:/no/such/parameter"))
    assert "cluster.subnets" in asyncio.run(refused(subnets=("subnet-00000000",)))


def test_a_bug_on_the_way_leaves_no_instance(moto: str, tmp_path: Path) -> None:
    async def scenario(there: Front, provider: Ec2Provider, door: Door) -> None:
        def bug(machine: object) -> str:
            raise ZeroDivisionError

        door.trouble = bug
        with pytest.raises(ZeroDivisionError):
            await provider.launch("1.0")
        assert len(there.launched) == 1
        assert there.alive() == set()

    play(moto, tmp_path, scenario)
