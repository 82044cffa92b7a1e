"""Launches that are refused, instances that the cloud takes away, and launches that come too
late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
from msgspec import UNSET

from bench.testbed.invariants import violations
from seerd.core.commands import (
    AnyCommand,
    Launch,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.events import (
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    RunFacts,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialExited,
    TrialStarted,
)
from seerd.core.failures import hopeless_jobs
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import close_at, grace_s, release_s
from seerd.core.provisioning import refused
from seerd.core.rules import RULES
from seerd.core.state import State
from seerd.telling.complaints import notes_of
from tests.by_hand import begun, handle, reconciled_again

MakeFacts = Callable[..., RunFacts]
GPUS = 4


class Cloud:
    """A run of SEER that wants three instances of four GPUs, or with limits of its own one of
    twelve equal trials; the test is the cloud.
    """

    def __init__(
        self, facts: MakeFacts, cluster: dict[str, object] | None = None, **limits: float | None
    ) -> None:
        made = facts(
            billing="rented", gpus=GPUS, deadline_s=600.0, budget_gpu_s=4000.0, t_min_s=150.0
        )
        params = (
            replace(made.problem.params, name="random", trials=12, p_max=1, t_min_s=15.0)
            if limits
            else made.problem.params
        )
        problem = replace(
            made.problem, limits=replace(made.problem.limits, **limits), params=params
        )
        made = msgspec.structs.replace(
            made, problem=problem, cluster=replace(made.cluster, **(cluster or {}))
        )
        self.state: State = begun(made)
        self.timer: SetTimer | None = None
        self.open = self.launches(self.tell(RunStarted(at=0.0, facts=made)))
        self.facts = 0

    def tell(self, event: object) -> list[AnyCommand]:
        commands = handle(self.state, event)  # type: ignore[arg-type]
        assert violations(self.state) == []
        if self.state.phase is not RunPhase.OVER:
            assert reconciled_again(self.state) == []
        timers = [c for c in commands if isinstance(c, SetTimer)]
        self.timer = timers[-1] if timers else self.timer
        return commands

    @staticmethod
    def launches(commands: Sequence[AnyCommand]) -> list[Launch]:
        return [c for c in commands if isinstance(c, Launch)]

    def refuse(
        self, launch: Launch, at: float, *, retry: bool = True, unknown: bool = False
    ) -> list[AnyCommand]:
        return self.tell(
            LaunchRefused(at=at, command=launch.id, why="no capacity", retry=retry, unknown=unknown)
        )

    def come(self, launch: Launch, name: str, at: float) -> list[AnyCommand]:
        commands = self.tell(
            InstanceReady(at=at, command=launch.id, instance=name, gpus=GPUS, running_since=at)
        )
        for start in commands:
            if isinstance(start, StartTrial):
                self.fact(
                    TrialStarted,
                    start.instance,
                    at,
                    trial=start.trial,
                    attempt=start.attempt,
                    pid=1,
                )
        return commands

    def fact(self, kind: type, name: str, at: float, **fields: object) -> list[AnyCommand]:
        self.facts += 1
        return self.tell(kind(at=at, happened=at, instance=name, fact=self.facts, **fields))

    def wake(self) -> list[AnyCommand]:
        """The timer fires."""
        assert self.timer is not None
        return self.tell(TimerFired(at=self.timer.due, command=self.timer.id))

    def exit(self, stop: StopTrial, at: float) -> list[AnyCommand]:
        return self.fact(
            TrialExited,
            stop.instance,
            at,
            trial=stop.trial,
            attempt=stop.attempt,
            cause="asked",
            code=0,
        )


@pytest.fixture
def cloud(facts: MakeFacts) -> Cloud:
    made = Cloud(facts)
    assert len(made.open) == 3
    return made


def due(cloud: Cloud) -> float:
    assert cloud.timer is not None
    return cloud.timer.due


# ---------------------------------------------------------------- refusals


def test_what_is_refused_is_not_asked_for_again_at_once(cloud: Cloud) -> None:
    first, second, third = cloud.open
    assert cloud.launches(cloud.refuse(first, 1.0)) == []
    assert due(cloud) == 16.0
    cloud.come(second, "b", 5.0)
    assert cloud.launches(cloud.refuse(third, 10.0)) == []
    assert cloud.launches(cloud.wake()) == []
    assert due(cloud) == 25.0
    assert len(cloud.launches(cloud.wake())) == 2


def test_each_refusal_in_a_row_doubles_the_wait_up_to_two_minutes(facts: MakeFacts) -> None:
    cloud = Cloud(facts, deadline_s=36_000.0, budget_gpu_s=400_000.0)
    first, *others = cloud.open
    for number, launch in enumerate(others):
        cloud.come(launch, f"i{number}", 1.0)
    waits, at = [], 1.0
    for _ in range(6):
        cloud.refuse(first, at)
        waits.append(due(cloud) - at)
        at = due(cloud)
        (first,) = cloud.launches(cloud.wake())
    assert waits == [15.0, 30.0, 60.0, 120.0, 120.0, 120.0]
    cloud.come(first, "last", at)
    (again,) = cloud.launches(
        cloud.tell(InstanceLost(at=at + 1, instance="last", why="power failure"))
    )
    cloud.refuse(again, at + 2)
    assert due(cloud) - (at + 2) == 15.0


def test_a_short_run_does_not_wait_long(facts: MakeFacts) -> None:
    cloud = Cloud(facts, deadline_s=120.0, budget_gpu_s=2000.0)
    for launch in cloud.open:
        cloud.refuse(launch, 1.0)
    assert due(cloud) == 1.0 + 120.0 / 20


def always_refused(cloud: Cloud) -> int:
    """Refuse all launches until the run is over; return how many times they were asked for."""
    asked, at = 0, 0.0
    while cloud.state.phase is RunPhase.RUNNING:
        asked += 1
        for launch in cloud.open:
            cloud.refuse(launch, at + 1.0)
        if cloud.state.phase is RunPhase.RUNNING:
            at = due(cloud)
            cloud.open = cloud.launches(cloud.wake())
    assert refused(cloud.state) == "no capacity"
    return asked


def test_launches_that_are_refused_together_are_one_refusal(facts: MakeFacts) -> None:
    cloud = Cloud(facts, {"wait_s": 60.0})
    assert len(cloud.open) == 3
    assert always_refused(cloud) == 3
    assert cloud.state.end.status == "failed"


def test_a_run_without_an_instance_asks_while_a_first_round_still_fits(facts: MakeFacts) -> None:
    """An instance that boots within 600 s and a round of 15 s have to fit."""
    limits = {"deadline_s": 6000.0, "budget_gpu_s": 40_000.0}
    cloud = Cloud(facts, {"boot_s": 600.0}, **limits)
    always_refused(cloud)
    last_s = close_at(cloud.state) - 600.0 - 15.0
    assert last_s - RULES.retry_most_s < cloud.state.now < last_s
    assert (cloud.state.end.status, cloud.state.end.why) == ("failed", "no-instance")


@pytest.mark.parametrize(("wait_s", "asked"), [(20.0, 2), (600.0, 8)])
def test_a_run_without_an_instance_asks_for_as_long_as_its_user_wants(
    facts: MakeFacts, wait_s: float, asked: int
) -> None:
    cloud = Cloud(facts, {"wait_s": wait_s}, deadline_s=6000.0, budget_gpu_s=40_000.0)
    assert always_refused(cloud) == asked
    assert cloud.state.now <= 1.0 + wait_s
    assert (cloud.state.end.status, cloud.state.end.why) == ("failed", "no-instance")


def test_no_wait_is_longer_than_the_deadline(facts: MakeFacts) -> None:
    cloud = Cloud(facts, {"wait_s": 9000.0}, deadline_s=600.0, budget_gpu_s=40_000.0)
    always_refused(cloud)
    assert close_at(cloud.state) - 600.0 / RULES.retry_share < cloud.state.now < 600.0


def test_machines_that_are_there_are_asked_for_during_a_tenth_of_the_deadline(
    facts: MakeFacts,
) -> None:
    held: dict[str, object] = {"billing": "held", "max_instances": 3}
    cloud = Cloud(facts, held, deadline_s=6000.0, budget_gpu_s=40_000.0)
    assert always_refused(cloud) == 8
    assert 480.0 < cloud.state.now <= 600.0


def test_a_refusal_for_good_ends_a_run_that_has_nothing(cloud: Cloud) -> None:
    for launch in cloud.open:
        assert cloud.state.phase is RunPhase.RUNNING
        cloud.refuse(launch, 1.0, retry=False)
    assert (cloud.state.end.status, refused(cloud.state)) == ("failed", "no capacity")


def test_a_refusal_for_good_is_asked_for_no_more_until_an_instance_is_gone(cloud: Cloud) -> None:
    first, second, third = cloud.open
    cloud.refuse(first, 1.0, retry=False)
    cloud.come(second, "b", 5.0)
    cloud.come(third, "c", 5.0)
    assert due(cloud) > 100.0
    lost = cloud.tell(InstanceLost(at=50.0, instance="c", why="power failure"))
    assert len(cloud.launches(lost)) == 2
    assert cloud.state.phase is RunPhase.RUNNING


def test_a_reason_that_nobody_knows_rests_launches_until_an_instance_comes_or_goes(
    cloud: Cloud,
) -> None:
    first, second, third = cloud.open
    assert cloud.launches(cloud.refuse(first, 1.0, retry=False, unknown=True)) == []
    assert due(cloud) > 100.0
    assert cloud.launches(cloud.come(second, "b", 5.0)) == []
    assert due(cloud) == 20.0
    (again,) = cloud.launches(cloud.wake())
    assert cloud.launches(cloud.refuse(again, 21.0, retry=False, unknown=True)) == []
    assert due(cloud) > 100.0
    assert cloud.launches(cloud.refuse(third, 22.0)) == []
    assert due(cloud) > 100.0, "a lack of capacity is no change"
    lost = cloud.tell(InstanceLost(at=50.0, instance="b", why="power failure"))
    assert len(cloud.launches(lost)) == 3
    assert cloud.state.phase is RunPhase.RUNNING


def test_a_reason_that_nobody_knows_ends_a_run_that_has_nothing_only_after_three_refusals(
    facts: MakeFacts,
) -> None:
    cloud, at, asked = Cloud(facts, {"wait_s": 60.0}), 0.0, 0
    while cloud.state.phase is RunPhase.RUNNING:
        asked += 1
        for launch in cloud.open:
            assert cloud.state.phase is RunPhase.RUNNING
            cloud.refuse(launch, at + 1.0, retry=False, unknown=True)
        if cloud.state.phase is RunPhase.RUNNING:
            at = due(cloud)
            assert at < 300.0
            cloud.open = cloud.launches(cloud.wake())
    assert asked == 3
    assert (cloud.state.end.status, refused(cloud.state)) == ("failed", "no capacity")


def test_a_known_refusal_for_good_stays_one_whatever_else_is_refused(cloud: Cloud) -> None:
    first, second, third = cloud.open
    cloud.refuse(first, 1.0, retry=False)
    cloud.refuse(second, 2.0, retry=False, unknown=True)
    cloud.come(third, "c", 5.0)
    assert due(cloud) > 100.0


def test_a_run_that_has_trained_was_not_refused(cloud: Cloud) -> None:
    first, *others = cloud.open
    for launch in others:
        cloud.refuse(launch, 1.0, retry=False)
    cloud.come(first, "a", 2.0)
    (again, *more) = cloud.launches(
        cloud.tell(InstanceLost(at=50.0, instance="a", why="power failure"))
    )
    for launch in (again, *more):
        cloud.refuse(launch, 51.0, retry=False)
    assert cloud.state.end.status == "failed"
    assert refused(cloud.state) is None


def test_a_run_that_the_person_ended_was_not_refused(cloud: Cloud) -> None:
    cloud.refuse(cloud.open[0], 1.0)
    for command in cloud.tell(StopAsked(at=2.0)):
        if isinstance(command, Terminate):
            cloud.tell(InstanceTerminated(at=3.0, command=command.id, instance=command.instance))
    assert cloud.state.finished
    assert refused(cloud.state) is None


# ---------------------------------------------------------------- too late, too expensive


@pytest.mark.parametrize(("at", "launched"), [(480.0, 1), (550.0, 0)])
def test_an_instance_that_could_not_be_ready_in_time_is_not_asked_for(
    facts: MakeFacts, at: float, launched: int
) -> None:
    """Closing begins at 593 s."""
    cloud = Cloud(facts, {"boot_s": 60.0}, budget_gpu_s=40_000.0)
    names = full(cloud)
    assert (
        len(cloud.launches(cloud.tell(InstanceLost(at=at, instance=names[0], why="power failure"))))
        == launched
    )


def test_a_run_without_an_instance_and_without_time_for_another_one_is_over(
    facts: MakeFacts,
) -> None:
    cloud = Cloud(facts, {"boot_s": 60.0}, budget_gpu_s=40_000.0)
    for name in full(cloud):
        cloud.tell(InstanceLost(at=550.0, instance=name, why="power failure"))
    assert cloud.state.end.status == "done", "its last stage ends a little earlier"


@pytest.mark.parametrize(("budget_gpu_s", "at_once"), [(4000.0, 0), (40_000.0, 1)])
def test_a_launch_waits_for_those_that_would_use_up_the_budget_if_nobody_told_them_of_it(
    facts: MakeFacts, budget_gpu_s: float, at_once: int
) -> None:
    """One is under way that was told to end when all of them have used the budget up; now there
    would be one more.
    """
    cloud = Cloud(facts, budget_gpu_s=budget_gpu_s)
    first, *_, last = cloud.open
    cloud.come(first, "a", 1.0)
    commands = cloud.fact(InstanceNoticed, "a", 20.0, what="interruption", by=140.0)
    assert len(cloud.launches(commands)) == at_once
    if not at_once:
        assert len(cloud.launches(cloud.come(last, "c", 30.0))) == 1


def test_a_run_without_an_instance_and_without_money_for_another_one_is_over(cloud: Cloud) -> None:
    for name in full(cloud):
        cloud.tell(InstanceLost(at=325.0, instance=name, why="power failure"))
    assert cloud.state.end.status == "budget"


# ---------------------------------------------------------------- instances that are taken away


def full(cloud: Cloud) -> list[str]:
    """All instances have come: a, b, c, ..."""
    names = [chr(ord("a") + number) for number in range(len(cloud.open))]
    for name, launch in zip(names, cloud.open, strict=True):
        cloud.come(launch, name, 1.0)
    return names


def stopped(commands: Sequence[AnyCommand], name: str) -> list[StopTrial]:
    return [c for c in commands if isinstance(c, StopTrial) and c.instance == name]


def test_what_runs_on_a_leaving_instance_saves_and_moves_and_another_one_is_asked_for_at_once(
    cloud: Cloud,
) -> None:
    full(cloud)
    there = set(cloud.state.fleet.instances["b"].busy.values())
    commands = cloud.fact(InstanceNoticed, "b", 50.0, what="interruption", by=170.0)
    assert {stop.trial for stop in stopped(commands, "b")} == there
    assert all(c.checkpoint for c in commands if isinstance(c, StopTrial))
    assert len(cloud.launches(commands)) == 1
    moved: list[AnyCommand] = []
    for stop in [c for c in commands if isinstance(c, StopTrial)]:
        moved += cloud.exit(stop, 51.0)
    assert [c.instance for c in moved if isinstance(c, Terminate)] == ["b"]
    assert not [c for c in moved if isinstance(c, StartTrial) and c.instance == "b"]
    (launch,) = cloud.launches(commands)
    moved += cloud.come(launch, "d", 90.0)
    assert there <= {c.trial for c in moved if isinstance(c, StartTrial)}


BROKEN = "GPU 0 has broken: it has fallen off the bus (XID 79)"


@pytest.mark.parametrize("fault", [BROKEN, ""])
def test_a_crash_on_a_broken_gpu_is_not_the_trials_and_its_instance_is_replaced(
    cloud: Cloud, fault: str
) -> None:
    full(cloud)
    trial = cloud.state.trials[cloud.state.fleet.instances["b"].busy[0]]
    if fault:
        commands = cloud.fact(InstanceNoticed, "b", 50.0, what="unhealthy", why=BROKEN)
        assert len(cloud.launches(commands)) == 1
    restarts = cloud.fact(
        TrialExited,
        "b",
        50.0,
        trial=trial.id,
        attempt=1,
        cause="crashed",
        code=1,
        tail=("RuntimeError: CUDA error: address already in use",),
        obstacle="address",
        fault=fault or UNSET,
    )
    if not fault:
        assert trial.fault == "blocked"
        return
    assert (trial.crashes, trial.losses, trial.fault) == (0, 1, "lost")
    assert trial.why == f"ended with exit status 1; {BROKEN}"
    assert hopeless_jobs(cloud.state) == {}
    for stop in (c for c in commands if isinstance(c, StopTrial) and c.trial != trial.id):
        restarts += cloud.exit(stop, 51.0)
    starts = [c for c in restarts if isinstance(c, StartTrial) and c.trial == trial.id]
    assert [(start.attempt, start.instance != "b") for start in starts] == [(2, True)]


def test_after_a_hint_trials_stay_and_after_a_notice_they_move(facts: MakeFacts) -> None:
    """A rebalance recommendation comes far more often than an interruption."""
    cloud = Cloud(facts, {"hints_move": False})
    full(cloud)
    assert cloud.fact(InstanceNoticed, "b", 50.0, what="rebalance", by=None) == []
    assert cloud.state.fleet.instances["b"].phase is InstancePhase.READY
    assert any("save and stay" in note for note in notes_of(cloud.state))
    commands = cloud.fact(InstanceNoticed, "b", 60.0, what="interruption", by=180.0)
    assert stopped(commands, "b")
    assert len(cloud.launches(commands)) == 1


@pytest.mark.parametrize("early", [False, True])
def test_an_instance_is_left_five_minutes_before_its_maintenance(
    facts: MakeFacts, early: bool
) -> None:
    cloud = Cloud(facts, deadline_s=6000.0, budget_gpu_s=400_000.0)
    if early:
        cloud.fact(InstanceNoticed, "b", 0.5, what="maintenance", by=4000.0)
    names = full(cloud)
    if not early:
        assert (
            stopped(cloud.fact(InstanceNoticed, "b", 50.0, what="maintenance", by=4000.0), "b")
            == []
        )
    while due(cloud) < 3000.0:
        cloud.wake()
    assert due(cloud) == pytest.approx(4000.0 - RULES.retire_s - release_s(cloud.state))
    commands = cloud.wake()
    assert stopped(commands, "b")
    assert len(cloud.launches(commands)) == 1
    leaving = [n for n in names if cloud.state.fleet.instances[n].phase is InstancePhase.LEAVING]
    assert leaving == ["b"]
    assert notes_of(cloud.state)[-1] == "b ends before the run does, and is replaced"


@pytest.mark.parametrize(("by", "leaves"), [(40.0, True), (100.0, True), (7000.0, False)])
def test_maintenance_counts_from_its_time_on_and_only_before_the_end(
    facts: MakeFacts, by: float, leaves: bool
) -> None:
    cloud = Cloud(facts, deadline_s=6000.0, budget_gpu_s=400_000.0)
    full(cloud)
    cloud.fact(InstanceNoticed, "b", 50.0, what="maintenance", by=by)
    assert (due(cloud) <= 50.1) is leaves
    stops = stopped(cloud.wake(), "b")
    assert (cloud.state.fleet.instances["b"].phase is InstancePhase.LEAVING) is leaves
    if leaves:
        assert stops
        assert all(stop.checkpoint and stop.grace_s > 0 for stop in stops)


@pytest.mark.parametrize("early", [False, True])
def test_maintenance_that_is_canceled_replaces_no_instance(facts: MakeFacts, early: bool) -> None:
    cloud = Cloud(facts, deadline_s=6000.0, budget_gpu_s=400_000.0)
    at = 0.5 if early else 50.0
    if not early:
        full(cloud)
    cloud.fact(InstanceNoticed, "b", at, what="maintenance", by=4000.0)
    assert cloud.fact(InstanceNoticed, "b", at + 1.0, what="maintenance", by=None) == []
    if early:
        full(cloud)
    while due(cloud) < 5000.0:
        assert stopped(cloud.wake(), "b") == []
    assert cloud.state.fleet.instances["b"].phase is InstancePhase.READY


def test_maintenance_that_is_canceled_too_late_changes_nothing(facts: MakeFacts) -> None:
    cloud = Cloud(facts, deadline_s=6000.0, budget_gpu_s=400_000.0)
    full(cloud)
    cloud.fact(InstanceNoticed, "b", 50.0, what="maintenance", by=100.0)
    assert stopped(cloud.wake(), "b")
    cloud.fact(InstanceNoticed, "b", 51.0, what="maintenance", by=None)
    assert cloud.state.fleet.instances["b"].phase is InstancePhase.LEAVING


def test_an_instance_with_cold_starts_is_used_and_that_is_noted_once(cloud: Cloud) -> None:
    full(cloud)
    before = notes_of(cloud.state)
    for instance in ("a", "b"):
        assert cloud.fact(InstanceNoticed, instance, 50.0, what="cold", why="no forks") == []
        assert cloud.state.fleet.instances[instance].phase is InstancePhase.READY
    assert notes_of(cloud.state) == [*before, "no forks"]


def test_the_grace_ends_before_the_instance_does(cloud: Cloud) -> None:
    full(cloud)
    usual = grace_s(cloud.state)
    soon = cloud.fact(
        InstanceNoticed, "b", 50.0, what="interruption", by=50.0 + RULES.notice_margin_s + 1.5
    )
    assert {stop.grace_s for stop in stopped(soon, "b")} == {1.5}
    never = cloud.fact(InstanceNoticed, "a", 50.0, what="rebalance", by=None)
    assert {stop.grace_s for stop in stopped(never, "a")} == {usual}


def test_an_idle_instance_that_leaves_is_given_back_at_once(cloud: Cloud) -> None:
    first, second, _ = cloud.open
    cloud.come(first, "a", 1.0)
    stops = cloud.fact(InstanceNoticed, "a", 2.0, what="rebalance", by=None)
    for stop in stopped(stops, "a"):
        cloud.exit(stop, 3.0)
    assert cloud.state.fleet.instances["a"].phase is InstancePhase.RELEASING
    cloud.fact(InstanceNoticed, "b", 4.0, what="interruption", by=100.0)
    assert Terminate in {type(c) for c in cloud.come(second, "b", 5.0)}


def test_a_run_on_its_last_leaving_instance_is_not_over_before_that_is_gone(cloud: Cloud) -> None:
    """What was refused beside it, by a quota say, may be had afterwards."""
    first, *others = cloud.open
    for launch in others:
        cloud.refuse(launch, 1.0, retry=False)
    cloud.come(first, "a", 2.0)
    commands = cloud.fact(InstanceNoticed, "a", 50.0, what="interruption", by=170.0)
    for launch in cloud.launches(commands):
        cloud.refuse(launch, 50.5, retry=False)
    assert cloud.state.phase is RunPhase.RUNNING
    for stop in stopped(commands, "a"):
        last = cloud.exit(stop, 51.0)
    (terminate,) = [c for c in last if isinstance(c, Terminate)]
    again = cloud.tell(InstanceTerminated(at=52.0, command=terminate.id, instance="a"))
    assert len(cloud.launches(again)) == 3


def test_a_second_notice_asks_for_nothing_again(cloud: Cloud) -> None:
    full(cloud)
    cloud.fact(InstanceNoticed, "b", 50.0, what="rebalance", by=None)
    assert cloud.fact(InstanceNoticed, "b", 51.0, what="interruption", by=171.0) == []
    assert cloud.state.fleet.instances["b"].by == 171.0


@pytest.mark.parametrize("second", [120.0, 171.0, 400.0])
def test_of_two_notices_the_earlier_end_counts(cloud: Cloud, second: float) -> None:
    full(cloud)
    cloud.fact(InstanceNoticed, "b", 50.0, what="interruption", by=171.0)
    cloud.fact(InstanceNoticed, "b", 51.0, what="interruption", by=second)
    assert cloud.state.fleet.instances["b"].by == min(171.0, second)


def test_no_more_gpus_are_asked_for_than_the_person_allows(facts: MakeFacts) -> None:
    """The replacement is asked for when the leaving instance is being given back."""
    cloud = Cloud(facts, max_gpus=3 * GPUS, budget_gpu_s=7200.0)
    assert len(full(cloud)) == 3
    commands = cloud.fact(InstanceNoticed, "b", 50.0, what="interruption", by=170.0)
    assert cloud.launches(commands) == []
    after = [cloud.exit(stop, 51.0) for stop in commands if isinstance(stop, StopTrial)]
    assert [type(c) for told in after for c in told if isinstance(c, Terminate | Launch)] == [
        Terminate,
        Launch,
    ]


@pytest.mark.parametrize("billing", ["held", "rented"])
def test_nobody_waits_past_the_end_for_an_instance_that_is_being_made_ready(
    facts: MakeFacts, billing: str
) -> None:
    made = facts(billing=billing, gpus=GPUS, deadline_s=600.0, budget_gpu_s=4000.0, t_min_s=150.0)
    state = begun(made)
    launched = Cloud.launches(handle(state, RunStarted(at=0.0, facts=made)))
    assert launched
    ends = handle(state, StopAsked(at=5.0))
    assert [c.instance for c in ends if isinstance(c, Terminate)] == [
        launch.id for launch in launched
    ]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("times", [(170.0, 120.0), (120.0, 170.0), (None, 120.0), (120.0, None)])
def test_of_two_times_at_which_an_instance_is_taken_away_the_sooner_counts(
    cloud: Cloud, times: tuple[float | None, ...], is_known: bool
) -> None:
    """Also where both are told before the instance is known to be there."""
    if is_known:
        full(cloud)
        name, at = "b", 50.0
    else:
        name, at = "a", 1.0
    for by in times:
        cloud.fact(InstanceNoticed, name, at, what="interruption", by=by)
    if not is_known:
        cloud.come(cloud.open[0], "a", 2.0)
    assert cloud.state.fleet.instances[name].by == 120.0


def test_launches_that_were_refused_for_one_reason_have_one_note(cloud: Cloud) -> None:
    for launch in cloud.open:
        cloud.refuse(launch, 1.0)
    (first, *others) = cloud.launches(cloud.wake())
    cloud.tell(LaunchRefused(at=30.0, command=first.id, why="no quota", retry=True))
    for launch in others:
        cloud.refuse(launch, 31.0)
    times = 3 + len(others)
    assert notes_of(cloud.state) == [
        f"no instance: no capacity ({times} times)",
        "no instance: no quota",
    ]
