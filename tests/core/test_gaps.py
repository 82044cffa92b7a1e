"""A journal that lacks what agents and the store know: it is noticed exactly if it does, and nothing
of what is missing is done again under the same name, or is free.
"""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.testbed.checked_world import Behaviour, World
from bench.testbed.invariants import violations
from seerd.core.asking import outlined
from seerd.core.commands import Command, Launch, StartTrial
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AgentFact,
    AnyEvent,
    EventsMissing,
    InstanceNoticed,
    InstanceReady,
    RunResumed,
    TrialStarted,
)
from seerd.core.gaps import gap, lacks
from seerd.core.ledger import LOST, Charge
from seerd.core.lifecycle import InstancePhase
from seerd.core.state import Instance, State, new_state
from seerd.core.step import follow, step
from seerd.telling.complaints import notes_of
from tests.conftest import small_facts

STRAYS = st.dictionaries(st.sampled_from(["t0007", "t0007/2"]), st.floats(0.0, 1e4), max_size=2)


@functools.cache
def rows() -> list[tuple[AnyEvent, list[AnyDecision]]]:
    world = World(small_facts(), Behaviour(metric=lambda config, epoch: float(epoch)))
    world.run()
    return world.journal


def after(events: int) -> State:
    state = new_state(outlined(small_facts()))
    for event, decided in rows()[:events]:
        follow(state, event, decided)
    return state


def acknowledged(events: int) -> dict[str, int]:
    return {name: one.seen for name, one in after(events).fleet.instances.items()}


@given(st.data(), STRAYS, st.floats(0.0, 1e4))
def test_a_journal_that_has_less_than_is_known_says_so_and_no_other_does(
    data: st.DataObject, strays: dict[str, float], known_until_s: float
) -> None:
    has, committed = (data.draw(st.integers(1, len(rows()))) for _ in range(2))
    known_until_s *= data.draw(st.booleans())
    state, acked = after(has), acknowledged(committed)
    facts = [event for event, _ in rows()[has:]]
    lost = gap(state, acked, strays, facts, known_until_s)
    ahead = any(acked[name] > seen for name, seen in acknowledged(has).items() if name in acked)
    assert (lost is not None) == bool(ahead or strays or known_until_s > state.now)
    if lost is not None:
        since_s, until_s = lost
        assert since_s == state.now <= until_s
        assert until_s >= max(known_until_s, *strays.values(), 0.0)
        if ahead:
            assert until_s >= max(e.happened for e in facts if isinstance(e, AgentFact))


def number(command: Command) -> int:
    """Return the number of the event from which the command followed, which its id begins with."""
    return int(command.id.partition(".")[0])


def test_after_a_gap_nothing_has_a_name_again() -> None:
    """What happened next happens once more, as it may to whoever has lost it."""
    commands = [one for _, decided in rows() for one in decided if isinstance(one, Command)]
    last = max(map(number, commands))
    attempts = {(one.trial, one.attempt) for one in commands if isinstance(one, StartTrial)}
    again = 0
    for has, (event, once) in enumerate(rows()):
        if not any(isinstance(one, StartTrial) for one in once):
            continue
        state = after(has)
        alive, since_s = tuple(state.fleet.instances), state.now
        decided = step(state, RunResumed(at=event.at, alive=alive, lost=(since_s, event.at)))
        decided += step(state, event)
        assert all(number(one) > last for one in decided if isinstance(one, Command))
        starts = [one for one in decided if isinstance(one, StartTrial)]
        assert not attempts & {(one.trial, one.attempt) for one in starts}
        again += len(starts)
    assert again


def test_all_gpus_cost_until_the_end_of_the_gap_and_none_twice() -> None:
    """Those of what the journal has go on to be charged: others may have followed there."""
    has = next(n for n in range(1, len(rows())) if after(n).ledger.open)
    state = after(has)
    since_s, held = state.now, sum(charge.gpus for charge in state.ledger.open.values())
    until_s, spent = since_s + 100.0, state.ledger.spent_gpu_s(since_s)
    step(state, RunResumed(at=until_s, alive=tuple(state.fleet.instances), lost=(since_s, until_s)))
    unknown = [charge for charge in state.ledger.closed if charge.what.startswith(LOST)]
    gpus = held + sum(charge.gpus for charge in unknown)
    assert gpus == 8
    for what in list(state.ledger.open):
        if state.ledger.open[what].since_s <= since_s:
            state.ledger.end(what, since_s + 1.0, until_s)
    assert state.ledger.spent_gpu_s(until_s) == pytest.approx(spent + 100.0 * gpus)


def test_where_there_may_be_any_number_of_instances_those_that_the_plan_wants_cost() -> None:
    facts = small_facts(billing="rented", gpus=2, deadline_s=300.0, budget_gpu_s=2400.0)
    world = World(facts, Behaviour(metric=lambda config, epoch: 0.5))
    world.begin()
    while not any(trial.history for trial in world.state.trials.values()):
        world.turn()
    state = world.read()
    wanted = sum(allocation.gpus for allocation in state.plan.wanted.values())
    assert wanted == sum(charge.gpus for charge in state.ledger.open.values())
    gone, *alive = state.ledger.open
    gpus, lost = state.ledger.open.pop(gone).gpus, (state.now, state.now + 10.0)
    step(state, RunResumed(at=lost[1], alive=tuple(alive), lost=lost))
    (unknown,) = [charge for charge in state.ledger.closed if charge.what.startswith(LOST)]
    assert unknown.gpu_s(lost[1]) == pytest.approx(gpus * 10.0)
    assert unknown.until_s == lost[1]


def test_launches_that_the_journal_lacks_are_those_of_events_after_it() -> None:
    launches = [
        (number(one), one.id) for _, decided in rows() for one in decided if isinstance(one, Launch)
    ]
    assert launches
    for has in range(1, len(rows())):
        state = after(has)
        for seq, launch in launches:
            assert lacks(state, "i-new", launch) == (seq > has)
            assert not any(lacks(state, name, launch) for name in state.fleet.instances)
    assert not lacks(after(1), "i-new", "")


def test_a_launch_of_an_older_copy_is_lacking_though_another_event_has_its_number() -> None:
    """The copy that was put back may be longer than the journal that it replaced."""
    state = after(len(rows()))
    recorded = {one.id for _, decided in rows() for one in decided if isinstance(one, Launch)}
    for seq in range(1, len(rows())):
        assert lacks(state, "i-new", f"{seq}.9")
        assert lacks(state, "i-new", f"{seq}.0") == (f"{seq}.0" not in recorded)


def test_an_instance_that_the_journal_lacks_is_charged_from_its_launch() -> None:
    state = rented()
    since_s, spent = state.now, state.ledger.spent_gpu_s(state.now)
    lost, strays = (since_s, since_s + 100.0), {"i-lost": (since_s + 10.0, since_s + 90.0)}
    step(state, RunResumed(at=since_s + 120.0, alive=("i-1",), lost=lost, strays=strays))
    charge = next(one for one in state.ledger.closed if one.what == "i-lost")
    assert (charge.gpus, charge.since_s, charge.until_s) == (4, since_s + 10.0, since_s + 90.0)
    assert not lacks(state, "i-lost", "999.0")
    assert violations(state) == []
    gpus = 8  # may be there at once; one of the two instances is known to be
    assert state.ledger.spent_gpu_s(since_s + 100.0) == pytest.approx(spent + 100.0 * gpus)


def test_a_short_life_that_the_journal_lacks_costs_the_minimum() -> None:
    state = rented()
    at, spent = state.now + 5.0, state.ledger.spent_gpu_s(state.now + 5.0)
    event = RunResumed(
        at=at, alive=("i-1",), lost=(state.now, state.now), strays={"i-lost": (at - 2.0, at)}
    )
    step(state, event)
    assert state.ledger.spent_gpu_s(at) == pytest.approx(spent + 4 * 60.0)


def test_an_instance_that_never_ran_costs_nothing() -> None:
    state = rented()
    at, spent = state.now + 5.0, state.ledger.spent_gpu_s(state.now + 5.0)
    lost = (state.now, state.now)
    step(state, RunResumed(at=at, alive=("i-1",), lost=lost, strays={"i-lost": (None, None)}))
    assert state.ledger.spent_gpu_s(at) == pytest.approx(spent)


def rented() -> State:
    """One instance of four GPUs runs, of the eight GPUs that there may be."""
    state = new_state(outlined(small_facts(billing="rented", gpus=4, max_gpus=8, budget_gpu_s=1e4)))
    state.fleet.add(Instance("i-1", 4))
    state.fleet.go(state.fleet.instances["i-1"], InstancePhase.READY)
    state.fleet.instances["i-1"].ready_at = 1.0
    state.ledger.start(Charge("i-1", "i-1", 4, 1.0, minimum_s=60.0))
    state.clock.now, state.clock.seq = 200.0, state.clock.seq + 1
    return state


def test_an_attempt_that_was_never_begun_shows_a_gap_also_after_the_run_is_resumed() -> None:
    """Its launch was under way, as far as the journal says."""
    has = next(n for n, (_, decided) in enumerate(rows(), 1) for c in decided if is_launch(c))
    state = after(has)
    step(state, RunResumed(at=20.0, alive=()))
    before = state.ledger.spent_gpu_s(20.0)
    told = TrialStarted(
        at=20.0, instance="i-1", fact=3, happened=12.0, trial="t0001", attempt=1, pid=7
    )
    decided = step(state, told) + step(state, replace(told, fact=4, trial="t0002"))
    assert state.ledger.spent_gpu_s(20.0) - before == pytest.approx(8.0 * 8)
    assert [note for note in notes_of(state) if "the journal lacks t0001/1" in note]
    ready = next(event for event, _ in rows() if isinstance(event, InstanceReady))
    decided += step(state, replace(ready, at=21.0, instance="i-1"))
    starts = [one for one in decided if isinstance(one, StartTrial)]
    assert starts
    assert all(number(one) > len(rows()) and one.attempt > 1 for one in starts)


def test_an_agent_that_was_silent_shows_a_gap_before_it_tells_anything() -> None:
    """It is charged until the run was resumed, once, and nothing has a name again."""
    state = rented()
    behind = EventsMissing(at=202.0, instance="i-1", acked=3)
    step(state, behind)
    step(state, RunResumed(at=210.0, alive=("i-1",)))
    step(state, replace(behind, at=212.0, acked=0))
    step(state, replace(behind, at=212.0, acked=0, instance="i-2"))
    assert state.clock.gap_s == 0.0
    before = state.ledger.spent_gpu_s(212.0)
    step(state, replace(behind, at=212.0))
    assert state.clock.gap_s == 212.0
    assert state.ledger.spent_gpu_s(212.0) - before == pytest.approx(4.0 * (210.0 - 202.0))
    assert [note for note in notes_of(state) if "lacks events of i-1" in note]
    step(state, replace(behind, at=212.0))
    assert state.ledger.spent_gpu_s(212.0) - before == pytest.approx(4.0 * (210.0 - 202.0))


def test_an_attempt_that_has_begun_shows_none() -> None:
    state = after(len(rows()))
    assert state.trials
    assert state.clock.gap_s == 0.0


def test_what_an_agent_told_before_it_was_ready_is_no_gap() -> None:
    has = next(n for n, (e, _) in enumerate(rows()) if isinstance(e, InstanceReady))
    state, ready = after(has), rows()[has][0]
    assert isinstance(ready, InstanceReady)
    cold = InstanceNoticed(
        at=ready.at, instance=ready.instance, fact=2, happened=ready.at, what="cold", why="no"
    )
    step(state, cold)
    step(state, ready)
    assert gap(state, {ready.instance: 2}, {}, [], 0.0) is None
    assert gap(state, {ready.instance: 3}, {}, [], 0.0) is not None


def is_launch(command: object) -> bool:
    return isinstance(command, Launch)


def test_an_end_before_its_beginning_says_nothing_after_a_gap_either() -> None:
    state = rented()
    step(state, RunResumed(at=220.0, alive=("i-1",), lost=(200.0, 210.0)))
    state.ledger.end("i-1", 0.0, 500.0)
    assert [one.until_s for one in state.ledger.closed if one.what == "i-1"] == [500.0]
