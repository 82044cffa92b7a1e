"""A journal that lacks what agents and the store know: it is noticed exactly if it does, and nothing
of what is missing is done again under the same name, or is free.
"""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.core.asking import outlined
from seerd.core.commands import Command, StartTrial
from seerd.core.enact import AnyDecision
from seerd.core.events import AgentFact, AnyEvent, RunResumed
from seerd.core.gaps import gap
from seerd.core.ledger import LOST
from seerd.core.state import State, new_state
from seerd.core.step import follow, step
from seerd.sim.behaviour import Behaviour
from seerd.sim.world import World
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
    assert (unknown.gpus, unknown.since_s, unknown.until_s) == (gpus, *lost)
