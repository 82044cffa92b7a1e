"""The policy gp-ucb: which candidates it tries, in which order, and when it is over."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.testbed.policy_world import Asked, FakeTrial, World
from seerd.planner.gp_ucb import GP_UCB, MOST, candidates
from seerd.planner.model import EarlierTrial, Limits, Mode, PolicyParams, Problem, Report
from seerd.planner.space import Config, Parameter, Space

MODELS = ("squeeze", "resnet18", "resnet50", "vgg")
SPACE = Space((Parameter("model", MODELS), Parameter("lr", (0.1, 0.01, 0.001))))
SECONDS = {"squeeze": 0.5, "resnet18": 1.0, "resnet50": 3.0, "vgg": 5.0}


def problem(gpus: int = 1, deadline_s: float = 400.0, **params: object) -> Problem:
    made = PolicyParams(name="gp-ucb", t_min_s=1.0, max_reports=4, **params)  # type: ignore[arg-type]
    return Problem(Limits(deadline_s, gpus * deadline_s, gpus), SPACE, made)


def quality(trial: FakeTrial, epoch: int) -> float:
    """resnet50 with 0.01 is best."""
    model = {"squeeze": 0.5, "resnet18": 0.7, "resnet50": 0.9, "vgg": 0.8}
    return model[str(trial.config["model"])] - 0.2 * (trial.config["lr"] != 0.01) - 0.1 / epoch


def as_the_model(config: Config) -> float:
    """Seconds per report."""
    return SECONDS[str(config["model"])]


def one_second(config: Config) -> float:
    return 1.0


def played(
    made: Problem,
    seconds: Callable[[Config], float] = as_the_model,
    metric: Callable[[FakeTrial, int], float | None] = quality,
    mode: Mode = "max",
) -> World:
    world = World(Asked(GP_UCB, made), made.limits.max_gpus or 1, metric, start_s=0.1, mode=mode)
    world.unit_s = lambda name, *_: seconds(world.trials[name].config)
    return world.run()


def tried(world: World) -> list[Config]:
    return [trial.config for trial in world.trials.values()]


@pytest.mark.parametrize("gpus", [1, 3])
def test_every_candidate_is_trained_once_and_to_the_end_and_then_it_is_over(gpus: int) -> None:
    world = played(problem(gpus))
    assert sorted(map(json.dumps, tried(world))) == sorted(map(json.dumps, SPACE.grid(5, 100)))
    assert all(trial.reports == 4 for trial in world.trials.values())
    assert world.plans[-1].done


def test_it_is_the_same_again_and_another_with_another_seed() -> None:
    assert tried(played(problem(2))) == tried(played(problem(2)))
    assert tried(played(problem(2))) != tried(played(problem(2, seed=1)))


def place(world: World, wanted: Config) -> int:
    return tried(world).index(wanted)


def test_it_comes_to_the_best_sooner_than_in_any_order() -> None:
    """Model and rate each do their part; of twelve candidates the best would be after 5.5 others on
    average.
    """
    before = []
    for seed in range(24):
        rng = random.Random(seed)
        part = {value: rng.random() for value in (*MODELS, 0.1, 0.01, 0.001)}

        def worth(config: Config, part: dict = part) -> float:
            return part[config["model"]] + part[config["lr"]]

        world = played(problem(seed=seed), one_second, lambda trial, _, at=worth: at(trial.config))
        before.append(tried(world).index(max(SPACE.grid(5, 100), key=worth)))
    assert sum(before) / len(before) < 4


def test_less_is_better_where_the_metric_says_so() -> None:
    made = [problem(seed=seed) for seed in range(4)]
    for one in made:
        loss = played(one, one_second, lambda trial, epoch: -quality(trial, epoch), "min")
        assert tried(loss) == tried(played(one, one_second))


def test_of_candidates_as_good_the_cheap_ones_come_first() -> None:
    """What the next four cost, once each model has been seen."""

    def next_four(seconds: Callable[[Config], float]) -> float:
        worlds = [played(problem(seed=seed), seconds, lambda *_: 0.5) for seed in range(6)]
        return sum(as_the_model(config) for world in worlds for config in tried(world)[4:8])

    assert next_four(as_the_model) < 0.65 * next_four(one_second)


def test_guesses_come_first_and_count_among_the_candidates() -> None:
    guess = {"model": "vgg", "lr": 0.001}
    world = played(problem(start=(guess,)))
    assert tried(world)[0] == guess
    assert len(world.trials) == 12


def test_trials_that_fail_are_not_tried_again_and_the_others_go_on() -> None:
    world = played(problem(), metric=lambda t, e: None if t.config["lr"] == 0.1 else quality(t, e))
    assert len({json.dumps(config) for config in tried(world)}) == 12


def test_what_an_earlier_run_has_seen_counts() -> None:
    best = {"model": "resnet50", "lr": 0.01}
    earlier = tuple(
        EarlierTrial(config, (Report(1.0, 4, 0.9 if config == best else 0.3),))
        for config in SPACE.grid(5, 100)
    )
    places = [place(played(problem(seed=s, earlier=earlier)), best) for s in range(4)]
    assert places == [0, 0, 0, 0]


def test_a_large_space_has_so_many_candidates_and_a_range_five_values() -> None:
    wide = Space(tuple(Parameter(f"p{i}", low=0.0, high=1.0) for i in range(5)))
    made = candidates(replace(problem(), space=wide))
    assert len(made) == MOST
    assert len({config["p0"] for config in made}) == 5
