"""The run's instances together, in virtual time: how often EC2 is asked, what its answers mean, how
long an end is insisted on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from seerd.aws import cloud as clouds
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import seen
from seerd.backends.base import Loss, Span
from seerd.backends.ec2.fleet import Ec2Fleet, joined
from seerd.backends.ec2.flight import exhausted
from seerd.backends.ec2.request import Candidate, client_token
from seerd.errors import ProviderError
from tests.aws.scripted import Script, cloud_of, played, raised
from tests.faults.ec2 import refusal
from tests.faults.timeline import EPOCH

HARD_END = EPOCH + 1000.0
PLACES = (Candidate("p3.2xlarge", "s-1", "us-east-1a"),)
BUSY = refusal("RequestLimitExceeded", 503)
EXPIRED, GONE = refusal("ExpiredToken", 400), refusal("InvalidInstanceID.NotFound", 400)


@pytest.fixture(autouse=True)
def dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits before repetitions are as long as they can be."""
    longest = random.Random()
    longest.uniform = lambda least, most: most  # type: ignore[method-assign]
    monkeypatch.setattr(clouds, "_dice", longest)


def row(name: str, state: str, token: str = "2.0", run: str = "r1", **more: Any) -> dict[str, Any]:
    """An instance that was launched at second 1, as EC2 tells of it."""
    tags = {"seerd:run": run, "seerd:command": token}
    return {
        "InstanceId": name,
        "State": {"Name": state},
        "LaunchTime": datetime.fromtimestamp(EPOCH + 1, UTC),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        "PrivateIpAddress": "10.0.0.1",
        "PublicIpAddress": "3.3.3.3",
        **more,
    }


def told(*rows: dict[str, Any]) -> dict[str, Any]:
    """An answer with these instances."""
    return {"Reservations": [{"Instances": list(rows)}]}


def ending(name: str, now: str = "shutting-down", before: str = "running") -> dict[str, Any]:
    """An answer to a termination."""
    states = {"PreviousState": {"Name": before}, "CurrentState": {"Name": now}}
    return {"TerminatingInstances": [{"InstanceId": name, **states}]}


def play(
    scenario: Callable[[Ec2Fleet, Script], Awaitable[None]], busy: str = "", **answers: Any
) -> Script:
    """A fleet of run r1 in front of these answers. `busy`: a launch that is under way."""
    cloud, script = cloud_of(**answers)

    async def run() -> None:
        fleet = Ec2Fleet("r1", HARD_END, cloud, lambda token: token == busy)
        fleet.places = PLACES
        try:
            await scenario(fleet, script)
        finally:
            await fleet.close()

    played(run())
    return script


def now() -> float:
    return asyncio.get_running_loop().time()


def times(script: Script, operation: str) -> list[float]:
    """When this was asked for."""
    asked = zip(script.times, script.operations, strict=True)
    return [round(at, 3) for at, of in asked if of == operation]


async def taken_up(fleet: Ec2Fleet, name: str = "i-1", state: str = "running") -> Any:
    """An instance that the run has."""
    entry = fleet.register.take_up(seen(row(name, state)), EPOCH + now())
    entry.handed_over = True
    return entry


# ------------------------------------------------------------ watching


def test_ec2_is_asked_calmly_while_nothing_is_awaited_and_at_once_when_it_is() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        fleet.watch()
        await asyncio.sleep(11.0)
        assert times(script, "describe_instances") == [0.0, 5.0, 10.0]
        fleet.watch()
        await asyncio.sleep(1.0)
        assert times(script, "describe_instances")[3:] == [11.0]
        await asyncio.sleep(4.5)
        fleet.register["i-1"].given_back = True
        await asyncio.sleep(1.6)
        assert times(script, "describe_instances")[4:] == [16.0, 16.5, 17.0, 17.5, 18.0]

    play(scenario, describe_instances=told(row("i-1", "running")))


def test_a_start_is_asked_for_twice_a_second_and_waited_for() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entry = fleet.register.expect(seen(row("i-1", "pending")), "2.0", EPOCH, EPOCH)
        await fleet.until(lambda: entry.ran)
        assert now() == 1.5
        assert entry.span == Span(EPOCH + 1.0, None), "it may run since the last time it did not"
        assert times(script, "describe_instances") == [0.0, 0.5, 1.0, 1.5]
        filters = [{"Name": "tag:seerd:run", "Values": ["r1"]}]
        assert script.calls[0][1] == {"Filters": filters, "MaxResults": 1000}

    pending = told(row("i-1", "pending"))
    play(scenario, describe_instances=[pending, pending, pending, told(row("i-1", "running"))])


def test_while_ec2_does_not_answer_nothing_is_lost_and_it_is_known() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        fleet.watch()
        await asyncio.sleep(4.0)
        assert isinstance(fleet.blind, AwsError)
        assert fleet.blind.code == "ExpiredToken"
        assert times(script, "describe_instances") == [0.0, 5.0][:1]
        await asyncio.sleep(8.0)
        assert fleet.blind is None
        assert not fleet.register["i-1"].ended

    play(scenario, describe_instances=[EXPIRED, told(row("i-1", "running"))])


def test_an_instance_that_ends_by_itself_is_a_loss_with_its_span() -> None:
    gone = row(
        "i-1",
        "terminated",
        StateReason={"Code": "Server.SpotInstanceTermination", "Message": "x"},
    )

    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        loss = await fleet.loss()
        why = "i-1 is gone: AWS took the spot instance back (Server.SpotInstanceTermination)"
        assert loss == Loss("i-1", why, Span(EPOCH, EPOCH + 5.0))
        assert now() == 5.0

    play(scenario, describe_instances=[told(row("i-1", "running")), told(gone)])


@pytest.mark.parametrize("busy", ["", "9.0"])
def test_what_nobody_knows_is_ended_unless_its_launch_is_under_way(busy: str) -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        fleet.watch()
        await asyncio.sleep(3.0)
        assert script.operations.count("terminate_instances") == (not busy)
        assert ("i-9" in fleet.register) == (not busy)

    play(
        scenario,
        busy,
        describe_instances=told(row("i-9", "running", "9.0")),
        terminate_instances=ending("i-9"),
    )


def test_a_bug_in_the_watch_reaches_whoever_waits_for_it() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        for work in (fleet.loss(), fleet.until(lambda: False)):
            assert isinstance(await raised(work), KeyError)

    play(scenario, describe_instances={"No": "reservations"})


# ------------------------------------------------------------ finding


def test_what_a_launch_brought_is_found_by_its_tags_or_by_its_requests() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        (entry,) = await fleet.find_launched("2.0")
        assert (entry.instance, entry.token) == ("i-1", "2.0")
        (entry,) = await fleet.find_launched("3.0")
        assert (entry.instance, entry.token, entry.ran) == ("i-2", "3.0", True)
        asked = [request["Filters"] for _, request in script.calls]
        of = [{"Name": "tag:seerd:run", "Values": ["r1"]}]
        assert asked == [
            [*of, {"Name": "tag:seerd:command", "Values": ["2.0"]}],
            [*of, {"Name": "tag:seerd:command", "Values": ["3.0"]}],
            [{"Name": "client-token", "Values": [client_token("r1", "3.0", PLACES[0])]}],
        ]
        assert await fleet.find_known(["i-5", "i-6"]) == []

    play(
        scenario,
        describe_instances=[
            told(row("i-1", "running")),
            told(),
            told({**row("i-2", "running"), "Tags": []}),
            told(row("i-5", "running", run="another")),
        ],
    )


def test_a_launch_of_unknown_outcome_is_looked_for_every_second_until_its_end() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        assert await fleet.hunt("2.0", EPOCH + 3.0) == []
        assert now() == 3.0
        assert times(script, "describe_instances") == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]

    play(scenario, describe_instances=told())


def test_a_refusal_that_a_person_may_mend_is_borne_for_four_minutes() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        error = await raised(fleet.hunt("2.0", EPOCH + 3.0))
        assert isinstance(error, AwsError)
        assert now() == 240.0

    play(scenario, describe_instances=EXPIRED)

    async def found(fleet: Ec2Fleet, script: Script) -> None:
        assert [entry.instance for entry in await fleet.hunt("2.0", EPOCH + 9.0)] == ["i-1"]
        assert now() == 2.0

    play(found, describe_instances=[EXPIRED, EXPIRED, told(row("i-1", "running"))])


# ------------------------------------------------------------ ending


def test_an_end_is_had_with_the_first_answer_that_says_so() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entry = await taken_up(fleet)
        assert await fleet.end("i-1") == Span(EPOCH, EPOCH + 0.05)
        assert (entry.given_back, entry.ended, entry.ran) == (True, True, True)
        assert await fleet.end("i-1") == entry.span, "nothing is asked again"
        assert script.calls == [("terminate_instances", {"InstanceIds": ["i-1"]})]

    play(scenario, terminate_instances=ending("i-1"))


def test_an_instance_that_never_ran_has_no_span() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entry = fleet.register.expect(seen(row("i-1", "pending")), "2.0", EPOCH, EPOCH)
        assert await fleet.end("i-1") == Span()
        assert entry.ended

    play(scenario, terminate_instances=ending("i-1", before="pending"))


def test_an_instance_that_had_ended_before_has_ended_when_ec2_says() -> None:
    when = datetime.fromtimestamp(EPOCH + 1, UTC)
    gone = row("i-1", "terminated", StateTransitionReason=f"User ({when:%Y-%m-%d %H:%M:%S} GMT)")

    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        await asyncio.sleep(9.0)
        assert await fleet.end("i-1") == Span(EPOCH, EPOCH + 2.0)
        by_id = [{"Name": "instance-id", "Values": ["i-1"]}]
        assert script.calls[1] == (
            "describe_instances",
            {"Filters": by_id, "MaxResults": 1000},
        )

    play(
        scenario,
        terminate_instances=ending("i-1", "terminated", "terminated"),
        describe_instances=told(gone),
    )

    async def unknown(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        assert await fleet.end("i-1") == Span(EPOCH, EPOCH + 0.05), "EC2 does not know it any more"

    play(
        unknown,
        terminate_instances=ending("i-1", "terminated", "terminated"),
        describe_instances=EXPIRED,
    )


def test_an_end_that_ec2_does_not_begin_is_asked_for_again() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        await fleet.end("i-1")
        # 0.05 to gather, then pauses of 0.2, 0.4 and 0.8.
        assert times(script, "terminate_instances") == pytest.approx([0.05, 0.25, 0.65, 1.45])

    answers = [ending("i-1", "running"), {"TerminatingInstances": []}, BUSY, ending("i-1")]
    play(scenario, terminate_instances=answers)


def test_an_end_that_is_refused_for_good_is_told_with_what_to_type() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entry = await taken_up(fleet)
        error = await raised(fleet.end("i-1"))
        assert isinstance(error, ProviderError)
        assert "--region us-east-1 --instance-ids i-1" in str(error)
        assert "goes on costing" in str(error)
        assert 240.0 <= now() < 252.0
        assert not entry.ended

    play(scenario, terminate_instances=EXPIRED, describe_instances=EXPIRED)


def test_an_end_that_was_refused_though_it_has_happened_is_one() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        span = await fleet.end("i-1")
        assert span.until == pytest.approx(EPOCH + 0.05)
        assert script.operations == ["terminate_instances", "describe_instances"]

    play(
        scenario,
        terminate_instances=EXPIRED,
        describe_instances=told(row("i-1", "shutting-down")),
    )


def test_an_end_is_insisted_on_for_two_minutes_past_the_hard_end_while_ec2_is_busy() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        await taken_up(fleet)
        fleet.hard_end = EPOCH + 100.0
        error = await raised(fleet.end("i-1"))
        assert isinstance(error, ProviderError)
        assert 220.0 <= now() < 232.0

    play(scenario, terminate_instances=BUSY, describe_instances=told(row("i-1", "running")))


def test_an_instance_that_ec2_does_not_know_has_ended_after_a_minute() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entry = await taken_up(fleet)
        entry.missing_at = EPOCH + 7.0
        span = await fleet.end("i-1")
        assert span == Span(EPOCH, EPOCH + 7.0)
        assert now() == pytest.approx(62.65)  # of the first try after it

    play(scenario, terminate_instances=GONE, describe_instances=told())


def test_instances_that_are_ended_together_are_ended_by_one_call_and_told_as_one_span() -> None:
    both = ending("i-1")["TerminatingInstances"] + ending("i-2")["TerminatingInstances"]

    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entries = [await taken_up(fleet, "i-1"), await taken_up(fleet, "i-2")]
        entries[1].idle_at = EPOCH - 5
        assert await fleet.end_all(entries) == Span(EPOCH - 5, EPOCH + 0.05)
        assert script.calls == [("terminate_instances", {"InstanceIds": ["i-1", "i-2"]})]

    play(scenario, terminate_instances={"TerminatingInstances": both})


def test_after_a_refusal_that_may_concern_one_each_is_asked_for_alone() -> None:
    async def scenario(fleet: Ec2Fleet, script: Script) -> None:
        entries = [await taken_up(fleet, name) for name in ("i-1", "i-2")]
        await fleet.end_all(entries)
        asked = [request["InstanceIds"] for _, request in script.calls]
        assert asked == [["i-1", "i-2"], ["i-1"], ["i-2"]]

    denied = refusal("OperationNotPermitted", 400)
    play(scenario, terminate_instances=[denied, ending("i-1"), ending("i-2")])


def test_one_span_of_several_lasts_from_the_first_start_to_the_last_end() -> None:
    assert joined([]) == Span()
    assert joined([Span(), Span()]) == Span()
    assert joined([Span(2.0, 5.0), Span(), Span(1.0, 3.0)]) == Span(1.0, 5.0)
    assert joined([Span(2.0, 5.0), Span(1.0, None)]) == Span(1.0, None)
    assert joined([Span(0.0, 0.0)]) == Span(0.0, 0.0)


@pytest.mark.parametrize(
    ("kinds", "others", "retry", "goes_on"),
    [
        ([ErrorKind.CAPACITY], False, True, False),
        ([ErrorKind.CAPACITY, ErrorKind.QUOTA], True, True, False),
        ([ErrorKind.QUOTA], True, True, True),
        ([ErrorKind.QUOTA], False, False, False),
        ([ErrorKind.ELSEWHERE], True, False, False),
    ],
)
def test_a_launch_that_no_place_gives_says_whether_asking_again_may_help(
    kinds: list[ErrorKind], others: bool, retry: bool, goes_on: bool
) -> None:
    refusals = [(PLACES[0], AwsError(f"none ({kind.value})", kind, kind.value)) for kind in kinds]
    error = exhausted(refusals, others=others)
    assert error.retry == retry
    lines = str(error).removeprefix("no instance could be had: ").split("\n  ")
    advice = "\nThe run goes on with the instances that it has." if goes_on else ""
    assert lines == [f"{PLACES[0]}: none ({kind.value}){advice}" for kind in kinds]


def test_places_that_refuse_for_one_cause_are_one_line() -> None:
    dry = [AwsError(f"none here ({n})", ErrorKind.CAPACITY, "Insufficient") for n in range(5)]
    zones = ["us-east-1a", "us-east-1b"]
    places = [Candidate("g5.xlarge", f"s-{zone}", zone) for zone in zones]
    places += [Candidate("g5.xlarge", "another subnet", zones[0])]
    places += [Candidate("p5.48xlarge", "s-a", zones[0])]
    quota = Candidate("p5.48xlarge", "s-b", zones[1]), AwsError("used up", ErrorKind.QUOTA, "Vcpu")
    text = str(exhausted([*zip(places, dry, strict=False), quota], others=False))
    assert text == (
        "no instance could be had: g5.xlarge in us-east-1a, us-east-1b; p5.48xlarge in us-east-1a: "
        "none here (0)\n  p5.48xlarge in us-east-1b: used up"
    )
