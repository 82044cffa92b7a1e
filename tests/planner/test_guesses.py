"""`[policy] start`: the person's own guesses are tried before anything that is drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World
from seerd.planner.draws import draws
from seerd.planner.model import Limits, PolicyParams, Problem
from seerd.planner.policies import POLICIES
from seerd.planner.policy import policy_of
from seerd.planner.seer_plus import LEARNS
from seerd.planner.space import Config, why_not
from tests.planner.spaces import MIXED

WIDE = MIXED.fixed({"epochs": 90})
DRAWING = sorted(set(POLICIES) - {"grid"})


def problem(name: str, *start: Config, seed: int = 0) -> Problem:
    params = PolicyParams(
        name=name, eta=2, t_min_s=2.0, seed=seed, min_reports=1, max_reports=8, start=start
    )
    return Problem(Limits(60.0, 8 * 60.0, 8), WIDE, params)


@given(st.integers(0, 100), st.sets(st.sampled_from(["lr", "optimizer", "layers"]), min_size=1))
def test_a_guess_is_kept_and_what_it_leaves_open_is_drawn(seed: int, named: set[str]) -> None:
    guess = {
        name: value
        for name, value in draws(problem("random", seed=seed))[0].items()
        if name in named
    }
    drawn = draws(problem("random", guess, guess, seed=seed))
    for config in (drawn[0], drawn[1]):
        assert guess.items() <= config.items()
        assert WIDE.allows(config)
        assert list(config) == [p.name for p in WIDE.parameters if p.active(config)]
    assert drawn[0] != drawn[1]
    assert drawn[2] == draws(problem("random", seed=seed))[0]


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return -abs(math.log(float(trial.config["lr"])) + 3) - 1 / epoch


@pytest.mark.parametrize("name", DRAWING)
def test_every_policy_that_draws_tries_the_guesses_first(name: str) -> None:
    guesses = [{"lr": 0.001 + 0.01 * number, "layers": 2} for number in range(LEARNS + 8)]
    made = problem(name, *guesses)
    world = World(Asked(policy_of(made), made), 8, by_lr, start_s=0.1).run()
    lrs = [float(trial.config["lr"]) for trial in world.trials.values()]
    assert lrs[: len(guesses)] == [guess["lr"] for guess in guesses][: len(lrs)]


def test_recorded_curves_have_no_configurations_but_their_own() -> None:
    rows = ({"lr": 0.1}, {"lr": 0.2})
    made = problem("random", {"lr": 0.15})
    table = replace(made, space=replace(made.space, table=rows))
    assert draws(table)[0] in rows


@pytest.mark.parametrize(
    ("guess", "says"),
    [
        ({"lr": 0.1}, ""),
        ({"lr": 0.1, "optimizer": "sgd", "momentum": 0.9}, ""),
        ({"lr": 2.0}, "lr = 2.0 is not in"),
        ({"rate": 0.1}, "no parameter rate"),
        ({"layers": 2.5}, "layers = 2.5"),
        ({"momentum": 0.9}, "needs optimizer = 'sgd' in the same guess"),
        ({"beta": 0.9, "optimizer": "sgd"}, "needs optimizer = 'adam' or 'lion'"),
        ({"layers": 6, "width": 256}, "none met all constraints"),
    ],
)
def test_a_guess_that_cannot_be_tried_is_refused(guess: Config, says: str) -> None:
    why = why_not(MIXED, guess)
    assert says in why
    assert bool(says) == bool(why)
