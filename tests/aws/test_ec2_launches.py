"""A launch from its request to an instance that answers, or back to nothing, in virtual time: what is
asked, how long for, and what is told of it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.aws import cloud as clouds
from seerd.backends.base import Launched, Leftovers, Span
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ec2.request import Ec2Settings
from seerd.errors import CloudError, LaunchError, ProviderError
from tests.aws.kit import Door
from tests.aws.scripted import Script, cloud_of, played, raised
from tests.aws.test_ec2_fleet import BUSY, EXPIRED, ending, now, row, times, told
from tests.faults.ec2 import refusal
from tests.faults.timeline import EPOCH

IMAGES = {"Images": [{"ImageId": "ami-1", "RootDeviceName": "/dev/sda1"}]}
ZONES = ("a", "b")
SUBNETS = {
    "Subnets": [
        {"SubnetId": f"s-{zone}", "AvailabilityZone": f"us-east-1{zone}", "VpcId": "vpc-1"}
        for zone in ZONES
    ]
}
PENDING, RUNNING = row("i-1", "pending"), row("i-1", "running")
TOKEN = "2.0"


@pytest.fixture(autouse=True)
def dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits before repetitions are as long as they can be."""
    longest = random.Random()
    longest.uniform = lambda least, most: most  # type: ignore[method-assign]
    monkeypatch.setattr(clouds, "_dice", longest)


Scenario = Callable[[Ec2Provider, Script, Door], Awaitable[None]]


def play(
    folder: Path, scenario: Scenario, changes: dict[str, Any] | None = None, **answers: Any
) -> None:
    """A provider that is open, in front of these answers."""
    usual: dict[str, Any] = {
        "describe_images": IMAGES,
        "describe_subnets": SUBNETS,
        "run_instances": {"Instances": [PENDING]},
        "describe_instances": told(RUNNING),
        "terminate_instances": ending("i-1"),
        "describe_volumes": {"Volumes": []},
    }
    cloud, script = cloud_of(**(usual | answers))

    async def run() -> None:
        plain = Ec2Settings(
            run="r1",
            name="digits",
            owner="me",
            region="us-east-1",
            instance_types=("p3.2xlarge",),
            gpus=1,
            image="ami-1",
            hard_end=EPOCH + 3600.0,
            boot_s=120.0,
            keys=folder / "keys",
        )
        door = Door()
        provider = Ec2Provider(replace(plain, **(changes or {})), door, cloud)  # type: ignore[arg-type]
        await provider.open()
        try:
            await scenario(provider, script, door)
        finally:
            await provider.close()

    played(run())


async def failed(work: Awaitable[Any]) -> LaunchError:
    """The error of a launch that must fail."""

    async def wait() -> None:
        await work

    error = await raised(wait())
    assert isinstance(error, LaunchError), error
    return error


def test_a_launch_waits_until_the_instance_runs_and_its_agent_answers(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        launched = await provider.launch(TOKEN, 90.0)
        assert launched == Launched("i-1", 1, EPOCH)
        (machine,) = door.waited
        key = (tmp_path / "keys" / "id_ed25519").read_text()
        assert (machine.name, machine.address, machine.user) == ("i-1", "10.0.0.1", "seerd")
        assert machine.key is not None
        assert machine.key.read_text() == key
        assert machine.host_keys is not None
        assert machine.host_keys[0].startswith("ssh-ed25519 ")
        assert door.patience_s == [120.0 - now()]
        assert provider.address("i-1") == "10.0.0.1"
        assert provider.journal("i-1") is None
        assert provider.machine("i-1") == machine
        (request,) = [asked for of, asked in script.calls if of == "run_instances"]
        assert request["NetworkInterfaces"][0]["SubnetId"] == "s-a"
        assert "most=" in request["UserData"]

    play(tmp_path, scenario)


@pytest.mark.parametrize(("age_s", "patience_s"), [(10.0, 110.0), (100.0, 30.0), (500.0, 30.0)])
def test_an_agent_is_waited_for_from_the_instance_s_start_and_half_a_minute_at_least(
    tmp_path: Path, age_s: float, patience_s: float
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        launching = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.sleep(0.1)
        provider._fleet.register["i-1"].idle_at = EPOCH + now() - age_s
        provider._fleet.register["i-1"].ran = True
        await launching
        assert door.patience_s == [pytest.approx(patience_s, abs=0.5)]

    play(tmp_path, scenario)


def test_each_place_is_asked_until_one_has_an_instance(tmp_path: Path) -> None:
    none = refusal("InsufficientInstanceCapacity", 500)

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        assert (await provider.launch(TOKEN)).instance == "i-1"
        asked = [
            one["NetworkInterfaces"][0]["SubnetId"]
            for of, one in script.calls
            if of == "run_instances"
        ]
        assert asked == ["s-a", "s-b"]

    play(tmp_path, scenario, run_instances=[none, {"Instances": [PENDING]}])

    async def nowhere(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert (error.retry, error.unknown, error.since, error.until) == (True, False, None, None)
        places = "p3.2xlarge in us-east-1a, us-east-1b"
        assert str(error).startswith(f"no instance could be had: {places}: RunInstances: AWS has")
        assert "\n" not in str(error)
        assert "terminate_instances" not in script.operations

    play(tmp_path / "other", nowhere, run_instances=none)


def offerings(*zones: str) -> dict[str, Any]:
    """What EC2 says of where it offers p3.2xlarge."""
    return {
        "InstanceTypeOfferings": [
            {"InstanceType": "p3.2xlarge", "Location": f"us-east-1{zone}"} for zone in zones
        ]
    }


@pytest.mark.parametrize(
    ("offered", "asked"),
    [
        (offerings("b", "c"), ["s-b"]),
        (offerings("a", "b"), ["s-a", "s-b"]),
        (offerings(), ["s-a", "s-b"]),
        (refusal("UnauthorizedOperation", 403), ["s-a", "s-b"]),
    ],
    ids=["one zone", "both", "a type that EC2 lists no longer", "not permitted to ask"],
)
def test_a_zone_that_does_not_offer_the_type_is_not_asked(
    tmp_path: Path, offered: Any, asked: list[str]
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        await failed(provider.launch(TOKEN))
        requests = [request for of, request in script.calls if of == "run_instances"]
        assert [one["NetworkInterfaces"][0]["SubnetId"] for one in requests] == asked

    none = refusal("InsufficientInstanceCapacity", 500)
    play(tmp_path, scenario, describe_instance_type_offerings=offered, run_instances=none)


def test_a_type_that_no_zone_of_the_subnets_offers_is_an_error_before_any_launch(
    tmp_path: Path,
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        raise AssertionError("it was opened")

    with pytest.raises(CloudError) as refused:
        play(tmp_path, scenario, describe_instance_type_offerings=offerings("c", "d"))
    assert "p3.2xlarge is offered in us-east-1c, us-east-1d, and no subnet" in str(refused.value)


@pytest.mark.parametrize(
    ("code", "status", "retry", "unknown"),
    [
        ("InvalidParameterValue", 400, False, False),
        ("NobodyKnowsThis", 400, False, True),
        ("UnauthorizedOperation", 403, False, False),
    ],
)
def test_a_refusal_is_told_with_whether_asking_again_may_help(
    tmp_path: Path, code: str, status: int, retry: bool, unknown: bool
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert (error.retry, error.unknown) == (retry, unknown)
        assert code in str(error)
        assert times(script, "run_instances") == [0.0]

    play(tmp_path, scenario, run_instances=refusal(code, status), describe_instances=told())


def test_ec2_may_be_busy_for_two_minutes(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert error.retry
        tries = times(script, "run_instances")
        assert tries[-2] <= 120.0 < tries[-1] < 145.0
        assert len({one["ClientToken"] for of, one in script.calls if of == "run_instances"}) == 1
        assert "client-token" not in str(script.calls), "it was refused: there is nothing to find"

    play(tmp_path, scenario, run_instances=BUSY, describe_instances=told())


def test_what_an_unclear_answer_brought_is_looked_for_and_given_back(tmp_path: Path) -> None:
    broken = refusal("InternalError", 500)

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert (error.retry, error.until is not None) == (False, True)
        assert error.since == pytest.approx(EPOCH + 0.2), "when it was first seen"
        assert script.operations.count("terminate_instances") == 1
        assert door.forgotten == ["i-1"]

    denied = refusal("UnauthorizedOperation", 403)
    play(
        tmp_path,
        scenario,
        run_instances=[broken, denied],
        describe_instances=[told(), told(RUNNING)],
    )

    async def blind(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        text = "what launch 2.0 has brought could not be found out, and may run until its hard end"
        assert text in str(error)
        assert not error.retry
        assert now() > 240.0

    play(tmp_path / "blind", blind, run_instances=[broken, denied], describe_instances=EXPIRED)


def test_an_instance_may_be_pending_for_seven_minutes(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert str(error) == "i-1 was not running after 420s"
        assert (error.retry, error.since) == (True, None)
        assert 420.0 <= now() < 421.0

    over = ending("i-1", before="pending")
    play(tmp_path, scenario, describe_instances=told(PENDING), terminate_instances=over)

    async def blind(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert str(error).startswith("i-1 was not running after 420s: DescribeInstances: ")

    play(tmp_path / "blind", blind, describe_instances=EXPIRED, terminate_instances=over)


@pytest.mark.parametrize("kind", ["private", "public"])
def test_an_address_is_waited_for_for_a_minute(tmp_path: Path, kind: str) -> None:
    lacking = {
        **RUNNING,
        **({"PublicIpAddress": ""} if kind == "public" else {"PrivateIpAddress": ""}),
    }
    first = {**PENDING, "PublicIpAddress": "", "PrivateIpAddress": ""}

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        wanted = "public or private" if kind == "public" else "private"
        assert f"EC2 has shown no {wanted} address of it for 60s" in str(error)
        assert (error.retry, error.since) == (True, EPOCH)
        assert 60.0 <= now() < 61.0
        assert door.waited == []

    play(
        tmp_path,
        scenario,
        {"address": kind},
        run_instances={"Instances": [first]},
        describe_instances=told(lacking),
    )

    async def shown(provider: Ec2Provider, script: Script, door: Door) -> None:
        await provider.launch(TOKEN)
        assert door.waited[0].address == ("3.3.3.3" if kind == "public" else "10.0.0.1")

    play(
        tmp_path / "shown",
        shown,
        {"address": kind},
        run_instances={"Instances": [first]},
        describe_instances=[told(lacking), told(lacking), told(RUNNING)],
    )


@pytest.mark.parametrize(
    ("code", "retry", "text"),
    [
        ("Client.InstanceInitiatedShutdown", True, "Nobody had logged in by then"),
        ("Client.VolumeLimitExceeded", False, "your account's quota for volumes is used up"),
        ("Server.InternalError", True, "AWS could not start it"),
    ],
)
def test_an_instance_that_ends_before_its_agent_answers(
    tmp_path: Path, code: str, retry: bool, text: str
) -> None:
    gone = row("i-1", "terminated", StateReason={"Code": code, "Message": "x"})

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.gate = asyncio.Event()
        error = await failed(provider.launch(TOKEN))
        assert str(error).startswith("i-1 ended before its agent answered: ")
        assert text in str(error)
        assert error.retry is retry
        assert error.until is not None
        assert error.since is not None

    play(tmp_path, scenario, describe_instances=[told(RUNNING), told(RUNNING), told(gone)])


def test_an_agent_that_does_not_answer_has_its_instance_given_back(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.trouble = lambda machine: "no route"
        error = await failed(provider.launch(TOKEN))
        assert str(error) == "i-1 (10.0.0.1): no route"
        assert (error.retry, error.since) == (True, EPOCH)
        assert script.operations[-1] == "terminate_instances"
        assert door.forgotten == ["i-1"]

    play(tmp_path, scenario)

    async def refused(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.trouble = lambda machine: "no route"
        error = await failed(provider.launch(TOKEN))
        assert str(error).startswith("i-1 (10.0.0.1): no route\ni-1 could not be terminated")
        assert (error.retry, error.since, error.until) == (False, EPOCH, None)

    play(tmp_path / "refused", refused, terminate_instances=EXPIRED)


def test_a_launch_of_an_earlier_process_is_taken_up(tmp_path: Path) -> None:
    async def first(provider: Ec2Provider, script: Script, door: Door) -> None:
        provider._keys.host(TOKEN)

    play(tmp_path, first)

    async def again(provider: Ec2Provider, script: Script, door: Door) -> None:
        assert (await provider.launch(TOKEN)).instance == "i-1"
        assert "run_instances" not in script.operations

    play(tmp_path, again)

    async def ended(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert str(error).startswith("i-1 ended before it could be used: ")
        assert error.retry
        assert "run_instances" not in script.operations

    play(tmp_path, ended, describe_instances=told(row("i-1", "terminated")))

    async def none(provider: Ec2Provider, script: Script, door: Door) -> None:
        launched = await provider.launch(TOKEN)
        assert launched.instance == "i-1"
        assert script.operations.count("run_instances") == 1

    play(tmp_path, none, describe_instances=[told(), told(), told(), told(RUNNING)])

    async def two(provider: Ec2Provider, script: Script, door: Door) -> None:
        assert (await provider.launch(TOKEN)).instance == "i-1"
        ended = [asked["InstanceIds"] for of, asked in script.calls if of == "terminate_instances"]
        assert ended == [["i-2"]]

    play(
        tmp_path,
        two,
        describe_instances=told(RUNNING, row("i-2", "running")),
        terminate_instances=ending("i-2"),
    )


def test_a_request_that_ec2_remembers_has_brought_what_is_there(tmp_path: Path) -> None:
    spent = refusal("IdempotentParameterMismatch", 400)

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        assert (await provider.launch(TOKEN)).instance == "i-1"

    play(tmp_path, scenario, run_instances=spent)

    async def over(provider: Ec2Provider, script: Script, door: Door) -> None:
        error = await failed(provider.launch(TOKEN))
        assert error.retry
        assert "IdempotentParameterMismatch" in str(error)

    gone = told(row("i-1", "terminated"))
    play(tmp_path / "over", over, run_instances=spent, describe_instances=gone)


# ------------------------------------------------------------ ending, adopting, what is left


def test_a_launch_that_is_called_off_gives_back_what_it_has(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.gate = asyncio.Event()
        launching = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.sleep(3.0)
        span = await provider.terminate(TOKEN)
        assert span == Span(EPOCH, EPOCH + 3.05)
        error = await failed(launching)
        assert (str(error), error.retry) == ("launch 2.0 was called off", False)
        assert await provider.terminate(TOKEN) == span
        assert await provider.terminate("i-1") == span
        assert script.operations.count("terminate_instances") == 1

    play(tmp_path, scenario)

    async def by_instance(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.gate = asyncio.Event()
        launching = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.sleep(3.0)
        assert await provider.terminate("i-0123456789abcdef0") == Span(EPOCH, EPOCH + 3.05)
        await failed(launching)

    long = row("i-0123456789abcdef0", "pending")
    play(
        tmp_path / "id",
        by_instance,
        run_instances={"Instances": [long]},
        describe_instances=told(row("i-0123456789abcdef0", "running")),
        terminate_instances=ending("i-0123456789abcdef0"),
    )


def test_a_launch_that_cannot_be_called_off_is_told(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        door.gate = asyncio.Event()
        launching = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.sleep(3.0)
        error = await raised(provider.terminate(TOKEN))
        assert isinstance(error, ProviderError)
        assert "i-1 could not be terminated and goes on costing" in str(error)
        await failed(launching)

    play(tmp_path, scenario, terminate_instances=EXPIRED)


def test_what_a_launch_may_have_brought_is_looked_for_before_it_counts_as_nothing(
    tmp_path: Path,
) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        assert await provider.terminate("9.0") == Span()
        assert now() == 0.0, "nothing was ever asked for it"
        provider._keys.host("9.0")
        assert await provider.terminate("9.0") == Span()
        assert now() == 15.0

    play(tmp_path, scenario, describe_instances=told())


@pytest.mark.parametrize("known", [True, False])
def test_an_instance_is_ended_whether_it_was_known_here_or_not(tmp_path: Path, known: bool) -> None:
    name = "i-0123456789abcdef0"

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        assert await provider.terminate(name) == (Span(EPOCH, EPOCH + 0.05) if known else Span())
        assert ("terminate_instances" in script.operations) is known

    play(
        tmp_path,
        scenario,
        describe_instances=told(*[row(name, "running")] * known),
        terminate_instances=ending(name),
    )


def test_a_run_that_is_taken_up_keeps_what_it_knows_and_ends_the_rest(tmp_path: Path) -> None:
    there = [
        row("i-1", "running", "1.0"),
        row("i-2", "running", "2.0"),
        row("i-3", "running", "3.0"),
        row("i-4", "terminated", "4.0"),
    ]

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        kept, others = await provider.adopt(["i-1", "i-4", "i-5"], ["3.0"])
        assert (kept, [(one.instance, one.launch) for one in others]) == (["i-1"], [("i-2", "2.0")])
        ended = [asked["InstanceIds"] for of, asked in script.calls if of == "terminate_instances"]
        assert ended == [["i-2"]]
        asked = [request["Filters"] for of, request in script.calls if of == "describe_instances"]
        assert asked[1] == [{"Name": "instance-id", "Values": ["i-5"]}]
        assert times(script, "describe_instances")[:2] == [0.0, 1.0]
        for name, why in (("i-9", "is not of this run"), ("i-4", "has ended: ")):
            with pytest.raises(ProviderError, match=why):
                provider.machine(name)
        with pytest.raises(ProviderError, match="nobody listens"):
            await provider.connect("i-1")
        loss = asyncio.create_task(provider.loss())
        await asyncio.sleep(0.5)
        assert not loss.done()
        loss.cancel()

    play(
        tmp_path,
        scenario,
        describe_instances=[told(*there), told(), told(*there)],
        terminate_instances=ending("i-2"),
    )


def test_what_is_left_is_ended_and_told_and_an_old_answer_is_asked_for_again(
    tmp_path: Path,
) -> None:
    stale, ended = told(RUNNING), told(row("i-1", "shutting-down"))

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        left = await provider.leftovers()
        assert left == Leftovers([], ["instance i-1 (, ) is shutting-down"])
        assert times(script, "describe_instances") == [0.0, 1.05, 2.05]
        assert script.operations.count("terminate_instances") == 1

    play(tmp_path, scenario, describe_instances=[stale, stale, ended])

    async def runs_on(provider: Ec2Provider, script: Script, door: Door) -> None:
        left = await provider.leftovers()
        assert left.costing == ["instance i-1 (, ) is running"]

    play(tmp_path / "on", runs_on, terminate_instances=refusal("OperationNotPermitted", 400))

    async def for_ever(provider: Ec2Provider, script: Script, door: Door) -> None:
        left = await provider.leftovers()
        assert left.costing == ["instance i-1 (, ) is running"]
        assert 20.0 < now() < 40.0

    play(tmp_path / "stale", for_ever)


def test_what_was_never_opened_launches_nothing() -> None:
    async def scenario() -> None:
        cloud, _ = cloud_of(describe_instances=told())
        settings = Ec2Settings("r1", "n", "me", ("p3",), 1, "ami-1", math.inf, 1.0, Path("/none"))
        provider = Ec2Provider(settings, Door(), cloud)  # type: ignore[arg-type]
        error = await raised(provider.launch(TOKEN))
        assert isinstance(error, ProviderError)
        assert str(error) == "this provider has not been opened"
        await provider.close()

    played(scenario())
