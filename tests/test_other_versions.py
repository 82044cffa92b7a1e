"""A run outlives the version that made it: another version reads it alike, and takes it to its end.

What another version does otherwise is altered here one thing at a time on simulated runs of every
policy; all at once on real ones in `test_other_versions_for_real`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import seerd.planner.asha
import seerd.planner.draws
import seerd.planner.halving
import seerd.planner.ranking
import seerd.planner.rungs
import seerd.planner.seer
from bench.testbed.checked_world import Behaviour, World
from seerd.core import aiming
from seerd.core.commands import StartTrial, StopTrial, Terminate
from seerd.core.events import RunFacts, RunResumed
from seerd.core.limits import budget_gpu_s
from seerd.core.placement import place
from seerd.core.rules import RULES, Rules
from seerd.core.state import State
from seerd.planner.caching import per_problem
from seerd.planner.policies import POLICIES
from seerd.planner.space import Config
from seerd.telling import run_json

MakeFacts = Callable[..., RunFacts]
Alter = Callable[[pytest.MonkeyPatch], Rules]
KILLED_S = 25.0


def sampling(patch: pytest.MonkeyPatch) -> Rules:
    other = per_problem(lambda problem: seerd.planner.draws.Draws(problem, random.Random("other")))
    for module in (seerd.planner.asha, seerd.planner.halving):
        patch.setattr(module, "draws", other)
    return RULES


def promotion(patch: pytest.MonkeyPatch) -> Rules:
    patch.setattr(seerd.planner.rungs.Rung, "among_the_best", lambda rung, place, eta: True)
    worst_first = seerd.planner.ranking.rank
    patch.setattr(seerd.planner.seer, "rank", lambda trials, mode: worst_first(trials, mode)[::-1])
    return RULES


def placement(patch: pytest.MonkeyPatch) -> Rules:
    patch.setattr(aiming, "place", lambda demands, now, nodes, **more: place(demands, {}, nodes))
    return RULES


def grace(patch: pytest.MonkeyPatch) -> Rules:
    return replace(RULES, grace_min_s=6.0)


def back_off(patch: pytest.MonkeyPatch) -> Rules:
    return replace(RULES, retry_s=2.0, max_refusals=5)


def checkpoints(patch: pytest.MonkeyPatch) -> Rules:
    return replace(RULES, kept_checkpoints=1, max_crashes=0)


ALTERATIONS: tuple[Alter, ...] = (sampling, promotion, placement, grace, back_off, checkpoints)


def curve(config: Config, epoch: int) -> float | None:
    return float(config["lr"]) * (1 - 0.5**epoch)


def made(facts: MakeFacts, policy: str) -> World:
    before = facts(budget_gpu_s=600.0)
    params = replace(before.problem.params, name=policy, trials=6, max_reports=16)
    problem = replace(before.problem, params=params)
    return World(
        RunFacts(
            run="small",
            name="small",
            metric="accuracy",
            mode="max",
            problem=problem,
            cluster=before.cluster,
        ),
        Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 2.0 / gpus),
    )


def finished(facts: MakeFacts, policy: str) -> World:
    world = made(facts, policy)
    world.run()
    return world


def interrupted(facts: MakeFacts, policy: str) -> World:
    world = made(facts, policy)
    world.at(KILLED_S, world.interrupt)
    world.run()
    return world


def killed(facts: MakeFacts, policy: str) -> World:
    world = made(facts, policy)
    world.begin()
    while world.now < KILLED_S and not world.state.finished:
        world.turn()
    return world


def said(state: State) -> str:
    """What the reading commands print as JSON, but for forecasts of what is not over, and for how
    long the reader's own rules would let trials save.
    """
    told = [
        run_json.result(state, "read"),
        run_json.details(state, "read"),
        run_json.ledger(state, state.now),
        run_json.best(state),
    ]
    for key in ("release_s", "grace_s"):
        told[2].pop(key)
    if not state.finished:
        told[2].pop("committed_gpu_min")
    return json.dumps(told)


@contextmanager
def altered(alter: Alter) -> Iterator[Rules]:
    with pytest.MonkeyPatch.context() as patch:
        yield alter(patch)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [finished, interrupted, killed])
def test_every_other_version_reads_what_this_one_wrote(
    facts: MakeFacts, policy: str, make: Any
) -> None:
    world = make(facts, policy)
    told = said(world.read())
    for alter in ALTERATIONS:
        with altered(alter) as rules:
            assert said(world.read(rules)) == told, alter.__name__


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("alter", ALTERATIONS)
def test_another_version_takes_it_to_its_end(facts: MakeFacts, policy: str, alter: Alter) -> None:
    world = killed(facts, policy)
    if world.state.finished:
        return
    running = {t.id: t.attempt for t in world.state.trials.values() if t.held is not None}
    world.kill_daemon()
    with altered(alter) as rules:
        world.state.rules = rules
        state = world.run_on()
    resumed = next(decided for event, decided in world.journal if isinstance(event, RunResumed))
    assert not [one for one in resumed if isinstance(one, StopTrial | StartTrial | Terminate)], (
        "nothing is moved"
    )
    assert running.keys() <= state.trials.keys()
    assert state.now <= 60.0
    assert world.fleet.held_gpu_s <= budget_gpu_s(state)
    assert state.result.published is not None
    for trial in state.trials.values():
        assert all(one.reports < other.reports for one, other in pairwise(trial.history)), (
            "nothing is trained twice"
        )
