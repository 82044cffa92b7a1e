"""Where trials share a GPU: what they are charged, and how one grows where its neighbours leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import StartTrial
from seerd.core.events import InstanceComputed, RunFacts
from seerd.core.instances import computed
from seerd.core.state import Instance, new_state
from seerd.core.step import commands_of, follow
from seerd.core.verdicts import Grown
from seerd.telling.complaints import idle_gpus
from seerd.telling.explanation.as_json import moment_json
from seerd.telling.explanation.explanations import held_gpu_s
from seerd.telling.explanation.timeline import Timeline
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


def ran(make: MakeFacts) -> World:
    facts = shared(make(deadline_s=900.0, budget_gpu_s=BUDGET_GPU_S))
    behaviour = Behaviour(
        metric=lambda config, n: float(config["lr"]) * (1 - 0.5**n),
        unit_s=lambda config, n, slots: 8.0 / slots,
    )
    world = World(facts, behaviour, seed=1)
    world.run()
    return world


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
