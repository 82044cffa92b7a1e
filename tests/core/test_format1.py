"""Journals of format 1: a run of today, written as that format did, has the same accounts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from seerd.core.asking import lacking, outlined
from seerd.core.commands import AskPolicy, Command
from seerd.core.events import AnyEvent, PolicyAnswered, RunFacts, RunStarted
from seerd.core.format1 import Row, convert
from seerd.core.lifecycle import TrialPhase
from seerd.core.rules import RULES
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, follow, unfinished
from seerd.sim.behaviour import Behaviour
from seerd.sim.world import World

MakeFacts = Callable[..., RunFacts]


def old_rows(world: World) -> list[Row]:
    """Events and commands alone; what was answered belonged to the event that asked."""
    rows: list[tuple[AnyEvent, list[Command]]] = []
    for event, decided in world.journal:
        commands = [one for one in commands_of(decided) if not isinstance(one, AskPolicy)]
        if isinstance(event, PolicyAnswered):
            rows[-1][1].extend(commands)
        else:
            rows.append((event, [*given_again(world, event), *commands]))
    return [(event, commands) for event, commands in rows]  # type: ignore[misc]


def given_again(world: World, event: AnyEvent) -> list[Command]:
    """Where a run was resumed, format 1 had the commands that were carried on once more."""
    if type(event).__name__ != "RunResumed":
        return []
    state = new_state(world.facts)
    for before, decided in world.journal:
        if before is event:
            break
        follow(state, before, decided)
    return [one for one in unfinished(state) if not isinstance(one, AskPolicy)]


def read(world: World) -> State:
    state = new_state(world.facts)
    for event, decided in convert(old_rows(world)):
        follow(state, event, decided)
    return state


def accounts(state: State) -> object:
    trials = [
        (one.id, one.attempt, one.crashes, one.losses, one.phase is TrialPhase.FAILED)
        for one in state.trials.values()
        if one.attempt
    ]
    made = [(one.id, one.checkpoints, one.history) for one in state.trials.values()]
    result = replace(state.result, notes=[])  # what was only said of a plan is not in that format
    return trials, [one for one in made if one[2]], state.ledger.closed, result, state.end.status


def crashes(trial: str, attempt: int, epoch: int) -> bool:
    """Never, once, twice or until it fails."""
    return attempt <= int(trial[-1]) % 4 and epoch == attempt + 1


@pytest.fixture
def crashed(facts: MakeFacts) -> World:
    """Some trials crash once, some twice, some fail; the daemon was killed, too."""
    world = World(
        facts(),
        Behaviour(
            metric=lambda config, epoch: float(config["lr"]) * (1 - 0.5**epoch),
            crashes=crashes,
        ),
        kill_after=frozenset({60}),
    )
    world.state = new_state(world.facts, replace(RULES, max_burst=2, burst_share=0.1))
    world.run()
    return world


def test_crashes_are_counted_as_they_were(crashed: World) -> None:
    assert {trial.crashes for trial in crashed.state.trials.values()} >= {0, 1, 2, 3}
    assert accounts(read(crashed)) == accounts(crashed.state)


@pytest.mark.parametrize("after", range(3, 15))
def test_commands_that_were_given_again_are_given_once(facts: MakeFacts, after: int) -> None:
    """A daemon was killed while launches and starts were under way."""
    usual = Behaviour(metric=lambda config, epoch: 0.5)
    world = World(facts(), usual, kill_after=frozenset({after}))
    world.run()
    ids = [one.id for _, decided in convert(old_rows(world)) for one in commands_of(decided)]
    assert len(ids) == len(set(ids))
    assert accounts(read(world)) == accounts(world.state)


def test_whatever_the_rules_are_now(crashed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(RULES, max_crashes=0, max_losses=0, kept_checkpoints=1)
    monkeypatch.setattr(new_state, "__defaults__", (other,))
    assert accounts(read(crashed)) == accounts(crashed.state)


def with_policy(facts: RunFacts, name: str) -> RunFacts:
    params = replace(facts.problem.params, name=name, max_reports=16)
    return msgspec.structs.replace(facts, problem=replace(facts.problem, params=params))


def forget(world: World) -> None:
    """The daemon is killed, and its journal becomes one of format 1, which had no outline."""
    world.kill_daemon()
    world.facts = msgspec.structs.replace(world.facts, outline=None)
    first, *rows = old_rows(world)
    world.journal[:] = convert([(RunStarted(at=first[0].at, facts=world.facts), first[1]), *rows])


@pytest.mark.parametrize("policy", ["seer", "asha", "random", "e-grid"])
def test_a_run_that_is_taken_up_has_an_outline_again(facts: MakeFacts, policy: str) -> None:
    """Its policy is asked for it once; from then on it is read, as everything else."""
    usual = Behaviour(metric=lambda config, epoch: float(config["lr"]) * (1 - 0.5**epoch))
    untouched = World(with_policy(facts(), policy), usual)
    world = World(untouched.facts, usual)
    untouched.run()
    world.begin()
    while world.now < 12.0:
        world.turn()
    assert not world.state.finished
    forget(world)
    assert world.read().outline.stages == ()
    state = world.run_on()
    assert state.outline == untouched.state.outline
    assert world.read(None).outline == state.outline
    assert (state.end.status, state.plan.stage) == (
        untouched.state.end.status,
        untouched.state.plan.stage,
    )
    assert state.end.status in ("done", "budget")


def test_a_policy_that_has_no_outline_keeps_no_run_from_being_taken_up(facts: MakeFacts) -> None:
    assert lacking(outlined(facts())) is None
    assert lacking(facts(max_gpus=0)) is None
    assert lacking(with_policy(facts(), "of an older version")) is None
