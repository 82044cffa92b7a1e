"""One instance where all may be useless: after a cause that may stop every one of them, and where
none of this home was ever ready.
"""

from __future__ import annotations

from typing import Any

import pytest

from seerd.core.commands import AnyCommand, Launch
from seerd.core.events import (
    InstanceAwaited,
    InstanceLost,
    InstanceTerminated,
    LaunchRefused,
    SetbackCause,
    StopAsked,
)
from seerd.core.instances import PROOF_S
from seerd.core.lifecycle import RunPhase
from seerd.core.provisioning import refused
from seerd.telling.complaints import notes_of
from seerd.telling.diagnosis import diagnose
from seerd.telling.run_json import ledger
from tests.core.test_provisioning import Cloud, MakeFacts, due

TIMED_OUT = "timed out: no answer on port 22"
SCOUT_S = 40.0


def useless(
    cloud: Cloud, launch: Launch, at: float, cause: SetbackCause | None = "ssh"
) -> list[AnyCommand]:
    """It ran, and was of no use."""
    return cloud.tell(
        LaunchRefused(
            at=at,
            command=launch.id,
            why=TIMED_OUT,
            retry=True,
            running_since=at - 60.0,
            ended=at,
            cause=cause,
        )
    )


def awaited(cloud: Cloud, launch: Launch, at: float, what: Any, **more: str) -> list[AnyCommand]:
    event = InstanceAwaited(at=at, command=launch.id, instance="i-1", what=what, **more)
    return cloud.tell(event)


@pytest.fixture
def cloud(facts: MakeFacts) -> Cloud:
    made = Cloud(facts, budget_gpu_s=40_000.0)
    assert len(made.open) == 3
    return made


@pytest.fixture
def unknown(facts: MakeFacts) -> Cloud:
    """On an account where no instance of this home was ever ready."""
    return Cloud(facts, {"scout_s": SCOUT_S}, budget_gpu_s=40_000.0)


# ---------------------------------------------------------------- after a systematic failure


def test_after_a_batch_that_failed_with_one_cause_the_next_try_is_one_instance(
    cloud: Cloud,
) -> None:
    for launch in cloud.open:
        assert cloud.launches(useless(cloud, launch, 61.0)) == []
    (scout,) = cloud.launches(cloud.wake())
    useless(cloud, scout, 150.0)
    assert cloud.state.phase is RunPhase.OVER
    assert refused(cloud.state) == TIMED_OUT
    assert len(cloud.state.fleet.instances) == 4, "the first launch, and one instance more"


def test_nothing_is_launched_while_the_rest_of_the_batch_is_awaited(cloud: Cloud) -> None:
    first, second, third = cloud.open
    useless(cloud, first, 61.0)
    assert cloud.launches(cloud.wake()) == []
    useless(cloud, second, 77.0)
    assert cloud.launches(cloud.come(third, "c", 80.0)) == []
    assert len(cloud.launches(cloud.wake())) == 2, "one was ready, so it is no fault of all"


def test_the_scout_that_is_ready_brings_the_others(cloud: Cloud) -> None:
    for launch in cloud.open:
        useless(cloud, launch, 61.0)
    (scout,) = cloud.launches(cloud.wake())
    assert len(cloud.launches(cloud.come(scout, "a", 100.0))) == 2


def test_another_cause_is_another_mistake_and_gets_a_scout_of_its_own(cloud: Cloud) -> None:
    for launch in cloud.open:
        useless(cloud, launch, 61.0)
    (scout,) = cloud.launches(cloud.wake())
    useless(cloud, scout, 150.0, "driver")
    (second,) = cloud.launches(cloud.wake())
    assert cloud.state.phase is RunPhase.RUNNING
    useless(cloud, second, 250.0, "driver")
    assert cloud.state.phase is RunPhase.OVER


def test_a_lack_of_capacity_of_the_scout_is_no_second_failure(cloud: Cloud) -> None:
    for launch in cloud.open:
        useless(cloud, launch, 61.0)
    (scout,) = cloud.launches(cloud.wake())
    cloud.refuse(scout, 80.0)
    (again,) = cloud.launches(cloud.wake())
    assert cloud.state.phase is RunPhase.RUNNING
    useless(cloud, again, 200.0)
    assert cloud.state.phase is RunPhase.OVER


def test_a_run_that_had_an_instance_goes_on_asking_for_all(cloud: Cloud) -> None:
    first, *others = cloud.open
    cloud.come(first, "a", 5.0)
    for launch in others:
        useless(cloud, launch, 61.0)
    again = cloud.launches(cloud.wake())
    assert len(again) == 2
    for launch in again:
        useless(cloud, launch, 140.0)
    assert cloud.state.phase is RunPhase.RUNNING
    assert len(cloud.launches(cloud.wake())) == 2


# ---------------------------------------------------------------- where nothing is known


def test_the_first_launch_is_one_instance_and_the_others_follow_when_it_is_ready(
    unknown: Cloud,
) -> None:
    (scout,) = unknown.open
    held_back = unknown.state.fleet.held_back
    assert held_back is not None
    assert (held_back.why, held_back.needed, held_back.had) == ("scout", 3, 1)
    assert len(unknown.launches(unknown.come(scout, "a", 10.0))) == 2
    assert unknown.state.fleet.held_back is None


def test_the_others_follow_after_its_median_boot_too(unknown: Cloud) -> None:
    assert len(unknown.open) == 1
    assert due(unknown) == SCOUT_S
    assert len(unknown.launches(unknown.wake())) == 2


def test_nobody_follows_a_scout_that_runs_and_cannot_be_logged_in_to(unknown: Cloud) -> None:
    (scout,) = unknown.open
    awaited(unknown, scout, 1.0, "launched")
    awaited(unknown, scout, 9.0, "running")
    assert unknown.launches(unknown.wake()) == []
    assert unknown.launches(awaited(unknown, scout, 69.0, "unreached", why=TIMED_OUT)) == []
    assert due(unknown) > 200.0
    assert unknown.launches(awaited(unknown, scout, 80.0, "reached")) == []
    assert due(unknown) == 80.0 + PROOF_S, "it may not be able to use the store"
    assert len(unknown.launches(unknown.wake())) == 2


def test_a_scout_that_is_useless_is_followed_by_one_instance_and_no_more(unknown: Cloud) -> None:
    (scout,) = unknown.open
    useless(unknown, scout, 30.0)
    assert unknown.launches(unknown.wake()) == [], "its boot would be over"
    (second,) = unknown.launches(unknown.wake())
    assert due(unknown) > 200.0, "time alone brings nobody"
    useless(unknown, second, 100.0)
    assert unknown.state.phase is RunPhase.OVER
    assert len(unknown.state.fleet.instances) == 2


def test_once_one_was_ready_a_lost_instance_is_replaced_as_ever(unknown: Cloud) -> None:
    (scout,) = unknown.open
    for number, launch in enumerate(unknown.launches(unknown.come(scout, "a", 10.0))):
        unknown.come(launch, f"b{number}", 20.0)
    lost = [InstanceLost(at=50.0, instance=name, why="power failure") for name in ("a", "b0")]
    assert [len(unknown.launches(unknown.tell(event))) for event in lost] == [1, 1]


# ---------------------------------------------------------------- what is told


def test_how_far_an_instance_is_changes_no_decision_and_names_it_in_the_ledger(
    unknown: Cloud,
) -> None:
    (scout,) = unknown.open
    assert awaited(unknown, scout, 1.0, "launched", where="g5.xlarge in us-east-1a") == []
    assert awaited(unknown, scout, 9.0, "running") == []
    (charge,) = ledger(unknown.state, 20.0)["charges"]
    assert (charge["what"], charge["instance"]) == (scout.id, "i-1")
    assert notes_of(unknown.state) == []
    assert awaited(unknown, scout, 30.0, "unreached", why=TIMED_OUT) == []
    assert notes_of(unknown.state) == [f"i-1 cannot be used: {TIMED_OUT}"]
    assert awaited(unknown, scout, 35.0, "reached") == []
    assert notes_of(unknown.state) == []
    unknown.come(scout, "i-1", 36.0)
    awaited(unknown, scout, 37.0, "unreached", why=TIMED_OUT)
    assert notes_of(unknown.state) == [], "news that comes too late"


@pytest.mark.parametrize(
    ("last", "cause", "says"),
    [
        ("unreached", "unreached", f"i-1 cannot be used: {TIMED_OUT}"),
        ("running", "unreached", "i-1 ran, and nobody could log in"),
        ("reached", "not-tried", "no instance was ready"),
        ("launched", "not-tried", "no instance was ready"),
    ],
)
def test_a_run_whose_instances_ran_unreached_is_not_told_to_take_longer(
    unknown: Cloud, last: Any, cause: str, says: str
) -> None:
    (scout,) = unknown.open
    stages = ("launched", "running", "unreached", "reached")
    for number, what in enumerate(stages[: stages.index(last) + 1]):
        awaited(unknown, scout, 1.0 + number, what, why=TIMED_OUT if what == "unreached" else "")
    for command in unknown.tell(StopAsked(at=20.0)):
        name = getattr(command, "instance", None)
        if name is not None:
            unknown.tell(InstanceTerminated(at=21.0, command=command.id, instance=name))
    assert unknown.state.finished
    why = diagnose(unknown.state)
    assert why.cause == cause
    assert says in why.text
    assert ("longer --deadline" in why.text) is (cause == "not-tried")
