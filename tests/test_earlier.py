"""`--like RUN`: what a run learns from an earlier one, and that it keeps it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.checked_world import Behaviour, World
from bench.testbed.policy_world import Asked, FakeTrial, problem
from bench.testbed.policy_world import World as PolicyWorld
from seerd.core.events import RunFacts
from seerd.core.state import State
from seerd.planner.draws import draws
from seerd.planner.model import EarlierTrial, Limits, PolicyParams, Problem, Report
from seerd.planner.seer_plus import LEARNS, SEER_PLUS
from seerd.planner.space import Parameter, Space
from seerd.runs.earlier import BEST, MOST, best_configs, learned, of_space, taken_up
from seerd.runs.reading import read
from seerd.shell.home import Home
from tests.commands import run_command
from tests.explanation.timelines import write_run
from tests.planner.spaces import MIXED

MakeFacts = Callable[..., RunFacts]
EARLIER = "small-20261122-000000-aaaa"
SPEC = """
name = "small"
metric = { name = "accuracy", mode = "max" }
[train]
script = "./trainer.py"
launcher = "command"
[space]
lr = { low = 0.1, high = 0.9 }
[policy]
t_min = "2s"
[limits]
deadline = "60s"
budget = "120gpu-s"
[cluster]
gpus = 2
"""
TARGET = ("--set", "metric.target=0.01")
PROGRAMS = Path(__file__).parent / "programs"


def played(facts: RunFacts) -> World:
    return World(
        facts,
        Behaviour(
            metric=lambda config, epoch: float(config["lr"]) * (1 - 0.5**epoch),
            unit_s=lambda config, epoch, gpus: 4.0 / gpus,
        ),
    )


@pytest.fixture
def folder(tmp_path: Path, facts: MakeFacts) -> Path:
    """A spec, and a home with one run of it."""
    world = played(facts())
    world.run()
    write_run(tmp_path / "home", EARLIER, world)
    (tmp_path / "spec.toml").write_text(SPEC)
    shutil.copy(PROGRAMS / "trainer.py", tmp_path)
    return tmp_path


def seerd(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SEERD_HOME": str(folder / "home"), "COLUMNS": "200"}
    return run_command(args, folder, environment)


def state_of(folder: Path, run: str) -> State:
    return read(Home(folder / "home").find(run))


def test_a_plan_begins_with_the_best_of_the_earlier_run(folder: Path) -> None:
    earlier = state_of(folder, EARLIER)
    best = max(t.config["lr"] for t in earlier.trials.values() if t.reports > 2)
    for args in (["--like", "last"], ["--set", 'policy.like=["small"]']):
        told = seerd(folder, "plan", "spec.toml", *args, "--json")
        plan = json.loads(told.stdout)
        assert plan["configs"][0] == {"lr": best}
        assert any("6 trials of earlier runs" in note for note in plan["adjusted"]), plan
    assert json.loads(seerd(folder, "plan", "spec.toml", "--json").stdout)["configs"][0] != {
        "lr": best
    }


@pytest.mark.parametrize(
    ("old", "new", "like", "says"),
    [
        ('mode = "max"', 'mode = "min"', "last", "its metric is accuracy (max)"),
        ('"accuracy"', '"loss"', "last", "that of this spec loss"),
        ("high = 0.9", "high = 0.11", "last", "none has a configuration that [space] allows"),
        ("high = 0.9", "high = 0.9", "nobody", "no run begins with 'nobody'"),
        ("[policy]", '[policy]\nname = "grid"', "last", "grid tries all there is"),
    ],
)
def test_a_run_from_which_nothing_can_be_learned_is_told(
    folder: Path, old: str, new: str, like: str, says: str
) -> None:
    (folder / "spec.toml").write_text(SPEC.replace(old, new))
    for command in ("plan", "run"):
        told = seerd(folder, command, "spec.toml", "--like", like)
        assert told.returncode == 2, told.stdout
        assert says in told.stderr
    assert len(list((folder / "home").iterdir())) == 1


def test_what_was_learned_is_kept_when_the_earlier_run_is_gone(folder: Path) -> None:
    best = best_configs(learned(Space((LR,)), state_of(folder, EARLIER)), "max")
    told = seerd(folder, "run", "spec.toml", "--plain", "--like", EARLIER, *TARGET)
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    shutil.rmtree(folder / "home" / EARLIER)
    state = state_of(folder, "last")
    assert len(state.facts.problem.params.earlier) == 6
    tried = [trial.config for trial in state.trials.values()]
    assert tried[: len(best)] == best[: len(tried)]


LR = Parameter("lr", low=0.1, high=0.9)


def test_nothing_is_drawn_again_that_an_earlier_run_of_the_same_seed_has_drawn() -> None:
    def drawn(*earlier: EarlierTrial) -> list[float]:
        params = PolicyParams(seed=3, earlier=earlier)
        found = draws(Problem(Limits(60.0, 60.0), Space((LR,)), params))
        return [float(found[number]["lr"]) for number in range(20)]

    first = drawn()
    assert first == drawn()
    then = drawn(EarlierTrial({"lr": first[0]}, ()))
    assert not set(first) & set(then)


reports = st.lists(st.floats(-1, 1) | st.none(), min_size=1, max_size=60)


@given(st.lists(reports, max_size=8), st.integers(0, 3))
def test_the_best_configurations_are_those_with_the_best_reports_that_have_not_diverged(
    curves: list[list[float | None]], guesses: int
) -> None:
    trials = tuple(
        EarlierTrial(
            {"lr": 0.1 + 0.01 * n}, tuple(Report(0.0, k, m) for k, m in enumerate(curve, 1))
        )
        for n, curve in enumerate(curves)
    )
    start = tuple({"lr": 0.5 + 0.1 * n} for n in range(guesses))
    made = taken_up(PolicyParams(start=start), [trials, trials], "min")
    chosen = made.start[guesses:]
    assert made.start[:guesses] == start
    assert made.earlier == trials * 2
    best = {
        t.config["lr"]: min(r.metric for r in t.history if r.metric is not None)
        for t in trials
        if t.history[-1].metric is not None
    }
    values = [best[config["lr"]] for config in chosen]
    assert values == sorted(best.values())[:BEST]
    assert len({config["lr"] for config in chosen}) == len(chosen)


def test_curves_are_thinned_and_the_furthest_trials_are_kept(facts: MakeFacts) -> None:
    world = played(facts(deadline_s=2000.0, budget_gpu_s=16000.0))
    state = world.run()
    there = [trial for trial in state.trials.values() if trial.history]
    found = learned(Space((LR,)), state)
    assert [trial.config for trial in found] == [trial.config for trial in there]
    for trial, kept in zip(there, found, strict=True):
        assert set(kept.history) <= set(trial.history)
        assert kept.history[0] == trial.history[0]
        assert kept.history[-1] == trial.history[-1]
        assert max(r.metric or 0.0 for r in kept.history) == max(
            r.metric or 0.0 for r in trial.history
        )
        assert len(kept.history) < 40
    assert max(len(trial.history) for trial in there) > 40
    assert len(there) < MOST


def test_a_configuration_of_another_space_is_left_out() -> None:
    config = {"lr": 0.1, "optimizer": "sgd", "momentum": 0.85, "nesterov": True, "decay": 1e-4}
    config |= {"layers": 2, "width": 32, "epochs": 90, "blocks": (64, 128)}
    assert of_space(MIXED, config)
    assert not of_space(MIXED, {**config, "optimizer": "adam"})
    assert not of_space(MIXED, {**config, "rate": 0.1})
    assert not of_space(MIXED, {**config, "lr": 2.0})
    assert not of_space(MIXED, {**config, "layers": 6, "width": 256})
    assert not of_space(MIXED, {name: config[name] for name in config if name != "width"})
    rows = Space(table=({"lr": 0.1},))
    assert of_space(rows, {"lr": 0.1})
    assert not of_space(rows, {"lr": 0.2})


def test_the_model_draws_by_earlier_trials_from_the_first() -> None:
    """With earlier trials that were good only near 0.01, most draws are there."""
    made = problem(4, 400.0)
    lrs = [10 ** (-4 * n / 40) for n in range(1, 40)]
    earlier = tuple(
        EarlierTrial({"lr": lr}, (Report(1.0, 1, good), Report(2.0, 2, 2 * good)))
        for lr, good in ((lr, -abs(math.log10(lr) + 2)) for lr in lrs)
    )
    informed = replace(made, params=replace(made.params, earlier=earlier))

    def near(asked: Problem) -> float:
        world = PolicyWorld(Asked(SEER_PLUS, asked), 4, by_lr, start_s=0.5).run()
        first = [float(trial.config["lr"]) for trial in world.trials.values()][:LEARNS]
        return sum(0.003 < lr < 0.03 for lr in first) / len(first)

    assert near(informed) >= 0.6 > near(made)


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * (1 - 0.5**epoch)
