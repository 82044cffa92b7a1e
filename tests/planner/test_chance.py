"""What is learned from configurations that cannot be trained."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.policy_world import FakeTrial
from seerd.planner.bohb import FromModel
from seerd.planner.chance import (
    ANYWAY,
    LIKELIEST,
    Chances,
    Evidence,
    evidence_of,
    is_weighed,
    learned,
    likely_draw,
)
from seerd.planner.draws import draws
from seerd.planner.gp_ucb import FromCandidates
from seerd.planner.model import Allocation, Limits, PolicyParams, Problem, Report
from seerd.planner.rungs import Arrival, RungJob
from seerd.planner.space import Config, Parameter, Space

SPACE = Space(
    (
        Parameter("batch", low=8, high=512, log=True, integer=True),
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("norm", choices=("none", "batch", "layer", "group")),
    )
)


def made(seed: int = 0, space: Space = SPACE) -> Problem:
    return Problem(Limits(1.0, 1.0), space, PolicyParams(seed=seed, max_reports=4))


def too_large(config: Config) -> bool:
    return int(config["batch"]) > 64


def of_random(
    problem: Problem, count: int, fails: Callable[[Config], bool] = too_large
) -> list[Evidence]:
    return [Evidence(c, fails(c)) for c in (draws(problem)[n] for n in range(count))]


def known(problem: Problem, evidence: Sequence[Evidence]) -> Chances:
    chances = learned(problem, evidence)
    assert chances is not None
    return chances


def share_failing(
    problem: Problem, chances: Chances, fails: Callable[[Config], bool] = too_large
) -> float:
    fresh = [draws(problem)[number] for number in range(1000, 1400)]
    likely = [c for c, is_likely in zip(fresh, chances.likely(fresh), strict=True) if is_likely]
    return float(np.mean([fails(config) for config in likely]))


@pytest.mark.parametrize("seed", range(3))
def test_what_fails_is_left_out_though_half_of_the_space_does(seed: int) -> None:
    problem = made(seed)
    assert share_failing(problem, known(problem, of_random(problem, 40))) < 0.1


def test_a_choice_that_fails_is_left_out_and_others_are_not() -> None:
    problem = made()

    def fails(config: Config) -> bool:
        return config["norm"] in ("layer", "group")

    chances = known(problem, of_random(problem, 30, fails))
    assert share_failing(problem, chances, fails) < 0.05
    fresh = [draws(problem)[number] for number in range(1000, 1200)]
    kept = {c["norm"] for c, ok in zip(fresh, chances.likely(fresh), strict=True) if ok}
    assert {"none", "batch"} <= kept


def test_what_was_never_tried_is_tried() -> None:
    """Of four choices one works and one fails: the two others are not given up unseen."""
    problem = made()
    config = draws(problem)[0]
    seen = [Evidence(config | {"norm": "none"}, failed=False)] * 6
    seen += [Evidence(config | {"norm": "layer"}, failed=True)] * 2
    fresh = [config | {"norm": norm} for norm in ("batch", "group")]
    assert all(known(problem, seen).is_likely(other) for other in fresh)


def test_nothing_is_learned_where_nothing_fails() -> None:
    problem = made()
    assert learned(problem, of_random(problem, 20, lambda _: False)) is None
    assert all(likely_draw(problem, n, None) == draws(problem)[n] for n in range(20))


def test_if_all_have_failed_draws_go_on_and_keep_away() -> None:
    problem = made()
    chances = known(problem, of_random(problem, 10, lambda _: True))
    fresh = [draws(problem)[number] for number in range(1000, 1400)]
    assert LIKELIEST * 400 <= chances.likely(fresh).sum() < 400


def test_the_wall_is_tried_now_and_then() -> None:
    problem = made()
    chances = known(problem, of_random(problem, 40))
    drawn = [likely_draw(problem, number, chances) for number in range(400)]
    anyway = [number for number in range(400) if not is_weighed(problem, number)]
    assert 0.3 * 400 / ANYWAY < len(anyway) < 3 * 400 / ANYWAY
    assert all(drawn[number] == draws(problem)[number] for number in anyway)
    assert 0 < np.mean([too_large(config) for config in drawn]) < 0.12


def trial(name: str, metrics: Sequence[float | None], *, failing: bool = False) -> FakeTrial:
    history = [Report(float(n), n, metric) for n, metric in enumerate(metrics, 1)]
    config = draws(made())[int(name[1:])]
    return FakeTrial(name, config, "failed" if failing else "live", history, failing)


def test_only_who_came_further_than_those_that_failed_says_that_it_can_be_trained() -> None:
    trials = [
        trial("t1", [0.1, 0.2, None]),
        trial("t2", [0.1, 0.2]),
        trial("t3", [0.1, 0.2, 0.3]),
        trial("t4", []),
    ]
    told = [(e.failed, e.sure) for e in evidence_of(trials)]
    assert told == [(True, True), (False, False), (False, True)]


def test_a_trial_that_cannot_start_has_failed_and_every_report_is_further() -> None:
    trials = [trial("t1", [], failing=True), trial("t2", [0.5])]
    assert [(e.failed, e.sure) for e in evidence_of(trials)] == [(True, True), (False, True)]


def test_trials_that_will_probably_fail_wait_but_never_more_than_half_of_them() -> None:
    problem = made()
    drawn = [(f"t{n}", draws(problem)[n]) for n in range(60)]
    trials = [
        trial(name, [0.1, None] if too_large(config) else [0.1, 0.2]) for name, config in drawn[:40]
    ] + [trial(name, [0.1]) for name, _ in drawn[40:]]
    doubtful = known(problem, evidence_of(trials)).doubtful(trials)
    large = {name for name, config in drawn[40:] if too_large(config)}
    assert doubtful
    assert len(doubtful) <= 10
    assert len(doubtful & large) >= 0.9 * len(doubtful)


@given(st.permutations(range(12)), st.integers(0, 3))
def test_it_is_a_function_of_what_is_known(order: Sequence[int], seed: int) -> None:
    """The same trials in another order tell the same, but for rounding."""
    problem = made(seed)
    evidence = of_random(problem, 12)
    if not any(e.failed for e in evidence):
        return
    fresh = [draws(problem)[number] for number in range(1000, 1020)]
    first, again = known(problem, evidence), known(problem, [evidence[n] for n in order])
    assert first.kernel == known(problem, evidence).kernel
    assert (first.likely(fresh) == known(problem, evidence).likely(fresh)).all()
    assert again.likely(fresh).sum() > 0


def arrivals(trials: Sequence[tuple[str, float | None]]) -> list[Arrival]:
    return [
        Arrival(RungJob(name, 0, 0, 4, number, Allocation(name, 1)), metric)
        for number, (name, metric) in enumerate(trials)
    ]


RANGES = Space((Parameter("batch", low=8, high=512, log=True, integer=True),))
CHOICES = Space(
    (
        Parameter("lr", choices=(0.001, 0.01, 0.1, 1.0)),
        Parameter("norm", choices=("none", "batch", "layer", "group")),
        Parameter("depth", choices=tuple(range(8))),
    )
)


@pytest.mark.parametrize(
    ("source", "space", "fails"),
    [
        (FromModel, RANGES, too_large),
        (FromCandidates, CHOICES, lambda config: config["norm"] in ("layer", "group")),
    ],
    ids=["bohb", "gp-ucb"],
)
def test_other_policies_that_learn_leave_out_what_fails_too(
    source: type[FromModel | FromCandidates], space: Space, fails: Callable[[Config], bool]
) -> None:
    """What cannot be trained crashes, or has no metric; a larger `batch` is better up to there."""
    shares = []
    for seed in range(4):
        sources, rng, failed = source(made(seed, space)), random.Random(seed), []
        for number in range(40):
            name = f"t{number:03d}"
            config = sources.draw(number, "max")
            sources.drew(name, config)
            failed.append(fails(config))
            if not failed[-1]:
                metric = math.log(float(config.get("batch", config.get("lr"))))
                sources.learn(arrivals([(name, metric)]), [])
            elif rng.random() < 0.5:
                sources.learn(arrivals([(name, None)]), [])
            else:
                sources.learn([], [name])
        shares.append(np.mean(failed[20:]))
    assert np.mean(shares) < 0.12
