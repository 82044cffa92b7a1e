"""Limits that are extended while a run goes on: when that holds, and that every policy stays sound
when its problem changes at any moment.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import AskPolicy, Launch, Terminate
from seerd.core.enact import enact
from seerd.core.events import ExtendAsked, InstanceReady, RunFacts, RunStarted, StopAsked
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.plans import New, PlanChange, Put
from seerd.core.state import State, new_state
from seerd.core.step import DecidingAgain, follow, step
from seerd.core.verdicts import Adopted, Denied, Granted, Retired
from seerd.planner.model import Limits, PlannedJob, Problem
from seerd.planner.policies import POLICIES
from seerd.planning.planned import extended
from seerd.telling.complaints import notes_of
from tests.by_hand import begun
from tests.conftest import small_facts
from tests.core.test_answers import LR, Run

NAMES = [name for name in POLICIES if name != "bohb" or find_spec("optuna")]
TRAINS = Behaviour(metric=lambda config, epoch: config["lr"] - 0.5 / epoch, unit_s=lambda *_: 2.0)


def facts_of(name: str, **other: object) -> RunFacts:
    facts = small_facts(**{"max_gpus": 8, "t_min_s": 6.0, **other})  # type: ignore[arg-type]
    params = replace(facts.problem.params, name=name, max_reports=64, min_reports=1)
    problem = replace(facts.problem, params=params, gpus_per_instance=8)
    return structs.replace(facts, problem=problem)


def longer(world: World, deadline_s: float, budget_gpu_s: float) -> tuple[Problem, object]:
    """What `seerd extend` would ask for now."""
    state = world.state
    spent = state.ledger.spent_gpu_s(world.now)
    limits = replace(state.facts.problem.limits, deadline_s=deadline_s, budget_gpu_s=budget_gpu_s)
    usd = state.ledger.usd(spent)
    facts, now = state.facts, world.now
    return extended(
        facts.problem, facts.cluster, limits, now_s=now, spent_gpu_s=spent, spent_usd=usd
    )


def extended_at(
    facts: RunFacts, at_s: float, deadline_s: float, budget_gpu_s: float, seed: int = 0
) -> World:
    world = World(facts, TRAINS, seed=seed)

    def extend() -> None:
        if world.state.phase is RunPhase.RUNNING and world.state.end.status is None:
            world.extend(*longer(world, deadline_s, budget_gpu_s))  # type: ignore[arg-type]

    world.at(at_s, extend)
    world.run()
    return world


def granted(world: World) -> bool:
    return world.state.requests.answered == {"r1": None}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(
    at_s=st.floats(0.1, 45.0),
    more_s=st.sampled_from([0.0, 3.0, 30.0, 120.0]),
    more_gpu_s=st.sampled_from([0.0, 20.0, 320.0, 900.0]),
    billing=st.sampled_from(["held", "rented"]),
)
def test_every_policy_stays_sound(
    name: str, at_s: float, more_s: float, more_gpu_s: float, billing: str
) -> None:
    """The invariants, the budget among them, are checked after every event."""
    if more_s == more_gpu_s == 0.0:
        more_s = 1.0
    world = extended_at(facts_of(name, billing=billing), at_s, 60.0 + more_s, 320.0 + more_gpu_s)
    state = world.state
    limits = state.facts.problem.limits
    assert limits == (
        replace(limits, deadline_s=60.0 + more_s, budget_gpu_s=320.0 + more_gpu_s)
        if granted(world)
        else small_facts(max_gpus=8).problem.limits
    )
    assert state.now <= limits.deadline_s
    assert state.ledger.spent_gpu_s(state.now) <= limits.budget_gpu_s + 1e-6
    assert state.result.published is not None or not any(t.history for t in state.trials.values())
    assert not any("gave no plan" in note for note in notes_of(state)), notes_of(state)
    read = world.read(None)
    assert read.facts == state.facts
    assert read.requests == state.requests


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"sha", "gp-ucb"}])
def test_the_added_budget_is_used(name: str) -> None:
    """As much as the policy uses of the same limits in a run that begins then. Those left out end
    with their last rung or candidate, whatever is left.
    """
    facts = facts_of(name)
    world = extended_at(facts, 25.0, 180.0, 1200.0)
    assert granted(world)
    before = next(
        world_until(world, event) for event, _ in world.journal if isinstance(event, ExtendAsked)
    )
    limits = Limits(155.0, 1200.0 - before, 8)
    fresh = structs.replace(facts, problem=replace(facts.problem, limits=limits))
    used = World(fresh, TRAINS).run()
    spent = world.state.ledger.spent_gpu_s(world.state.now)
    assert spent - before > 0.8 * used.ledger.spent_gpu_s(used.now)
    assert spent > 320.0
    assert world.state.now > 100.0


def world_until(world: World, event: ExtendAsked) -> float:
    """GPU-seconds that were spent when this happened."""
    state = new_state(world.facts)
    for told, decided in world.journal:
        if told is event:
            return state.ledger.spent_gpu_s(event.at)
        follow(state, told, decided)
    raise AssertionError(event)


@pytest.mark.parametrize("name", NAMES)
def test_who_is_out_stays_out(name: str) -> None:
    world = World(facts_of(name), TRAINS)
    out: set[str] = set()
    world.at(28.0, lambda: world.extend(*longer(world, 180.0, 1200.0)))  # type: ignore[arg-type]
    attempts: dict[str, int] = {}

    def note() -> None:
        for trial in world.state.trials.values():
            if trial.status == "eliminated":
                out.add(trial.id)
                attempts[trial.id] = trial.attempt

    world.at(27.9, note)
    world.run()
    for one in out:
        assert world.state.trials[one].status == "eliminated"
        assert world.state.trials[one].attempt == attempts[one]


@cache
def undisturbed_with(name: str) -> World:
    """A whole run of this policy, of which nothing is changed any more."""
    return extended_at(facts_of(name), 20.0, 120.0, 700.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_is_decided_again(name: str) -> None:
    world = undisturbed_with(name)
    state, deciding = new_state(world.facts), DecidingAgain()
    for event, decided in world.journal:
        deciding.follow(state, event, decided)
    assert deciding.difference is None


@pytest.mark.parametrize("name", NAMES)
def test_a_daemon_that_dies_then_goes_on_under_the_new_limits(name: str) -> None:
    undisturbed = undisturbed_with(name)
    seq = next(
        n for n, (event, _) in enumerate(undisturbed.journal, 1) if isinstance(event, ExtendAsked)
    )
    world = World(facts_of(name), TRAINS, kill_after=frozenset({seq}))
    world.at(20.0, lambda: world.extend(*longer(world, 120.0, 700.0)))  # type: ignore[arg-type]
    state = world.run()
    assert world.kills == 1
    assert state.facts.problem.limits.deadline_s == 120.0
    assert state.ledger.spent_gpu_s(state.now) <= 700.0
    assert state.now > 60.0 or state.end.why in ("plan", "last-stage", "budget")
    # A request whose answer was lost is told again, and changes nothing then.
    assert not [one for one in _asked_again(state, world) if isinstance(one, Granted | Denied)]


def _asked_again(state: State, world: World) -> list[object]:
    problem = replace(state.facts.problem, limits=Limits(999.0, 999.0))
    return list(step(state, ExtendAsked(at=state.now, request="r1", problem=problem)))


# ------------------------------------------------------------ when it holds


def running() -> World:
    world = World(small_facts(), TRAINS)
    world.begin()
    while not any(trial.history for trial in world.state.trials.values()):
        world.turn()
    return world


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"deadline_s": 59.0, "budget_gpu_s": 999.0}, "lower"),
        ({"budget_gpu_s": 1.0, "deadline_s": 999.0}, "lower"),
        ({"cost_usd": 1.0, "deadline_s": 999.0}, "lower"),
        ({"max_gpus": 1, "deadline_s": 999.0}, "lower"),
        ({}, "same"),
    ],
)
def test_limits_are_never_lowered(change: dict[str, float], why: str) -> None:
    world = running()
    problem = world.state.facts.problem
    world.extend(replace(problem, limits=replace(problem.limits, **change)), None)
    assert world.state.requests.answered == {"r1": why}
    assert world.state.facts.problem == problem


def test_a_run_that_ends_is_not_extended() -> None:
    world = running()
    problem = world.state.facts.problem
    wanted = replace(problem, limits=replace(problem.limits, deadline_s=999.0))
    world.tell(StopAsked(at=world.now), ExtendAsked(at=world.now, request="a", problem=wanted))
    world.run_on()
    world.extend(wanted, None, "b")
    assert world.state.requests.answered == {"a": "ending", "b": "ending"}
    assert world.state.finished
    assert world.state.end.status == "interrupted"


def test_the_policy_is_asked_at_once_and_an_open_question_is_dropped() -> None:
    world = running()
    problem, outline = longer(world, 120.0, 700.0)
    seq = world.state.clock.seq
    world.extend(problem, outline)  # type: ignore[arg-type]
    decided = next(d for event, d in world.journal[seq:] if isinstance(event, ExtendAsked))
    (asked,) = [one for one in decided if isinstance(one, AskPolicy)]
    assert asked.why == "extended"
    assert [one for one in decided if isinstance(one, Granted)]
    assert "the limits were extended" in notes_of(world.state)
    world.run_on()


def test_no_answer_to_a_question_about_the_old_limits_is_the_plan() -> None:
    """The first question is open when the limits are extended."""
    facts = facts_of("seer")
    world = World(facts, TRAINS)
    limits = replace(facts.problem.limits, deadline_s=120.0, budget_gpu_s=900.0)
    problem, outline = extended(
        facts.problem, facts.cluster, limits, now_s=0.05, spent_gpu_s=0.0, spent_usd=0.0
    )
    first = RunStarted(at=0.05, facts=world.facts)
    asked = ExtendAsked(at=0.05, request="r1", problem=problem, outline=outline)
    world.at(0.05, lambda: world.tell(first, asked))
    state = world.run_on()
    questions = [one.id for _, d in world.journal for one in d if isinstance(one, AskPolicy)]
    adopted = [one.question for _, d in world.journal for one in d if isinstance(one, Adopted)]
    assert questions[0] not in adopted
    assert questions[1] == adopted[0]
    assert outline is not None
    assert len(state.trials) == outline.trials


def test_too_little_for_a_plan_of_its_own_lets_the_present_one_go_on() -> None:
    world = running()
    assert longer(world, 60.0, 320.0 + 0.5)[1] is not None
    world.run_on()
    facts, limits = world.state.facts, Limits(61.0, 330.0, 8)
    problem, outline = extended(
        facts.problem, facts.cluster, limits, now_s=58.0, spent_gpu_s=300.0, spent_usd=0.0
    )
    assert outline is None
    assert problem == replace(facts.problem, limits=limits)


# ------------------------------------------------------------ instances that end themselves


def test_an_instance_that_would_end_itself_is_replaced_in_time() -> None:
    facts = facts_of(
        "seer+", billing="rented", deadline_s=1200.0, budget_gpu_s=9600.0, t_min_s=60.0
    )
    world = World(facts, Behaviour(metric=lambda c, e: c["lr"], unit_s=lambda *_: 60.0))

    def extend() -> None:
        problem, outline = longer(world, 3600.0, 40000.0)
        world.tell(
            ExtendAsked(
                at=world.now,
                request="r1",
                problem=problem,
                outline=outline,  # type: ignore[arg-type]
                rented_until_s=1800.0,
            )
        )

    world.at(600.0, extend)
    state = world.run()
    assert granted(world)
    retired = [
        (event.at, one)
        for event, decided in world.journal
        for one in decided
        if isinstance(one, Retired)
    ]
    assert retired
    assert all(1400.0 < at < 1500.0 and one.by_s == 1800.0 for at, one in retired)
    gone = {one.instance for _, one in retired}
    ended = {i.id: i.ended_at for i in state.fleet.instances.values()}
    assert all(ended[name] is not None and ended[name] < 1800.0 for name in gone)  # type: ignore[operator]
    new = [
        event for event, _ in world.journal if isinstance(event, InstanceReady) and event.at > 1400
    ]
    assert new, "others were rented in their place"
    assert all(state.fleet.instances[event.instance].until is None for event in new)
    assert state.now > 2000.0
    assert any(isinstance(one, Launch) for _, decided in world.journal for one in decided)
    assert any(isinstance(one, Terminate) for _, decided in world.journal for one in decided)
    assert not [i for i in state.fleet.instances.values() if i.phase is InstancePhase.READY]


def test_jobs_have_the_new_limits_but_for_those_that_are_their_own() -> None:
    state = begun(small_facts())
    before = state.facts.problem
    limits = before.limits
    own = {
        "all": limits,
        "short": replace(limits, deadline_s=limits.deadline_s - 1),
        "poor": replace(limits, budget_gpu_s=limits.budget_gpu_s - 1),
    }
    jobs = tuple(PlannedJob(name, replace(before, limits=one), "max") for name, one in own.items())
    state.facts = structs.replace(state.facts, problem=replace(before, jobs=jobs))
    more = replace(limits, deadline_s=500.0, budget_gpu_s=5000.0)
    asked = ExtendAsked(at=1.0, request="r", problem=replace(before, limits=more))
    state.requests.open["r"] = asked
    enact(state, Granted(request="r"))
    after = {job.id: job.problem.limits for job in state.facts.problem.jobs}
    assert after == {
        "all": more,
        "short": replace(more, deadline_s=own["short"].deadline_s),
        "poor": replace(more, budget_gpu_s=own["poor"].budget_gpu_s),
    }


def test_an_instance_that_the_budget_could_not_pay_is_asked_for_once_it_can() -> None:
    """The policy wants what it wanted before."""
    facts = small_facts(billing="rented", gpus=2, deadline_s=300.0, budget_gpu_s=200.0)
    run = Run(facts)
    put = (Put("a", 2, 0, None, 0), Put("b", 2, 0, None, 1))
    decided = run.answer(PlanChange(new=(New("a", LR), New("b", LR)), put=put))
    assert sum(isinstance(one, Launch) for one in [*decided, *run.come()]) == 1
    limits = replace(facts.problem.limits, budget_gpu_s=4000.0)
    problem = replace(run.state.facts.problem, limits=limits)
    run.tell(ExtendAsked(at=run.at, request="r", problem=problem))
    (launch,) = [one for one in run.answer(PlanChange()) if isinstance(one, Launch)]
    assert launch.gpus == 2
