"""Priors of candidates by hand: what is known of a few candidates, and what follows for the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.many.priors import FEW, filled, from_quality_vectors, from_rows
from seerd.planner.gp_ucb import from_configurations

NAN = math.nan


def test_gaps_are_filled_with_what_job_and_candidate_are_on_average() -> None:
    rows = np.array([[1.0, 3.0, NAN], [2.0, NAN, NAN]])
    assert filled(rows).tolist() == [[1.0, 3.0, 2.0], [2.0, 3.0, 2.0]]


def test_a_job_that_has_trained_nothing_is_as_the_others_are() -> None:
    rows = np.array([[1.0, 5.0], [NAN, NAN]])
    assert filled(rows).tolist() == [[1.0, 5.0], [1.0, 5.0]]
    assert filled(np.full((1, 2), NAN)).tolist() == [[0.0, 0.0]]


def test_numbers_are_compared_by_rank_and_words_by_being_the_same() -> None:
    """Of two parameters each counts half; the covariance falls as the Gaussian of the distance."""
    configs = [{"lr": 0.1, "net": "a"}, {"lr": 1.0, "net": "a"}, {"lr": 70.0, "net": "b"}]
    prior = from_configurations(configs, 0.5)
    apart = {(0, 1): (0.25 + 0) / 2, (0, 2): (1 + 1) / 2, (1, 2): (0.25 + 1) / 2}
    for (one, other), squared in apart.items():
        expected = math.exp(-squared / 0.5**2 / 2)
        assert prior.covariance[one, other] == pytest.approx(expected)
        assert prior.covariance[other, one] == pytest.approx(expected)
    assert np.diag(prior.covariance) == pytest.approx([1.0] * 3)
    assert prior.mean.tolist() == [0.0] * 3


def test_a_missing_value_is_like_another_missing_one_alone() -> None:
    prior = from_configurations([{"lr": 0.1}, {}, {}], 1.0)
    assert prior.covariance[0, 1] == pytest.approx(math.exp(-0.5))
    assert prior.covariance[1, 2] == pytest.approx(1.0)


def test_truths_are_words_and_no_numbers() -> None:
    prior = from_configurations([{"on": True}, {"on": False}, {"on": 1}], 1.0)
    assert prior.covariance[0, 1] == pytest.approx(math.exp(-0.5))


def rows_of_two_kinds(jobs: int) -> np.ndarray:
    """Candidates 0 and 1 do well for the same jobs, and 2 and 3 for the others."""
    rng = np.random.default_rng(3)
    kind = rng.standard_normal((jobs, 2))
    rows = np.stack([kind[:, 0], kind[:, 0], kind[:, 1], kind[:, 1]], axis=1)
    return np.asarray(0.7 + 0.1 * rows + 0.01 * rng.standard_normal(rows.shape))


@pytest.mark.parametrize("jobs", [FEW, 12])
def test_candidates_that_do_well_together_are_alike(jobs: int) -> None:
    rows = rows_of_two_kinds(jobs)
    for prior in (from_rows(rows), from_quality_vectors(rows)):
        spread = np.sqrt(np.diag(prior.covariance))
        alike = prior.covariance / np.outer(spread, spread)
        assert min(alike[0, 1], alike[2, 3]) > 0.8
        assert max(alike[0, 2], alike[0, 3], alike[1, 2], alike[1, 3]) < 0.5


def test_each_candidate_has_its_own_mean_where_jobs_are_enough() -> None:
    rows = rows_of_two_kinds(FEW) + np.array([0.0, 1.0, 2.0, 3.0])
    assert from_rows(rows).mean == pytest.approx(rows.mean(axis=0))
    assert from_rows(rows[: FEW - 1]).mean == pytest.approx([rows[: FEW - 1].mean()] * 4)
