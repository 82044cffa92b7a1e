"""What stages cost: the parts are the ledger's total, to the last GPU-second."""

from __future__ import annotations

from fractions import Fraction

import pytest

from seerd.core.state import State
from seerd.telling.explanation.timeline import costs
from tests.explanation.timelines import MakeFacts, rented_world, timeline_of
from tests.scenarios.test_scenarios import SCENARIOS


def billed(state: State) -> Fraction:
    """All charges of a run that is over, exactly."""
    total = Fraction(0)
    for charge in state.ledger.charges():
        assert charge.until_s is not None
        lasted = Fraction(charge.until_s) - Fraction(charge.since_s)
        total += charge.gpus * max(Fraction(charge.minimum_s), lasted)
    return total


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_stages_add_up_to_the_ledger(facts: MakeFacts, name: str) -> None:
    state, timeline = timeline_of(SCENARIOS[name](facts))
    parts = costs(timeline, state, state.now)
    assert len(parts) == len(timeline.chapters)
    assert sum(part.billed for part in parts) == billed(state)
    assert float(billed(state)) == pytest.approx(state.ledger.spent_gpu_s(state.now), abs=1e-6)


def test_a_stage_pays_for_its_own_time(facts: MakeFacts) -> None:
    """Two instances of four GPUs from the start until the stage ends at 100 s; one goes on."""
    state, timeline = timeline_of(SCENARIOS["rented"](facts))
    first, second, _ = costs(timeline, state, state.now)
    boot = {one.instance: one for one in first.instances}
    assert float(first.billed) == pytest.approx(8 * (100 - 0.05), abs=0.1)
    assert boot["m2.0"].idle == pytest.approx(4 * 30, abs=0.1), "it was idle while it booted"
    starting = pytest.approx(2 * 2 * 2, abs=0.1)
    assert boot["m2.0"].starting == starting, "two trials on two GPUs took two seconds"
    assert {one.instance for one in second.instances} == {"m2.0", "m2.1"}


def test_what_the_minimum_adds_is_in_the_stage_in_which_the_instance_ended(
    facts: MakeFacts,
) -> None:
    world = rented_world(facts)
    world.at(31.0, world.interrupt)
    state, timeline = timeline_of(world)
    first, end = costs(timeline, state, state.now)
    assert sum(part.billed for part in (first, end)) == billed(state)
    assert float(billed(state)) == pytest.approx(3 * 4 * 60), "three instances at 60 seconds"
    assert float(end.billed) > 3 * 4 * 25
