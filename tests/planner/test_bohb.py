"""BOHB: what the model is told and asked, tables, and what must hold in any run."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import warnings
from statistics import mean

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.asha import AtRandom, Search
from planner.bohb import Bohb, Estimator, FromModel, _good, _quietly, nearest
from planner.model import Outline, View
from planner.policy import POLICIES
from planner.rungs import Arrival, Job
from planner.space import Config, Parameter, Space
from tests.planner.policy_world import FakeTrial, World, problem

SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("layers", low=1, high=6, integer=True),
        Parameter("optimizer", choices=("sgd", "adam")),
    )
)


def score(config: Config) -> float:
    """Best at lr 0.01, 3 layers, adam."""
    lr, layers = float(config["lr"]), float(config["layers"])
    return -abs(math.log10(lr) + 2) - 0.3 * abs(layers - 3) - 0.5 * (config["optimizer"] != "adam")


def learning(trial: FakeTrial, epoch: int) -> float:
    return score(trial.config) - 1 / epoch


def arrival(trial: str, metric: float | None, reports: int = 1) -> Arrival:
    return Arrival(Job(trial, 0, 0, reports), metric)


def taught(source: FromModel | AtRandom, trials: int, reports: int = 1) -> list[float]:
    """Draw and tell one after the other."""
    scores = []
    for number in range(trials):
        name = f"{reports}-{number:04}"
        scores.append(score(source.draw(name)))
        source.told([arrival(name, scores[-1], reports)], [], "max")
    return scores


def test_the_model_draws_better_ones_than_chance() -> None:
    def later(kind: type[FromModel | AtRandom], seed: int) -> float:
        return mean(taught(kind(problem(space=SPACE, seed=seed)), 60)[20:])

    for seed in range(3):
        assert later(FromModel, seed) > later(AtRandom, seed) + 0.3


def test_drawn_configurations_are_values_of_the_space() -> None:
    source = FromModel(problem(space=SPACE))
    for number in range(30):
        config = source.draw(f"t{number:04}")
        assert 1e-4 <= float(config["lr"]) <= 1.0
        assert type(config["layers"]) is int
        assert config["optimizer"] in ("sgd", "adam")
        source.told([arrival(f"t{number:04}", score(config))], [], "max")


def test_the_model_comes_from_the_highest_rung_that_has_enough_results() -> None:
    source = FromModel(problem(space=SPACE))
    assert source._best_estimator() is None
    taught(source, 6, 1)
    assert source._best_estimator() is source._estimators[1]
    taught(source, 5, 16)
    assert source._best_estimator() is source._estimators[1], "d + 3 are needed"
    taught(source, 1, 64)
    taught(source, 1, 16)
    source.draw("t9999")
    source.told([arrival("t9999", None, 16)], [], "max")
    assert source._best_estimator() is source._estimators[16]


def test_one_in_three_is_random() -> None:
    source = FromModel(problem(space=SPACE))
    taught(source, 20)
    asked = source._estimators[1]._asked
    for number in range(90):
        source.draw(f"x{number:04}")
    by_model = sum(name.startswith("x") for name in source._estimators[1]._numbers)
    assert source._estimators[1]._asked - asked == by_model
    assert 80 <= by_model <= 90, "random ones are known to the model as pending, as soon as it is asked again"


def test_pending_ones_are_known_to_the_model_until_their_first_result() -> None:
    source = FromModel(problem(space=SPACE))
    taught(source, 6)
    for number in range(12):
        source.draw(f"p{number:04}")
    (estimator,) = source._estimators.values()
    running = estimator._study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
    assert len(running) >= 8
    source.told(
        [arrival(f"p{number:04}", 0.0, 4) for number in range(6)], [f"p{number:04}" for number in range(6, 12)], "max"
    )
    states = [trial.state for trial in estimator._study.get_trials(deepcopy=False)]
    assert optuna.trial.TrialState.RUNNING not in states
    assert estimator._numbers == {}
    assert source._pending == {}


def test_a_failed_or_diverged_trial_is_worse_than_all_others() -> None:
    space = Space((Parameter("lr", low=0.0, high=1.0),))
    with _quietly():
        estimator = Estimator(space, "min", 0)
        for number in range(30):
            share = number / 30
            estimator.tell(f"t{number:04}", {"lr": share}, None if share > 0.3 else 1.0 - share)
        assert estimator.results == 10
        found = [float(estimator.suggest(f"x{number}", {})["lr"]) for number in range(10)]
    assert mean(found) < 0.4


@pytest.mark.parametrize(("results", "good"), [(1, 1), (5, 4), (20, 4), (100, 15)])
def test_as_many_count_as_good_as_the_paper_says(results: int, good: int) -> None:
    assert _good(3, results) == good


def test_nearest_counts_in_shares_of_the_range() -> None:
    rows = [
        {"lr": 1e-4, "layers": 3, "optimizer": "adam"},
        {"lr": 1e-1, "layers": 3, "optimizer": "adam"},
        {"lr": 1e-2, "layers": 3, "optimizer": "sgd"},
    ]
    assert nearest({"lr": 2e-2, "layers": 3, "optimizer": "adam"}, rows, SPACE) is rows[1]
    assert nearest({"lr": 9e-4, "layers": 3, "optimizer": "adam"}, rows, SPACE) is rows[0], "by the logarithm"
    assert nearest({"lr": 1e-2, "layers": 6, "optimizer": "sgd"}, rows, SPACE) is rows[2]
    assert nearest({"lr": 1e-2, "layers": 3, "optimizer": "adam"}, [*rows, dict(rows[1])], SPACE) is rows[1]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_a_row_is_nearest_to_itself(seed: int, count: int) -> None:
    rng = random.Random(seed)
    rows = [SPACE.sample(rng) for _ in range(count)]
    assert all(nearest(row, rows, SPACE) == row for row in rows)


@given(st.integers(0, 2**32), st.floats(1e-6, 1.0), st.floats(1.5, 1e6), st.booleans())
def test_a_share_is_the_inverse_of_a_value(seed: int, low: float, factor: float, log: bool) -> None:
    parameter = Parameter("x", low=low, high=low * factor, log=log)
    share = random.Random(seed).random()
    assert parameter.share(parameter.at(share)) == pytest.approx(share, abs=1e-6)
    assert (parameter.share(parameter.low), parameter.share(parameter.high)) == (0.0, 1.0)


def test_of_a_table_each_row_is_tried_once_before_any_is_tried_twice() -> None:
    rng = random.Random(3)
    table = tuple({"row": number} | dict(SPACE.sample(rng)) for number in range(20))
    source = FromModel(problem(space=Space(SPACE.parameters, table)))
    drawn = []
    for number in range(40):
        drawn.append(source.draw(f"t{number:04}"))
        source.told([arrival(f"t{number:04}", score(drawn[-1]))], [], "max")
    assert sorted(int(config["row"]) for config in drawn[:20]) == list(range(20))
    assert all(config in table for config in drawn)


def test_parameters_that_some_rows_of_a_table_lack_are_not_modelled() -> None:
    rng = random.Random(3)
    table = (*(SPACE.sample(rng) for _ in range(20)), {"lr": 0.01, "optimizer": "adam"})
    source = FromModel(problem(space=Space(SPACE.parameters, table)))
    for number in range(21):
        config = source.draw(f"t{number:04}")
        source.told([arrival(f"t{number:04}", float(config["lr"]))], [], "max")
    assert source._points["t0000"].keys() == {"lr", "optimizer"}


def test_a_space_without_parameters_is_drawn_from_at_random() -> None:
    space = Space((), tuple({"row": number} for number in range(3)))
    source = FromModel(problem(space=space))
    for number in range(6):
        source.draw(f"t{number:04}")
        source.told([arrival(f"t{number:04}", 0.0)], [], "max")


@given(
    seed=st.integers(0, 10**6),
    gpus=st.integers(1, 6),
    n=st.none() | st.integers(1, 30),
    mode=st.sampled_from(["max", "min"]),
)
@settings(max_examples=8, deadline=None)
def test_whatever_happens(seed: int, gpus: int, n: int | None, mode: str) -> None:
    def run() -> World:
        draws = random.Random(seed)
        return World(
            Bohb(problem(gpus, 30.0, space=SPACE, trials=n, max_reports=16, seed=seed)),
            gpus,
            lambda trial, epoch: None if draws.random() < 0.1 else learning(trial, epoch),
            unit_s=lambda trial, until, gpus: draws.uniform(0.3, 2.0) / gpus,
            start_s=0.2,
            lives_s=lambda: draws.expovariate(0.02),
            late=lambda: draws.random() < 0.3,
            mode=mode,  # type: ignore[arg-type]
        ).run()

    world = run()
    assert world.plans[-1].done
    assert n is None or len(world.trials) <= n
    assert run().plans == world.plans


def test_it_tries_better_ones_than_asha_on_the_same_cluster() -> None:
    def later(policy: str, seed: int) -> float:
        made = POLICIES[policy](problem(4, 120.0, space=SPACE, max_reports=16, seed=seed))
        drawn = list(World(made, 4, learning).run().trials.values())
        return mean(score(trial.config) for trial in drawn[len(drawn) // 2 :])

    assert mean(later("bohb", seed) for seed in range(4)) > mean(later("asha", seed) for seed in range(4)) + 0.15


def test_only_where_configurations_come_from_differs_from_asha() -> None:
    made = problem(4, 100.0, space=SPACE)
    outline = Bohb(made).outline()
    assert isinstance(outline, Outline)
    assert outline == POLICIES["asha"](made).outline()
    assert isinstance(Bohb(made)._asha._search, Search)


def test_optuna_s_settings_are_as_before() -> None:
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            taught(FromModel(problem(space=SPACE)), 8)
            filters = list(warnings.filters)
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
        assert filters
    finally:
        optuna.logging.set_verbosity(optuna.logging.INFO)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    taught(FromModel(problem(space=SPACE)), 8)
    assert capfd.readouterr() == ("", "")


def test_without_optuna_it_says_what_to_install() -> None:
    hidden = (
        "import importlib.machinery as m, sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return None if name == 'optuna' else m.PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if f is not m.PathFinder] + [Hidden()]\n"
        "import cli; sys.exit(cli.main())"
    )
    spec = "examples/digits/spec.toml"
    command = [sys.executable, "-c", hidden, "plan", spec, "--policy", "bohb", "--ideal"]
    told = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (2, 'seerd: the policy bohb needs Optuna: pip install "seerd[bohb]"\n')


def test_the_registry_does_not_import_optuna() -> None:
    code = "import sys, planner.policy; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_asking_again_draws_nothing_new() -> None:
    policy = Bohb(problem(2, space=SPACE))
    plan = policy.plan(View(0.0, "max", {}))
    trials = {new.id: FakeTrial(new.id, new.config) for new in plan.new}
    again = policy.plan(View(0.0, "max", trials))
    assert (again.allocations, again.new) == (plan.allocations, ())


def test_rows_that_no_model_knows_are_drawn_at_random() -> None:
    table = tuple({"curve": row} for row in range(50))
    drawn = []
    for seed in (0, 1):
        source = FromModel(problem(space=Space((), table), seed=seed))
        drawn.append([source.draw(f"t{number:04}")["curve"] for number in range(10)])
        assert len(set(drawn[-1])) == 10
    assert drawn[0] != drawn[1]
