"""What the model of configurations learns, and that it is a function of what it is given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from seerd.planner.draws import draws
from seerd.planner.model import Limits, PolicyParams, Problem
from seerd.planner.space import Config, Parameter, Space
from seerd.planner.surrogate import (
    CARRIED,
    MOST,
    Kernel,
    RungResult,
    normal_scores,
    propose,
    scored,
)

SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("momentum", low=0.0, high=1.0),
        Parameter("optimizer", choices=("sgd", "adam")),
    )
)


def made(space: Space = SPACE, seed: int = 0) -> Problem:
    return Problem(Limits(1.0, 1.0), space, PolicyParams(seed=seed))


def quality(config: Config) -> float:
    """Best at lr = 0.01 with sgd; momentum does nothing."""
    distance = abs(math.log10(float(config["lr"])) + 2.0)
    return -distance - (config["optimizer"] == "adam")


def learned(problem: Problem, count: int) -> tuple[list[Config], list[RungResult]]:
    configs = [draws(problem)[number] for number in range(count)]
    return configs, [RungResult(n, 0, quality(config)) for n, config in enumerate(configs)]


def test_proposals_are_better_than_random_draws() -> None:
    problem = made()
    configs, results = learned(problem, 40)
    kernel, proposed = None, []
    for number in range(40, 60):
        chosen, kernel = propose(problem, configs, results, number, kernel)
        assert chosen is not None
        proposed.append(quality(chosen))
    assert np.median(proposed) > np.quantile([quality(c) for c in configs], 0.85)


def test_a_parameter_that_matters_has_a_shorter_scale_than_one_that_does_not() -> None:
    problem = made()
    configs, results = learned(problem, 60)
    _, kernel = propose(problem, configs, results, 60, None)
    assert kernel is not None
    assert kernel.scales[0] < kernel.scales[1]
    assert kernel.results == 60


def test_the_same_question_has_the_same_answer() -> None:
    configs, results = learned(made(), 20)
    once = propose(made(), configs, results, 20, None)
    assert propose(made(), configs, results, 20, None) == once
    assert propose(made(), configs, results, 21, None)[0] != once[0]


def test_nothing_is_proposed_that_was_tried() -> None:
    table = tuple({"curve": row, "lr": 0.1 * row + 0.1} for row in range(30))
    space = Space((Parameter("lr", low=0.1, high=3.0),), table)
    problem = made(space)
    configs = list(table[:29])
    results = [RungResult(row, 0, float(row)) for row in range(29)]
    chosen, _ = propose(problem, configs, results, 40, None)
    assert chosen == table[29]
    assert propose(problem, list(table), results, 40, None)[0] is None


def test_without_results_or_parameters_there_is_nothing_to_learn_from() -> None:
    assert propose(made(), [], [], 5, None) == (None, None)
    assert propose(made(Space(())), [{}], [RungResult(0, 0, 1.0)], 5, None) == (None, None)


def test_of_many_results_one_may_be_left_of_a_rung() -> None:
    configs, low = learned(made(), MOST + 10)
    high = [RungResult(one.trial, 1, one.value) for one in low[: MOST - 1]]
    chosen, kernel = propose(made(), configs, [*low, *high], MOST + 10, None)
    assert chosen is not None
    assert kernel is not None


def test_scores_of_a_higher_rung_continue_those_below() -> None:
    low = [RungResult(n, 0, float(n)) for n in range(8)]
    high = [RungResult(6, 1, 1.0), RungResult(7, 1, 2.0)]
    rungs = {(trial, rung): score for trial, rung, score in scored([*low, *high])}
    came = (rungs[6, 0] + rungs[7, 0]) / 2
    assert math.isclose((rungs[6, 1] + rungs[7, 1]) / 2, CARRIED * came)
    assert rungs[7, 1] > rungs[6, 1] > rungs[3, 0]
    assert not scored([RungResult(0, 0, 1.0)])


def test_a_trial_without_a_score_below_counts_as_an_average_one_there() -> None:
    low = [RungResult(n, 0, float(n)) for n in range(8)]
    high = [RungResult(7, 1, 1.0), RungResult(9, 1, 2.0)]
    rungs = {(trial, rung): score for trial, rung, score in scored([*low, *high])}
    came = rungs[7, 0] / 2
    spread = math.sqrt(CARRIED**2 * came**2 + 1 - CARRIED**2)
    worse, better = normal_scores([1.0, 2.0])
    assert math.isclose(rungs[7, 1], CARRIED * came + spread * worse)
    assert math.isclose(rungs[9, 1], CARRIED * came + spread * better)


def test_whoever_has_diverged_is_last() -> None:
    results = [RungResult(0, 0, 1.0), RungResult(1, 0, None), RungResult(2, 0, 0.5)]
    scores = {trial: score for trial, _, score in scored(results)}
    assert scores[1] < scores[2] < scores[0]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=50))
def test_normal_scores_keep_order_and_ties(values: list[int]) -> None:
    scores = normal_scores(values)
    assert math.isclose(float(scores.sum()), 0.0, abs_tol=1e-9)
    for one, score in zip(values, scores, strict=True):
        for other, beside in zip(values, scores, strict=True):
            assert (one < other) == (score < beside)


def test_a_kernel_is_read_as_it_was_written() -> None:
    kernel = Kernel(7, [0.5, 2.0], 0.3, 0.7, 0.1)
    assert convert(to_builtins(kernel), Kernel) == kernel
    for wrong in (None, [1, 2, 3], [1, [0.5], 0.3, "x", 0.1], [1, 0.5, 0.3, 0.7, 0.1]):
        with pytest.raises(ValueError):
            convert(wrong, Kernel)
