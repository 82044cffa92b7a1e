"""Where a trial that is stopped begins anew, no policy pauses any."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner.adapted import NOTE, TRAINING
from seerd.planner.memory import Memory
from seerd.planner.model import Outline, View
from seerd.planner.policy import policy_of
from tests.examples import few

NAMES = ["seer+", "sha", "hyperband", "asha", "hypersched", "gp-ucb"]
NAMES += ["bohb"] if find_spec("optuna") else []


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return 1 - 0.1 * abs(math.log10(float(trial.config["lr"])) + 2) - math.exp(-epoch / 5)


def world(name: str, gpus: int, deadline_s: float, most: int, **params: object) -> World:
    made = problem(gpus, deadline_s, p_max=1, name=name, **params)
    asked = Asked(policy_of(made), replace(made, begins_anew=True))
    return World(asked, gpus, by_lr, unit_s=lambda *_: 20 / most, start_s=0.5, most=most)


@settings(max_examples=few(40), deadline=None)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 5),
    st.sampled_from([1, 3, 20, 300]),
    st.integers(0, 5),
    st.sampled_from([None, 7]),
    st.sampled_from([None, 9]),
    st.sampled_from([2, 4]),
)
def test_no_trial_begins_twice_and_every_gpu_is_busy_while_there_is_something_to_try(
    name: str, gpus: int, most: int, seed: int, trials: int | None, reports: int | None, eta: int
) -> None:
    run = world(name, gpus, 100.0, most, seed=seed, trials=trials, max_reports=reports, eta=eta)
    run.run()
    names = [name for _, name, _ in run.started]
    assert len(set(names)) == len(names)
    if trials is None and name in ("seer+", "asha", "bohb"):
        assert all(len(plan.allocations) == gpus for plan in run.plans if not plan.done)
    if most == 1 and name in ("seer+", "asha", "bohb", "hypersched"):
        in_turn = int(100.0 / 20.5) * gpus
        reported = sum(trial.reports == 1 for trial in run.trials.values())
        assert reported == min(in_turn, trials or in_turn)


@pytest.mark.parametrize("name", NAMES)
def test_poor_trials_make_room_and_the_best_gets_to_its_end(name: str) -> None:
    run = world(name, 2, 150.0, 20).run()
    finished = [trial for trial in run.trials.values() if trial.status == "finished"]
    in_time = [run.trials[name] for at_s, name, _ in run.started if at_s + 20.5 < 150.0]
    assert max(in_time, key=lambda trial: by_lr(trial, 20)) in finished
    assert len(finished) >= 5
    if name != "gp-ucb":
        assert len(run.trials) > 25


def test_it_is_said_before_the_start() -> None:
    asked = world("asha", 2, 150.0, 20).policy
    outline = asked.outline()
    assert isinstance(outline, Outline)
    assert NOTE in outline.adjusted
    saves = policy_of(asked.problem).outline(replace(asked.problem, begins_anew=False))
    assert isinstance(saves, Outline)
    assert NOTE not in saves.adjusted


def test_a_memory_that_is_not_known_lets_the_policy_go_on() -> None:
    run = world("asha", 2, 150.0, 20).run(30.0)
    values = {**run.policy.memory.values, TRAINING: {"t0001": "far"}}
    run.policy.memory = Memory(values)
    assert run.policy.plan(View(30.0, "max", run.trials)).allocations


def test_whoever_was_sent_to_no_rung_trains_on() -> None:
    run = world("asha", 2, 150.0, 20).run(30.0)
    assert len(run.held) == 2
    values = {**run.policy.memory.values, TRAINING: dict.fromkeys(run.held, 0)}
    run.policy.memory = Memory(values)
    plan = run.policy.plan(View(30.0, "max", run.trials))
    assert [one.trial for one in plan.allocations] == [*run.held]
