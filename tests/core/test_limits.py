"""The limits as moments in time: what may still be begun, how long agents go on alone, what is
charged while nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import Launch, Terminate
from seerd.core.events import (
    InstanceReady,
    InstanceTerminated,
    RunFacts,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialExited,
    TrialStarted,
)
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import (
    affordable,
    affordable_launch,
    close_at,
    end_s,
    exhausted_at,
    grace_left_s,
    grace_s,
    last_s,
    lease_grace_s,
    lease_s,
    publish_s,
    release_s,
    shortest_s,
    spare_s,
    terminate_s,
    training_ends_at,
)
from seerd.core.plans import PlanChange
from seerd.core.rules import RULES
from seerd.core.state import Instance, State
from seerd.planner.model import Stage
from tests.by_hand import begun, handle

MakeFacts = Callable[..., RunFacts]


def rented(facts: MakeFacts, budget_gpu_s: float, *, boot_s: float = 0.0) -> State:
    """A state with instances of four GPUs, of which none has been asked for yet."""
    made = facts(billing="rented", gpus=4, deadline_s=3600.0, t_min_s=150.0, budget_gpu_s=4000.0)
    limits = replace(made.problem.limits, budget_gpu_s=budget_gpu_s)
    state = begun(msgspec.structs.replace(made, cluster=replace(made.cluster, boot_s=boot_s)))
    problem = replace(state.facts.problem, limits=limits)
    state.facts = msgspec.structs.replace(state.facts, problem=problem)
    return state


def test_a_trial_is_started_only_if_its_gpus_can_be_given_back_within_the_budget(
    facts: MakeFacts,
) -> None:
    state = begun(facts(budget_gpu_s=320.0))
    state.ledger.start(Charge("t1/1", "i", 2, 0.0))
    wait_s = release_s(state)
    assert wait_s > 0
    # Until GPUs are free, two more of them cost as much as the two that are held.
    state.clock.now = 160.0 - 2 * wait_s - 0.01
    assert affordable(state, 2)
    state.clock.now += 0.02
    assert not affordable(state, 2)
    assert affordable(state, 1)
    state.clock.now = 160.0 - wait_s + 0.01
    assert not affordable(state, 0)


@pytest.mark.parametrize(("boot_s", "least_s"), [(0.0, 60.0), (300.0, 300.0)])
def test_a_launch_must_be_paid_for_a_minute_and_for_its_boot(
    facts: MakeFacts, boot_s: float, least_s: float
) -> None:
    release = release_s(rented(facts, 4000.0, boot_s=boot_s))
    least_s += release if boot_s else 0.0
    assert affordable_launch(rented(facts, 4 * least_s, boot_s=boot_s), 4)
    assert not affordable_launch(rented(facts, 4 * least_s - 0.01, boot_s=boot_s), 4)


def test_a_launch_must_be_paid_beside_what_runs(facts: MakeFacts) -> None:
    state = rented(facts, 4 * 60.0 + 4 * 200.0)
    state.ledger.start(Charge("i", "i", 4, 0.0, minimum_s=60.0))
    state.clock.now = 199.9 - release_s(state)
    assert affordable_launch(state, 4)
    state.clock.now += 0.2
    assert not affordable_launch(state, 4)


def test_instances_that_never_get_an_agent_end_within_the_budget(facts: MakeFacts) -> None:
    """All that were asked for together: the first of them knows of the last."""
    state = begun(
        facts(billing="rented", gpus=2, deadline_s=600.0, t_min_s=100.0, budget_gpu_s=2000.0)
    )
    asked = [
        c for c in handle(state, RunStarted(at=0.0, facts=state.facts)) if isinstance(c, Launch)
    ]
    assert len(asked) > 1
    used = sum(
        command.gpus * ((command.orphan_timeout_s or 0.0) + terminate_s(state)) for command in asked
    )
    assert used == pytest.approx(2000.0)
    assert all((command.orphan_timeout_s or 0.0) + terminate_s(state) < 600.0 for command in asked)
    soon = begun(
        facts(
            billing="rented", gpus=2, deadline_s=600.0, t_min_s=100.0, budget_gpu_s=1e6, max_gpus=4
        )
    )
    asked = [c for c in handle(soon, RunStarted(at=0.0, facts=soon.facts)) if isinstance(c, Launch)]
    assert {command.orphan_timeout_s for command in asked} == {600.0 - terminate_s(soon)}
    held = begun(facts())
    assert [
        c.orphan_timeout_s
        for c in handle(held, RunStarted(at=0.0, facts=held.facts))
        if isinstance(c, Launch)
    ] == [None]


def test_an_instance_that_boots_slowly_waits_longer_for_its_first_agent(facts: MakeFacts) -> None:
    """As p5 and metal do; but never beyond what the limits can pay."""
    made = facts(
        billing="rented", gpus=2, deadline_s=3600.0, t_min_s=100.0, budget_gpu_s=1e8, max_gpus=4
    )
    for orphan_s, expected in ((0.0, 600.0), (300.0, 600.0), (1080.0, 1080.0)):
        slow = msgspec.structs.replace(made, cluster=replace(made.cluster, orphan_s=orphan_s))
        asked = handle(begun(slow), RunStarted(at=0.0, facts=slow))
        assert {c.orphan_timeout_s for c in asked if isinstance(c, Launch)} == {expected}


def test_agents_alone_never_go_on_past_the_moment_at_which_the_run_must_close(
    facts: MakeFacts,
) -> None:
    state = rented(facts, 4000.0)
    assert lease_s(state, 0.0) == RULES.lease_s
    late = close_at(state) - 10.0
    assert lease_s(state, late) == pytest.approx(10.0 + end_s(state) / 2)
    assert lease_s(state, late + 3600.0) == 0.0
    by = close_at(state) + end_s(state) / 2
    assert lease_grace_s(state, by) == grace_s(state)
    assert lease_grace_s(state, by + 3.0) == pytest.approx(grace_s(state) - 3.0), "it ends in time"
    assert lease_grace_s(state, by + 3600.0) == 0.0
    state.ledger.start(Charge("i", "i", 4, 0.0, minimum_s=60.0))
    late = exhausted_at(state) - 5.0
    assert late < close_at(state) - RULES.lease_s
    assert lease_s(state, late) == pytest.approx(5.0 + end_s(state) / 2)


def test_the_end_waits_for_no_machine_beyond_deadline_and_budget(facts: MakeFacts) -> None:
    state = rented(facts, 4000.0)
    assert spare_s(state, 3500.0) == 100.0 - publish_s(state)
    assert spare_s(state, 4000.0) == 0.0
    state.ledger.start(Charge("i", "i", 4, 0.0, minimum_s=60.0))
    assert spare_s(state, 990.0) == pytest.approx(10.0), "4,000 GPU-s are 1,000 s of 4 GPUs"


def test_a_run_that_closes_leaves_agents_the_time_until_all_must_be_over(facts: MakeFacts) -> None:
    state = rented(facts, 4000.0)
    state.end.phase, state.end.close_by = RunPhase.CLOSING, 104.0
    assert lease_s(state, 100.0) == 4.0
    assert lease_s(state, 105.0) == 0.0
    assert lease_grace_s(state, 100.0) == 0.0, "the lease is all the time that there is"


def test_trials_that_are_told_to_end_late_have_less_time_to_save(facts: MakeFacts) -> None:
    state = rented(facts, 4000.0)
    whole_s = grace_s(state)
    state.clock.now = close_at(state)
    assert grace_left_s(state) == whole_s
    state.clock.now += 1.0
    assert grace_left_s(state) == pytest.approx(whole_s - 1.0)
    state.clock.now += whole_s
    assert grace_left_s(state) == 0.0
    state.end.phase = RunPhase.CLOSING
    to_save_s = end_s(state) - terminate_s(state)
    state.end.close_by = state.now + to_save_s + 2.0
    assert grace_left_s(state) == pytest.approx(2.0), "instances are given back after that"
    state.end.close_by = state.now + to_save_s - 0.1
    assert grace_left_s(state) == 0.0
    state.end.close_by = state.now + to_save_s + whole_s + 1.0
    assert grace_left_s(state) == whole_s


def test_an_attempt_is_paid_from_when_it_began_until_when_it_ended_not_until_that_was_heard_of(
    facts: MakeFacts,
) -> None:
    state = begun(facts())
    (launch,) = [
        c for c in handle(state, RunStarted(at=0.0, facts=state.facts)) if isinstance(c, Launch)
    ]
    handle(state, InstanceReady(at=1.0, command=launch.id, instance="i", gpus=8, running_since=1.0))
    common = {"instance": "i", "trial": "t0001", "attempt": 1}
    handle(state, TrialStarted(at=9.0, happened=2.0, fact=1, pid=7, **common))
    handle(state, TrialExited(at=9.0, happened=5.0, fact=2, cause="crashed", code=1, **common))
    (charge,) = state.ledger.closed
    assert (charge.what, charge.since_s, charge.until_s) == ("t0001/1", 2.0, 5.0)


def test_what_may_have_run_on_without_a_daemon_is_charged(facts: MakeFacts) -> None:
    """It was heard of last at 100 s: with its lease and the time to let go it may have lived so
    much longer, and no more than until now.
    """
    for resumed_at in (110.0, 1000.0):
        state = rented(facts, 4000.0)
        handle(state, RunStarted(at=0.0, facts=state.facts))
        state.fleet.instances["i"] = Instance("i", 4, InstancePhase.READY, ready_at=0.0)
        state.fleet.live += 1
        state.fleet.present += 1
        state.ledger.start(Charge("i", "i", 4, 0.0, minimum_s=60.0))
        state.clock.now = 100.0
        allowed = 100.0 + lease_s(state, 100.0) + release_s(state)
        handle(state, RunResumed(at=resumed_at, alive=()))
        (charge,) = state.ledger.closed
        assert charge.until_s == pytest.approx(min(resumed_at, allowed))


def test_what_agents_were_promised_counts_whatever_the_rules_are_now(facts: MakeFacts) -> None:
    """Another version takes the run up: who is not found had gone by the lease of the one
    before.
    """
    charged = []
    for now_s in (RULES.lease_s, 3 * RULES.lease_s):
        state = rented(facts, 4000.0)
        handle(state, RunStarted(at=0.0, facts=state.facts))
        (launch, *_) = (c for c in state.under_way.values() if isinstance(c, Launch))
        common = {"command": launch.id, "instance": "i", "gpus": 4}
        handle(state, InstanceReady(at=1.0, running_since=1.0, **common))
        state.rules = replace(RULES, lease_s=now_s)
        handle(state, RunResumed(at=500.0, alive=()))
        charged += [one.until_s for one in state.ledger.closed if one.instance == "i"]
    assert len(charged) == 2
    assert charged[0] == charged[1] < 1.0 + 2 * RULES.lease_s


def test_what_a_launch_has_brought_may_be_there_as_long_as_it_goes_on_without_an_agent(
    facts: MakeFacts,
) -> None:
    """After that it is gone, and what the same launch brings when it is asked for again begins
    then.
    """
    for resumed_at in (110.0, 450.0, 900.0):
        state = begun(
            facts(billing="rented", gpus=2, deadline_s=1000.0, t_min_s=100.0, budget_gpu_s=2000.0)
        )
        launch = next(
            c for c in handle(state, RunStarted(at=0.5, facts=state.facts)) if isinstance(c, Launch)
        )
        assert launch.orphan_timeout_s is not None
        assert 110.0 < launch.orphan_timeout_s < 900.0
        handle(state, RunResumed(at=resumed_at, alive=()))
        gone = max(0.0, resumed_at - 0.5 - launch.orphan_timeout_s)
        assert state.ledger.open[launch.id].since_s == pytest.approx(0.5 + gone)


def test_what_is_being_ended_and_was_never_ready_is_ended_by_nobody_else(facts: MakeFacts) -> None:
    """It had no agent whose lease would have ended it: it costs until its end is confirmed."""
    state = begun(
        facts(billing="rented", gpus=2, deadline_s=1000.0, t_min_s=100.0, budget_gpu_s=2000.0)
    )
    launch = next(
        c for c in handle(state, RunStarted(at=0.5, facts=state.facts)) if isinstance(c, Launch)
    )
    asked = [c for c in handle(state, StopAsked(at=30.0, hard=True)) if isinstance(c, Terminate)]
    assert launch.id in {command.instance for command in asked}
    again = handle(state, RunResumed(at=400.0, alive=()))
    assert {command.id for command in asked} <= {command.id for command in again}
    assert state.ledger.open[launch.id].gpu_s(400.0) == 2 * 399.5
    (ending,) = (command for command in asked if command.instance == launch.id)
    handle(
        state,
        InstanceTerminated(
            at=401.0, command=ending.id, instance=launch.id, running_since=5.0, ended=400.5
        ),
    )
    assert [
        charge.gpu_s(401.0) for charge in state.ledger.closed if charge.instance == launch.id
    ] == [2 * 395.5]


def test_limits_are_judged_only_once_what_agents_have_to_tell_was_heard(facts: MakeFacts) -> None:
    """A daemon that was away for long may find that most has ended in time: it hears that behind
    `RunResumed`, and before any timer.
    """
    world = World(facts(), Behaviour(metric=lambda config, epoch: 0.5))
    world.begin()
    while not world.state.fleet.holding:
        world.turn()
    state, late = world.state, exhausted_at(world.state) + 1.0
    alive = tuple(state.fleet.instances)
    handle(state, RunResumed(at=late, alive=alive))
    assert state.phase is RunPhase.RUNNING
    assert state.clock.timer is not None
    handle(state, TimerFired(at=late, command=state.clock.timer.id))
    assert state.phase is not RunPhase.RUNNING


def test_training_ends_with_the_plan_and_in_its_last_stage_with_the_limits(
    facts: MakeFacts,
) -> None:
    """Before that, the GPUs of the present stage would use up the budget long before."""
    state = begun(facts())
    ends = [stage.end_s for stage in state.outline.stages]
    state.ledger.start(Charge("t1/1", "i", 16, 0.0))
    assert exhausted_at(state) < 20.0
    assert training_ends_at(state) == min(close_at(state), ends[-1])
    state.plan.last = PlanChange(stage=len(ends) - 1)
    assert training_ends_at(state) == exhausted_at(state)


def test_training_goes_on_to_the_end_of_the_last_of_many_stages(facts: MakeFacts) -> None:
    state = begun(facts(deadline_s=600.0))
    stages = tuple(Stage(at_s, at_s + 10.0, ()) for at_s in (0.0, 10.0, 20.0))
    outline = replace(state.outline, stages=stages)
    state.facts = msgspec.structs.replace(state.facts, outline=outline)
    assert training_ends_at(state) == 30.0 < close_at(state)
    state.clock.now = 29.9
    assert training_ends_at(state) == 30.0
    state.clock.now = 30.0
    assert training_ends_at(state) == close_at(state)


@pytest.mark.parametrize(
    ("deadline_s", "share"), [(8.0, 1 / 3), (12.0, 1 / 2), (24.0, 1), (90.0, 1)]
)
def test_a_short_run_sets_less_aside_for_its_end(
    facts: MakeFacts, deadline_s: float, share: float
) -> None:
    state = begun(facts(deadline_s=deadline_s, t_min_s=1.0))
    ending_s = RULES.grace_min_s + RULES.kill_s + RULES.publish_s
    assert deadline_s - close_at(state) == pytest.approx(share * ending_s + terminate_s(state))


def test_a_short_run_whose_saves_take_long_sets_aside_what_they_take(facts: MakeFacts) -> None:
    state = begun(facts(deadline_s=12.0, t_min_s=1.0))
    state.end.slowest_s = 1.2
    assert grace_s(state) == pytest.approx(2 * 1.2 + 1.0)
    state.end.slowest_s = 60.0
    assert grace_s(state) == RULES.grace_min_s


def test_how_late_the_last_attempts_are_started_is_learned_from_the_quickest(
    facts: MakeFacts,
) -> None:
    state = begun(facts(deadline_s=600.0))
    assert shortest_s(state) == RULES.shortest_s
    for first_s, learned_s in ((2.0, 2.0), (0.1, RULES.start_s), (60.0, RULES.shortest_s)):
        state.signs.first_s = first_s
        assert shortest_s(state) == learned_s
    state = begun(facts(deadline_s=12.0, t_min_s=1.0))
    assert shortest_s(state) == 1.0


def test_the_last_fetch_from_the_cloud_may_take_as_long_as_a_save_there(facts: MakeFacts) -> None:
    rented_state, held_state = begun(facts(billing="rented")), begun(facts())
    for state in (rented_state, held_state):
        state.signs.save_s = 3.0
    assert publish_s(rented_state) == RULES.publish_s + 3.0
    assert publish_s(held_state) == RULES.publish_s


@pytest.mark.parametrize("budget_gpu_s", [1500.0, 4000.0])
@pytest.mark.parametrize("now_s", [0.0, 60.0, 150.0, 300.0])
def test_the_last_checkpoints_take_no_longer_than_the_limits_leave(
    facts: MakeFacts, budget_gpu_s: float, now_s: float
) -> None:
    """Agents that are alone since now end within the budget, and store for two minutes at most."""
    state = rented(facts, budget_gpu_s)
    state.ledger.start(Charge("i", "i", 4, 0.0, minimum_s=60.0))
    state.clock.now = now_s
    over_s = now_s + lease_s(state, now_s) + lease_grace_s(state, now_s) + last_s(state, now_s)
    assert 0.0 <= last_s(state, now_s) <= RULES.last_s
    assert over_s * 4 <= budget_gpu_s or last_s(state, now_s) == 0.0
