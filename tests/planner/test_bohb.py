"""BOHB: what the model is told and asked, tables, and what must hold in any run."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
import warnings
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner import bohb
from seerd.planner.asha import ASHA, AtRandom
from seerd.planner.bohb import BOHB, FromModel, Observed, _good, nearest, suggest
from seerd.planner.model import Allocation, Mode, Outline, Policy, View
from seerd.planner.rungs import Arrival, RungJob
from seerd.planner.space import Condition, Config, Parameter, Space

SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("layers", low=1, high=6, integer=True),
        Parameter("optimizer", choices=("sgd", "adam")),
    )
)

SGD, ADAM = Condition("optimizer", ("sgd",)), Condition("optimizer", ("adam",))


def score(config: Config) -> float:
    """Best at lr 0.01, 3 layers, adam."""
    lr, layers = float(config["lr"]), float(config["layers"])
    return -abs(math.log10(lr) + 2) - 0.3 * abs(layers - 3) - 0.5 * (config["optimizer"] != "adam")


def learning(trial: FakeTrial, epoch: int) -> float:
    return score(trial.config) - 1 / epoch


def arrival(trial: str, metric: float | None, reports: int = 1) -> Arrival:
    return Arrival(RungJob(trial, 0, 0, reports, 1, Allocation(trial, 1)), metric)


class Taught:
    """Draws one after the other, and tells what became of them."""

    def __init__(self, source: FromModel | AtRandom) -> None:
        self.source = source
        self.drawn = 0

    def draw(self, mode: Mode = "max") -> tuple[str, Config]:
        config = self.source.draw(self.drawn, mode)
        name = f"t{self.drawn:04}"
        self.source.drew(name, config)
        self.drawn += 1
        return name, config

    def teach(self, trials: int, reports: int = 1) -> list[float]:
        scores = []
        for _ in range(trials):
            name, config = self.draw()
            scores.append(score(config))
            self.source.learn([arrival(name, scores[-1], reports)], [])
        return scores


def taught(source: FromModel | AtRandom, trials: int) -> list[float]:
    return Taught(source).teach(trials)


def test_the_model_draws_better_ones_than_chance() -> None:
    def later(kind: type[FromModel | AtRandom], seed: int) -> float:
        return mean(taught(kind(problem(space=SPACE, seed=seed)), 60)[20:])

    for seed in range(3):
        assert later(FromModel, seed) > later(AtRandom, seed) + 0.3


def test_drawn_configurations_are_values_of_the_space() -> None:
    source = Taught(FromModel(problem(space=SPACE)))
    for _ in range(30):
        name, config = source.draw()
        assert 1e-4 <= float(config["lr"]) <= 1.0
        assert type(config["layers"]) is int
        assert config["optimizer"] in ("sgd", "adam")
        source.source.learn([arrival(name, score(config))], [])


def test_the_model_comes_from_the_highest_rung_that_has_enough_results() -> None:
    source = FromModel(problem(space=SPACE))
    taught = Taught(source)
    assert source.modelled_at() is None
    taught.teach(6, 1)
    assert source.modelled_at() == 1
    taught.teach(5, 16)
    assert source.modelled_at() == 1, "d + 3 are needed"
    source.learn([arrival(taught.draw()[0], None, 16)], [])
    assert source.modelled_at() == 1, "with a metric"
    taught.teach(1, 64)
    taught.teach(1, 16)
    assert source.modelled_at() == 16


def test_one_in_three_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Taught(FromModel(problem(space=SPACE)))
    source.teach(20)
    asked = []
    monkeypatch.setattr(
        bohb,
        "suggest",
        lambda space, known, mode, seed, chances: (
            asked.append(seed) or source.source._points["t0000"]
        ),
    )
    for _ in range(90):
        source.draw()
    assert 50 <= len(asked) <= 70
    assert len(set(asked)) == len(asked), "each draw has a seed of its own"


def test_pending_ones_are_known_to_the_model_until_their_first_result() -> None:
    source = FromModel(problem(space=SPACE))
    taught = Taught(source)
    taught.teach(6)
    names = [taught.draw()[0] for _ in range(12)]
    assert len(source.known(1).pending) == 12
    source.learn([arrival(name, 0.0, 4) for name in names[:6]], names[6:])
    known = source.known(1)
    assert not known.pending
    assert [metric for _, metric in known.results].count(None) == 6, "a failed one counts"
    assert len(source.known(4).results) == 12


def test_who_fails_after_a_result_has_failed_no_configuration() -> None:
    source = FromModel(problem(space=SPACE))
    taught = Taught(source)
    taught.teach(6)
    source.learn([], ["t0003"])
    assert None not in [metric for _, metric in source.known(1).results]


def test_what_is_known_does_not_depend_on_the_order_in_which_it_was_heard() -> None:
    rng = random.Random(5)
    configs = {f"t{number:04}": SPACE.sample(rng) for number in range(30)}

    def heard(order: list[str]) -> list[Config]:
        source = FromModel(problem(space=SPACE))
        for name in order:
            source.drew(name, configs[name])
        source.learn([arrival(name, score(configs[name])) for name in order if name < "t0020"], [])
        source.learn([], [name for name in order if name > "t0025"])
        return [source.draw(number, "max") for number in range(30, 40)]

    order = list(configs)
    before = heard(order)
    rng.shuffle(order)
    assert heard(order) == before


def test_a_configuration_of_another_space_is_not_modelled() -> None:
    source = FromModel(problem(space=SPACE))
    Taught(source).teach(8)
    for number, odd in enumerate(
        (
            {},
            {"lr": "high", "layers": 1, "optimizer": "sgd"},
            {"lr": 0.1, "layers": 1, "optimizer": "x"},
        )
    ):
        source.drew(f"x{number}", odd)
        source.learn([arrival(f"x{number}", 1.0)], [])
    source.learn([], ["x0"])
    assert len(source.known(1).results) == 8


def test_a_failed_or_diverged_trial_is_worse_than_all_others() -> None:
    space = Space((Parameter("lr", low=0.0, high=1.0),))
    shares = [number / 30 for number in range(30)]
    known = Observed([({"lr": share}, None if share > 0.3 else 1.0 - share) for share in shares])
    found = [float(suggest(space, known, "min", seed)["lr"]) for seed in range(10)]
    assert mean(found) < 0.4


def test_a_model_knows_only_so_many_of_the_latest_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bohb, "MODELLED", 10)
    source = FromModel(problem(space=SPACE))
    scores = taught(source, 25)
    assert [metric for _, metric in source.known(1).results] == scores[-10:]


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
    assert nearest({"lr": 9e-4, "layers": 3, "optimizer": "adam"}, rows, SPACE) is rows[0], (
        "by the logarithm"
    )
    assert nearest({"lr": 1e-2, "layers": 6, "optimizer": "sgd"}, rows, SPACE) is rows[2]
    assert (
        nearest({"lr": 1e-2, "layers": 3, "optimizer": "adam"}, [*rows, dict(rows[1])], SPACE)
        is rows[1]
    )


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
    source = Taught(FromModel(problem(space=Space(SPACE.parameters, table))))
    drawn = []
    for _ in range(40):
        name, config = source.draw()
        drawn.append(config)
        source.source.learn([arrival(name, score(config))], [])
    assert sorted(int(config["row"]) for config in drawn[:20]) == list(range(20))
    assert sorted(int(config["row"]) for config in drawn[20:]) == list(range(20))
    assert all(config in table for config in drawn)


CONDITIONAL = Space(
    (
        Parameter("optimizer", choices=("sgd", "adam")),
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("beta", mean=0.9, std=0.02, low=0.8, high=0.99, when=(ADAM,)),
        Parameter("momentum", low=0.0, high=0.99, when=(SGD,)),
    ),
    constraints=("lr / (1 - momentum) <= 2", "lr < 0.5"),
)


def score_of_conditional(config: Config) -> float:
    """Best with sgd, a momentum of 0.9 and lr 0.01."""
    rest = abs(float(config["momentum"]) - 0.9) if "momentum" in config else 1.0
    return -abs(math.log10(float(config["lr"])) + 2) - rest


def test_what_the_model_draws_keeps_conditions_and_constraints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = FromModel(problem(space=CONDITIONAL))
    monkeypatch.setattr(bohb, "AT_RANDOM", 0.0)
    taught, drawn = Taught(source), []
    for _ in range(60):
        name, config = taught.draw()
        drawn.append(config)
        assert CONDITIONAL.allows(config)
        assert all(p.active(config) == (p.name in config) for p in CONDITIONAL.parameters)
        assert all(p.may_be(config[p.name]) for p in CONDITIONAL.parameters if p.name in config)
        source.learn([arrival(name, score_of_conditional(config))], [])
    later = [config["optimizer"] for config in drawn[30:]]
    assert later.count("sgd") > 20, "it learns from configurations of either kind"


def test_constraints_that_the_model_does_not_meet_leave_it_to_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All good results are where nothing is allowed."""
    space = Space((Parameter("x", low=0.0, high=1.0),), constraints=("x < 0.2 or x > 0.8",))
    monkeypatch.setattr(bohb, "ASKED", 1)
    source = FromModel(problem(space=space))
    for number in range(40):
        x = number / 40
        source.drew(f"t{number:04}", {"x": x})
        source.learn([arrival(f"t{number:04}", float(not space.allows({"x": x})))], [])
    assert suggest(space, source.known(1), "max", 0) is None
    assert all(space.allows(source.draw(number, "max")) for number in range(40, 60))


def test_rows_that_lack_a_parameter_are_nearest_to_those_that_lack_it_too() -> None:
    rows = [
        {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9},
        {"optimizer": "adam", "lr": 0.01, "beta": 0.9},
    ]
    assert nearest({"optimizer": "adam", "lr": 0.1, "beta": 0.9}, rows, CONDITIONAL) is rows[1]


def test_a_space_without_parameters_is_drawn_from_at_random() -> None:
    space = Space((), tuple({"row": number} for number in range(3)))
    source = Taught(FromModel(problem(space=space)))
    for _ in range(6):
        source.source.learn([arrival(source.draw()[0], 0.0)], [])


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
            Asked(BOHB, problem(gpus, 30.0, space=SPACE, trials=n, max_reports=16, seed=seed)),
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
    def later(policy: Policy, seed: int) -> float:
        made = Asked(policy, problem(4, 120.0, space=SPACE, max_reports=16, seed=seed))
        drawn = list(World(made, 4, learning).run().trials.values())
        return mean(score(trial.config) for trial in drawn[len(drawn) // 2 :])

    assert (
        mean(later(BOHB, seed) for seed in range(4))
        > mean(later(ASHA, seed) for seed in range(4)) + 0.15
    )


def test_only_where_configurations_come_from_differs_from_asha() -> None:
    made = problem(4, 100.0, space=SPACE)
    outline = BOHB.outline(made)
    assert isinstance(outline, Outline)
    assert outline == ASHA.outline(made)


def test_optuna_s_settings_are_as_before() -> None:
    import optuna

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


@pytest.mark.parametrize("mode", ["max", "min"])
def test_what_is_suggested_lies_where_results_are_better(mode: Mode) -> None:
    space = Space((Parameter("x", low=0.0, high=1.0),))
    known = Observed([({"x": n / 20}, n / 20) for n in range(21)])
    made = [suggest(space, known, mode, seed) for seed in range(5)]
    x = mean(one["x"] for one in made if one is not None)
    assert x > 0.6 if mode == "max" else x < 0.4


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
        "from seerd import cli; sys.exit(cli.main())"
    )
    spec = "examples/digits/spec.toml"
    command = [sys.executable, "-c", hidden, "plan", spec, "--policy", "bohb", "--ideal"]
    told = subprocess.run(command, check=False, capture_output=True, text=True)
    assert told.returncode == 2
    assert re.match(r"seerd: the policy bohb needs Optuna: .*\binstall .*\[bohb\]", told.stderr)


def test_the_registry_does_not_import_optuna() -> None:
    code = "import sys, planner.policy; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_asking_again_draws_nothing_new() -> None:
    policy = Asked(BOHB, problem(2, space=SPACE))
    plan = policy.plan(View(0.0, "max", {}))
    trials = {new.id: FakeTrial(new.id, new.config) for new in plan.new}
    again = policy.plan(View(0.0, "max", trials))
    assert (again.allocations, again.new) == (plan.allocations, ())


def test_rows_that_no_model_knows_are_drawn_at_random() -> None:
    table = tuple({"curve": row} for row in range(50))
    drawn = []
    for seed in (0, 1):
        source = Taught(FromModel(problem(space=Space((), table), seed=seed)))
        drawn.append([source.draw()[1]["curve"] for _ in range(10)])
        assert len(set(drawn[-1])) == 10
    assert drawn[0] != drawn[1]
