"""What is believed of candidates, beside the closed form and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.many.priors import from_quality_vectors, from_rows
from bench.many.rules import FREEDOM, doubting, expected_improvement
from seerd.planner.gp_ucb import (
    DELTA,
    Posterior,
    Prior,
    before_results,
    beta,
    chosen,
    from_configurations,
    upper_bounds,
)
from tests.examples import few


def prior(size: int, seed: int = 0, noise: float = 0.01, rank: int | None = None) -> Prior:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((size, rank or size))
    return Prior(rng.standard_normal(size), factor @ factor.T, noise)


def closed_form(given: Prior, tried: list[int], results: list[float]) -> tuple:
    """Algorithm 1, lines 6 and 7, as printed, with the prior's mean."""
    known = given.covariance[np.ix_(tried, tried)] + given.noise * np.eye(len(tried))
    towards = given.covariance[tried]
    surprise = np.array(results) - given.mean[tried]
    mean = given.mean + towards.T @ np.linalg.solve(known, surprise)
    variance = np.diag(given.covariance) - np.sum(towards * np.linalg.solve(known, towards), axis=0)
    return mean, variance


def after(given: Prior, tried: list[int], results: list[float]) -> Posterior:
    posterior = before_results(given)
    for candidate, result in zip(tried, results, strict=True):
        posterior = posterior.observed(candidate, result)
    return posterior


@settings(max_examples=few(60), deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 7), min_size=1, max_size=20))
def test_it_is_the_closed_form_also_where_a_candidate_is_tried_twice(
    seed: int, tried: list[int]
) -> None:
    made = prior(8, seed)
    results = list(np.random.default_rng(seed + 1).standard_normal(len(tried)))
    found, (mean, variance) = after(made, tried, results), closed_form(made, tried, results)
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.variance == pytest.approx(variance, abs=1e-6)


def test_the_evidence_is_the_log_likelihood() -> None:
    made, tried = prior(5), [0, 3, 1]
    found = after(made, tried, [0.5, -1.0, 2.0])
    known = made.covariance[np.ix_(tried, tried)] + made.noise * np.eye(3)
    gap = np.array([0.5, -1.0, 2.0]) - made.mean[tried]
    exact = -0.5 * (
        gap @ np.linalg.solve(known, gap) + math.log(np.linalg.det(2 * math.pi * known))
    )
    assert found.evidence - 1.5 * math.log(2 * math.pi) == pytest.approx(exact)


def test_what_is_certain_changes_nothing_and_nothing_is_below_zero() -> None:
    """Three directions explain six candidates: after three results all is known."""
    made = prior(6, noise=0.0, rank=3)
    worth = made.mean + made.covariance @ np.ones(6)
    found = after(made, [0, 1, 2, 3, 4, 5, 0], [float(worth[i]) for i in (0, 1, 2, 3, 4, 5, 0)])
    assert (found.variance >= 0).all()
    assert found.variance.max() < 1e-6
    assert found.mean == pytest.approx(worth, abs=1e-3)
    assert len(found.rows) == 3


def test_a_posterior_is_a_value() -> None:
    first = before_results(prior(4))
    second = first.observed(1, 3.0)
    assert len(first.rows) == 0
    assert first.mean == pytest.approx(prior(4).mean)
    assert second.mean[1] != first.mean[1]


def test_results_that_are_further_off_than_expected_raise_the_doubt() -> None:
    made = Prior(np.zeros(3), np.eye(3))
    as_expected, off = after(made, [0], [1.0]), after(made, [0], [5.0])
    assert as_expected.misfit == pytest.approx(1.0)
    assert doubting(as_expected, 5.0)[1] == pytest.approx(1.0)
    assert doubting(off, 5.0)[1] == pytest.approx(math.sqrt(30 / 6))


def test_beta_as_printed() -> None:
    expected = 2 * 3.0 * math.log(math.pi**2 * 10 * 8 * 2**2 / (6 * DELTA))
    assert beta(2, 8, jobs=10, dearest=3.0) == pytest.approx(expected)
    assert beta(2, 8) == pytest.approx(2 * math.log(math.pi**2 * 8 * 4 / (6 * DELTA)))


def test_of_equal_candidates_the_cheaper_one_is_chosen_and_a_dear_one_with_promise_still_is() -> (
    None
):
    alike = before_results(Prior(np.zeros(3), np.eye(3)))
    costs, untried = np.array([4.0, 1.0, 2.0]), np.ones(3, dtype=bool)
    assert chosen(upper_bounds(alike, 2.0, np.ones(3)), untried) == 0
    assert chosen(upper_bounds(alike, 2.0, costs), untried) == 1
    bounds = upper_bounds(alike, 2.0, costs)
    assert bounds == pytest.approx([math.sqrt(2 / 4), math.sqrt(2), 1.0])
    wide = before_results(Prior(np.zeros(3), np.diag([16.0, 1.0, 1.0])))
    assert chosen(upper_bounds(wide, 2.0, costs), untried) == 0
    untried[0] = False
    assert chosen(upper_bounds(wide, 2.0, costs), untried) == 1
    assert chosen(bounds, np.zeros(3, dtype=bool)) is None


def test_the_expected_improvement_is_that_under_student_s_t() -> None:
    # Every worker collects this file, and these take most of a second to import.
    from scipy.integrate import quad
    from scipy.stats import t as student

    posterior = before_results(Prior(np.array([0.0, 1.0, -3.0]), np.diag([1.0, 4.0, 0.0])))
    found = expected_improvement(posterior, 0.5)
    for at, (mean, scale) in enumerate([(0.0, 1.0), (1.0, 2.0)]):
        worth = student(FREEDOM, mean, scale)
        gain, _ = quad(lambda x, worth=worth: (x - 0.5) * worth.pdf(x), 0.5, np.inf)
        assert found[at] == pytest.approx(gain, rel=1e-6)
    assert found[2] == 0
    assert expected_improvement(posterior, -4.0)[2] == pytest.approx(1.0)


def test_what_is_thought_little_of_still_may_improve() -> None:
    little = before_results(Prior(np.array([-30.0]), np.ones((1, 1))))
    assert 0 < expected_improvement(little, 0.0)[0] < 1e-3


def rows(jobs: int, groups: int = 3, size: int = 12, seed: int = 0) -> np.ndarray:
    """Candidates of one group do alike."""
    rng = np.random.default_rng(seed)
    worth = rng.standard_normal((jobs, groups))[:, np.arange(size) % groups]
    return 0.7 + 0.1 * worth + 0.01 * rng.standard_normal((jobs, size))


@pytest.mark.parametrize("learned", [from_quality_vectors, from_rows])
def test_candidates_that_did_alike_for_others_are_taken_to_be_alike(learned) -> None:
    found = learned(rows(40))
    deviation = np.sqrt(np.diag(found.covariance))
    alike = found.covariance / np.outer(deviation, deviation)
    assert alike[0, 3] > 0.9
    assert alike[0, 3] > alike[0, 1] + 0.2
    told = before_results(found).observed(0, 0.9)
    assert told.mean[3] > found.mean[3] + 0.15
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-9


def test_each_candidate_has_its_own_mean_where_enough_is_known() -> None:
    table = rows(40)
    table[:, 5] += 0.2
    assert from_rows(table).mean[5] == pytest.approx(table[:, 5].mean())
    assert np.ptp(from_quality_vectors(table).mean) == 0


@pytest.mark.parametrize("learned", [from_quality_vectors, from_rows])
@pytest.mark.parametrize("jobs", [1, 2, 3, 4, 9])
def test_gaps_and_few_others_still_give_a_prior(learned, jobs: int) -> None:
    table = rows(jobs)
    table[0, 0] = np.nan
    table[:, 7] = np.nan
    found = learned(table)
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.covariance).all()
    told = before_results(found).observed(2, 0.8)
    assert np.isfinite(told.mean).all()


def test_the_same_rows_give_the_same_prior() -> None:
    one, other = from_rows(rows(20)), from_rows(rows(20))
    assert (one.covariance == other.covariance).all()


def test_configurations_that_share_values_are_taken_to_be_alike() -> None:
    configs = [
        {"model": "vgg", "lr": 0.1},
        {"model": "vgg", "lr": 0.01},
        {"model": "resnet", "lr": 0.1, "depth": 18},
        {"model": "resnet", "lr": 0.001, "depth": 50},
    ]
    found = from_configurations(configs, 0.5)
    assert np.diag(found.covariance) == pytest.approx(1.0)
    assert found.covariance[0, 1] > found.covariance[0, 2] > found.covariance[0, 3]
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-9
    assert found.covariance == pytest.approx(found.covariance.T)
