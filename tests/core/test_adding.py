"""Configurations that a person adds while a run goes on: who takes them, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bench.testbed.checked_world import World
from seerd.core.events import AddAsked, JobAdded
from seerd.core.lifecycle import RunPhase
from seerd.core.state import new_state
from seerd.core.step import DecidingAgain
from seerd.planner.policies import AT_ONCE, POLICIES
from seerd.telling.complaints import notes_of
from tests.core.test_extending import NAMES, TRAINS, facts_of, longer
from tests.groups import group_world, on

GO_ON = [name for name in NAMES if name not in AT_ONCE]
ADDED = {"lr": 0.123456}


def with_added(name: str, at_s: float, **other: object) -> World:
    world = World(facts_of(name, **other), TRAINS)
    world.at(at_s, lambda: world.add(ADDED) if world.state.phase is RunPhase.RUNNING else None)
    world.run()
    return world


@pytest.mark.parametrize("name", GO_ON)
@pytest.mark.parametrize("billing", ["held", "rented"])
def test_the_next_new_trial_has_it(name: str, billing: str) -> None:
    facts = facts_of(name, billing=billing, deadline_s=200.0, budget_gpu_s=1500.0)
    world = World(facts, replace(TRAINS, unit_s=lambda *_: 1.0))
    known: list[str] = []

    def add() -> None:
        known.extend(world.state.trials)
        world.add(ADDED)

    world.at(12.0, add)
    state = world.run()
    assert state.requests.answered == {"r1": None}
    later = [trial for trial in state.trials.values() if trial.id not in known]
    if later:  # rounds of rented GPUs begin all of their trials at once
        assert later[0].config == ADDED
    else:
        assert (name, billing) == ("seer+", "rented")
    assert sum(trial.config == ADDED for trial in state.trials.values()) == bool(later)
    assert world.read(None).facts == state.facts


@pytest.mark.parametrize("name", GO_ON)
@settings(max_examples=8, deadline=None)
@given(at_s=st.floats(0.0, 58.0), more=st.booleans())
def test_any_moment_will_do(name: str, at_s: float, more: bool) -> None:
    """The invariants are checked after every event, also where limits are extended then."""
    world = World(facts_of(name), TRAINS)

    def act() -> None:
        if world.state.phase is not RunPhase.RUNNING or world.state.end.status is not None:
            return
        world.add(ADDED, "a")
        if more:
            world.extend(*longer(world, 90.0, 500.0), "b")  # type: ignore[arg-type]
        world.add({"lr": 0.2}, "c")

    world.at(at_s, act)
    state = world.run()
    assert set(state.requests.answered.values()) <= {None}
    if state.requests.answered:
        assert [config for _, config in state.facts.problem.added] == [ADDED, {"lr": 0.2}]
    assert not any("gave no plan" in note for note in notes_of(state)), notes_of(state)
    assert state.ledger.spent_gpu_s(state.now) <= state.facts.problem.limits.budget_gpu_s + 1e-6


@pytest.mark.parametrize("name", GO_ON)
def test_the_same_is_decided_again(name: str) -> None:
    world = with_added(name, 15.0)
    state, deciding = new_state(world.facts), DecidingAgain()
    for event, decided in world.journal:
        deciding.follow(state, event, decided)
    assert deciding.difference is None


@pytest.mark.parametrize("name", sorted(AT_ONCE & set(POLICIES)))
def test_who_begins_all_at_once_takes_no_more(name: str) -> None:
    assert with_added(name, 15.0).state.requests.answered == {"r1": "no-more"}


def test_no_more_than_the_spec_allows() -> None:
    facts = facts_of("asha")
    params = replace(facts.problem.params, trials=3)
    facts = structs.replace(facts, problem=replace(facts.problem, params=params))
    world = World(facts, TRAINS)
    world.at(2.0, lambda: world.add(ADDED))
    state = world.run()
    assert len(state.trials) == 3
    assert state.requests.answered == {"r1": "no-more"}


@pytest.mark.parametrize(
    "config", [{"lr": 0.95}, {"lr": "high"}, {}, {"lr": 0.5, "depth": 2}, {"depth": 2}]
)
def test_what_is_not_in_the_space_is_refused(config: dict[str, object]) -> None:
    world = World(facts_of("asha"), TRAINS)
    world.at(15.0, lambda: world.add(config))  # type: ignore[arg-type]
    state = world.run()
    assert state.requests.answered == {"r1": "space"}
    assert state.facts.problem.added == ()


def test_a_run_that_is_over_takes_nothing() -> None:
    world = World(facts_of("asha"), TRAINS)
    world.run()
    world.tell(AddAsked(at=world.now, request="r1", config=ADDED))
    assert world.state.requests.answered == {"r1": "ending"}


def test_a_job_that_is_added_keeps_the_limits_of_its_own() -> None:
    """The run goes on for long after them."""
    world = group_world(until_s=20.0)
    job, known = world.state.facts.problem.jobs[2], world.state.facts.job("c")
    problem = replace(job.problem, limits=replace(job.problem.limits, deadline_s=60.0))
    added, told = replace(job, id="d", problem=problem), structs.replace(known, id="d")
    world.tell(JobAdded(at=world.now, request="r1", job=added, facts=told))
    state = on(world).state
    (job,) = (job for job in state.facts.problem.jobs if job.id == "d")
    assert job.problem.limits.deadline_s == 60.0
    ends = [one.until_s or world.now for one in state.ledger.charges() if one.what[:2] == "d."]
    assert 20.0 < max(ends) <= 60.0
    assert world.now > 90.0
