"""Where trials share a GPU: what they are charged, how one grows where its neighbours leave, and
what becomes of one whose part has too little memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.testbed.checked_world import LACKED, Behaviour, World
from seerd.core.aiming import derive
from seerd.core.commands import GrowTrial, StartTrial, StopTrial
from seerd.core.events import (
    InstanceComputed,
    InstanceNoticed,
    RunFacts,
    RunResumed,
    TrialExited,
    TrialReported,
    TrialStarted,
)
from seerd.core.instances import computed
from seerd.core.plans import STAYS, New, PlanChange, Put
from seerd.core.rules import RULES
from seerd.core.state import Instance, new_state
from seerd.core.step import again, commands_of, follow
from seerd.core.verdicts import Enlarged, Failed, Grown
from seerd.planner.model import Allocation
from seerd.planner.space import Config
from seerd.telling.complaints import idle_gpus
from seerd.telling.explanation.as_json import moment_json
from seerd.telling.explanation.explanations import held_gpu_s
from seerd.telling.explanation.timeline import Timeline
from tests.core.test_answers import Run
from tests.explanation.timelines import replayed

PARTS = 4
BUDGET_GPU_S = 900.0
MakeFacts = Callable[..., RunFacts]


def shared(facts: RunFacts) -> RunFacts:
    """One GPU in four parts, on which SEER+ looks for the best."""
    params = replace(facts.problem.params, name="seer+", eta=4, p_max=None, t_min_s=5.0)
    limits = replace(facts.problem.limits, max_gpus=PARTS)
    problem = replace(
        facts.problem, limits=limits, params=params, gpus_per_instance=PARTS, parts=PARTS
    )
    cluster = replace(facts.cluster, gpus_per_instance=PARTS, parts=PARTS)
    return msgspec.structs.replace(facts, problem=problem, cluster=cluster)


def ran(make: MakeFacts, lacks: Callable[[Config, int], bool] = lambda _, slots: False) -> World:
    facts = shared(make(deadline_s=900.0, budget_gpu_s=BUDGET_GPU_S))
    behaviour = Behaviour(
        metric=lambda config, n: float(config["lr"]) * (1 - 0.5**n),
        unit_s=lambda config, n, slots: 8.0 / slots,
        lacks=lacks,
    )
    world = World(facts, behaviour, seed=1)
    world.run()
    return world


def of(kind: type, world: World) -> list[Any]:
    return of_kind(kind, (one for _, decided in world.journal for one in decided))


def of_kind(kind: type | tuple[type, ...], decided: Iterable[Any]) -> list[Any]:
    return [one for one in decided if isinstance(one, kind)]


def side_by_side(make: MakeFacts, *slots: int) -> Run:
    """Trials with so many slots each run on one GPU of four parts."""
    run = Run(shared(make(deadline_s=900.0, budget_gpu_s=BUDGET_GPU_S)))
    names = [f"t{number}" for number in range(len(slots))]
    new = tuple(New(name, {"lr": 0.1 + number / 10}) for number, name in enumerate(names))
    wants = zip(names, slots, strict=True)
    puts = (Put(name, gpus, 0, None, place) for place, (name, gpus) in enumerate(wants))
    run.answer(PlanChange(new=new, put=tuple(puts), ask_on_end=False))
    run.come()
    for name in names:
        if run.trial(name).held is not None:
            run.fact(TrialStarted, name, pid=7)
    return run


def lack(run: Run, name: str) -> list[Any]:
    return run.fact(TrialExited, name, cause="crashed", code=1, rank=0, tail=LACKED)


def slots_of(run: Run, name: str) -> tuple[int, ...]:
    held = run.trial(name).held
    return () if held is None else held[0].gpus


def test_a_trial_whose_part_has_too_little_memory_goes_on_with_twice_the_part(
    facts: MakeFacts,
) -> None:
    run = side_by_side(facts, 1, 1)
    assert [one.gpus for one in lack(run, "t0") if isinstance(one, Enlarged)] == [2]
    assert len(slots_of(run, "t0")) == 2
    assert len(slots_of(run, "t1")) == 1, "its neighbour is not touched"
    assert run.trial("t1").attempt == 1
    assert not run.trial("t0").failing, "it says nothing of the configuration"
    run.fact(TrialStarted, "t0", pid=8)
    decided = lack(run, "t0")
    assert [one.trial for one in decided if isinstance(one, Failed)] == ["t0"]
    assert run.trial("t0").failing


def test_it_waits_its_turn_where_others_have_the_gpu(facts: MakeFacts) -> None:
    run = side_by_side(facts, 2, 1, 1)
    lack(run, "t2")
    assert slots_of(run, "t2") == ()
    assert [run.trial(name).attempt for name in ("t0", "t1")] == [1, 1]
    run.fact(TrialReported, "t1", reports=1, metric=0.5, unit_s=0.1)
    run.exit("t1", "finished")
    assert len(slots_of(run, "t2")) == 2


def test_a_later_plan_gives_it_no_smaller_part_again(facts: MakeFacts) -> None:
    run = side_by_side(facts, 1, 1)
    lack(run, "t0")
    run.fact(TrialStarted, "t0", pid=8)
    for name in ("t0", "t1"):
        run.fact(TrialReported, name, reports=1, metric=0.5, unit_s=0.1)
    run.state.agenda.ask = "clock"
    run.fact(TrialExited, "t1", cause="finished", code=0)
    run.answer(PlanChange(put=(Put("t0", 1, 1, None, STAYS),)))
    assert len(slots_of(run, "t0")) == 2
    assert run.trial("t0").attempt == 2


def test_one_that_grew_since_it_was_started_is_started_again_with_the_memory_of_its_gpu(
    facts: MakeFacts,
) -> None:
    run = side_by_side(facts, 1)
    run.state.agenda.ask = "clock"
    run.fact(TrialReported, "t0", reports=1, metric=0.5, unit_s=0.1)
    run.answer(PlanChange(put=(Put("t0", 4, 0, None, STAYS),)))
    assert slots_of(run, "t0") == (0, 1, 2, 3)
    assert run.trial("t0").attempt == 1
    lack(run, "t0")
    assert run.trial("t0").attempt == 2
    assert slots_of(run, "t0") == (0, 1, 2, 3)
    assert not run.trial("t0").failing


def test_one_that_grew_to_a_larger_part_goes_on_with_twice_that(facts: MakeFacts) -> None:
    """Its bound has grown, or it would have with its next report."""
    run = side_by_side(facts, 1)
    plan(run, PlanChange(put=(Put("t0", 2, 0, None, STAYS),)))
    assert [one.gpus for one in of_kind(Enlarged, lack(run, "t0"))] == [4]
    assert slots_of(run, "t0") == (0, 1, 2, 3)


def plan(run: Run, change: PlanChange) -> list[Any]:
    """Have the policy asked, and answer this."""
    run.state.agenda.ask = "clock"
    fact = run.state.fleet.instances["i"].seen + 1
    common = {"at": run.at, "happened": run.at, "instance": "i", "fact": fact}
    run.tell(InstanceNoticed(**common, what="cold", by=None))
    return run.answer(change)


def test_the_order_to_grow_stands_until_the_attempt_ends(facts: MakeFacts) -> None:
    """Its agent may lose its connection, and then gets the newest one again."""
    run = side_by_side(facts, 1)
    decided = plan(run, PlanChange(put=(Put("t0", 2, 0, None, STAYS),)))
    (order,) = of_kind(GrowTrial, decided)
    assert (order.trial, order.attempt, order.instance) == ("t0", 1, "i")
    assert order.gpus == slots_of(run, "t0") == (0, 1)
    (newer,) = of_kind(GrowTrial, plan(run, PlanChange(put=(Put("t0", 4, 0, None, STAYS),))))
    for state in (run.state, run.read()):
        assert [one for one in state.under_way.values() if isinstance(one, GrowTrial)] == [newer]
    run.exit("t0", "finished")
    assert of_kind(GrowTrial, run.state.under_way.values()) == []


@pytest.mark.parametrize(
    ("gone", "wanted"), [(("t1", "t2", "t3"), {"t0": 4}), (("t2", "t3"), {"t0": 2, "t1": 2})]
)
def test_a_trial_that_waits_to_grow_waits_on_when_the_daemon_is_started_again(
    facts: MakeFacts, gone: tuple[str, ...], wanted: dict[str, int]
) -> None:
    run = side_by_side(facts, 1, 1, 1, 1)
    puts = tuple(Put(name, gpus, 0, None, STAYS) for name, gpus in wanted.items())
    decided = plan(run, PlanChange(gone=gone, put=puts))
    assert [stop.trial for stop in of_kind(StopTrial, decided)] == list(gone)
    assert of_kind(Grown, decided) == [], "its neighbours still have what it is to have"
    run.state = run.read()
    run.state.rules = RULES
    decided = run.tell(RunResumed(at=1.0, alive=("i",)))
    run.at = 2.0
    for name in gone:
        decided += run.exit(name)
    assert of_kind((StartTrial, StopTrial), decided) == []
    assert {one.trial: len(one.gpus) for one in of_kind(Grown, decided)} == wanted
    assert {name: len(slots_of(run, name)) for name in wanted} == wanted


def test_one_whose_gpu_has_no_room_is_not_kept_from_a_larger_place(facts: MakeFacts) -> None:
    """As where the daemon goes on: it saves, and waits its turn."""
    run = side_by_side(facts, 2, 1, 1)
    run.state.trials["t1"].gpus = 2
    run.state.plan.wanted["t1"] = Allocation("t1", 2)
    run.state.plan.order.apply(PlanChange(put=(Put("t1", 2, 0, None, STAYS),)))
    derive(run.state)
    aims = run.state.aims
    assert (list(aims.aimed), aims.waiting) == (["t0", "t2"], {"t1": 2})
    assert run.trial("t1").target is None
    assert set(run.state.fleet.instances["i"].claims.values()) == {"t0", "t2"}


def test_no_trial_gets_a_larger_part_than_there_may_be(facts: MakeFacts) -> None:
    run = side_by_side(facts, 1)
    limits = replace(run.state.facts.problem.limits, max_gpus=1)
    problem = replace(run.state.facts.problem, limits=limits)
    run.state.facts = msgspec.structs.replace(run.state.facts, problem=problem)
    assert [one.why for one in lack(run, "t0") if isinstance(one, Failed)] == ["crashes"]


def test_in_a_whole_run_each_trial_that_lacks_memory_is_started_with_more_once(
    facts: MakeFacts,
) -> None:
    def lacks(config: Config, slots: int) -> bool:
        return slots < (2 if float(config["lr"]) < 0.6 else 4)

    world = ran(facts, lacks)
    least: dict[str, int] = {}
    for one in (one for _, decided in world.journal for one in decided):
        if isinstance(one, Enlarged):
            assert one.trial not in least
            least[one.trial] = one.gpus
        elif isinstance(one, StartTrial):
            assert len(one.gpus) >= least.get(one.trial, 0)
    assert len(least) > 1
    failed = {one.trial for one in of(Failed, world)}
    assert all(lacks(world.state.trials[name].config, 2) for name in failed)
    state = new_state(world.facts)
    for event, decided in world.journal:
        assert again(state, event, decided) is None
    assert state.trials == world.state.trials
    _, timeline = replayed(world)
    assert {one.gpus for one in timeline.explanations if one.kind == "enlarged"} == {0.5}


def test_a_trial_grows_from_a_part_to_its_gpu_without_a_restart(facts: MakeFacts) -> None:
    world = ran(facts)
    grown = [one for _, decided in world.journal for one in decided if isinstance(one, Grown)]
    assert grown
    assert max(len(one.gpus) for one in grown) == PARTS
    for one in grown:
        starts = [
            command
            for _, decided in world.journal
            for command in commands_of(decided)
            if isinstance(command, StartTrial) and command.trial == one.trial
        ]
        assert all(len(start.gpus) < len(one.gpus) for start in starts)


def test_parts_are_charged_as_fractions_of_a_gpu_exactly(facts: MakeFacts) -> None:
    world = ran(facts)
    charges = list(world.state.ledger.charges())
    assert {0.25, 0.5, 1} <= {charge.gpus for charge in charges}
    assert world.state.ledger.spent_gpu_s(world.now) == sum(
        charge.gpus * (charge.end_s(world.now) - charge.since_s) for charge in charges
    )
    assert world.state.ledger.spent_gpu_s(world.now) <= BUDGET_GPU_S


def test_whole_gpus_of_several_parts_are_integers(facts: MakeFacts) -> None:
    world = ran(facts)
    state, timeline, billed = new_state(world.facts), Timeline(follow), set[str]()
    for event, decided in world.journal:
        timeline.read(state, event, decided)
        billed.add(json.dumps(moment_json(state.now, timeline, state)["gpus_billed"]))
    assert {"0", "1"} <= billed <= {"0", "0.25", "0.5", "0.75", "1"}


def test_an_attempt_that_grew_is_explained_as_it_was_charged(facts: MakeFacts) -> None:
    world = ran(facts)
    _, timeline = replayed(world)
    assert {one.gpus for one in timeline.explanations if one.kind == "grown"} >= {0.5, 1}
    assert held_gpu_s(timeline.attempts.all, world.now) == world.state.ledger.spent_gpu_s(world.now)


@pytest.mark.parametrize(
    ("parts", "share", "advice"),
    [(1, 0.52, "52% of the time: `cluster.parts = 4`"), (1, 0.7, "`cluster.parts = 2`"),
     (1, 0.8, None), (4, 0.7, "`cluster.parts = 8`"), (16, 0.1, None)],
)  # fmt: skip
def test_gpus_that_compute_little_are_told_of(
    facts: MakeFacts, parts: int, share: float, advice: str | None
) -> None:
    made = facts()
    cluster = replace(made.cluster, parts=parts, gpus_per_instance=2 * parts)
    state = new_state(msgspec.structs.replace(made, cluster=cluster))
    machine = Instance("m", 2 * parts, busy={0: "t1"})  # its second GPU has no trial
    state.fleet.instances["m"] = machine
    for at in (10.0, 50.0, 90.0):
        shares = (share, 0.0)
        event = InstanceComputed(at=at, instance="m", fact=1, happened=at, shares=shares)
        computed(event, state)
    assert machine.known_gpu_s == 80.0
    assert (idle_gpus(state) == []) is (advice is None)
    problem = replace(made.problem, params=replace(made.problem.params, p_min=max(2, parts)))
    of_whole = new_state(msgspec.structs.replace(made, cluster=cluster, problem=problem))
    of_whole.fleet = state.fleet
    assert not idle_gpus(of_whole), "its trials take whole GPUs, however many parts these have"
    assert all(advice in text for text in idle_gpus(state) if advice)
