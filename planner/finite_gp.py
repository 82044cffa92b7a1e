"""A Gaussian process over a finite set of candidates, as `gp-ucb` learns (Li et al., Ease.ml, VLDB
'18, Algorithm 1, lines 6 and 7). That of `surrogate` also spans rungs, and is fitted in one piece,
where this one grows by a row of a Cholesky factor with each result: O(t K) for K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seerd.planner.parameter import Config

Floats = NDArray[np.float64]

JITTER = 1e-10  # the least noise, as a share of the largest prior variance
CERTAIN = 1e-8  # a candidate with less than this share of it left tells nothing of the others


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is believed before anything was observed."""

    mean: Floats  # expected result of each candidate, shape [K]
    covariance: Floats  # of the results, shape [K, K], symmetric and not negative definite
    noise: float = 0.0  # variance of a result around what the candidate is worth


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What is believed after some results: a value, of which observing gives another one."""

    prior: Prior
    mean: Floats  # expected worth of each candidate, shape [K]
    variance: Floats  # of that worth, shape [K], not below 0
    rows: Floats  # rows of the Cholesky factor, one for each result, shape [t, K]
    # sum of the squares of how far results were from what was expected, in standard deviations:
    # about t where the prior is right
    misfit: float = 0.0
    evidence: float = 0.0  # logarithm of the results' likelihood under the prior, up to a constant

    @property
    def deviation(self) -> Floats:
        """Standard deviation of each candidate's worth, shape [K]."""
        return np.sqrt(self.variance)

    def observed(self, candidate: int, result: float) -> Posterior:
        """Return what is believed after one more result of this candidate, by index."""
        prior = self.prior
        largest = float(np.max(np.diag(prior.covariance)))
        before = float(self.variance[candidate])
        if before <= CERTAIN * largest:
            return self
        expected = before + max(prior.noise, JITTER * largest)
        covariance = prior.covariance[candidate] - self.rows[:, candidate] @ self.rows
        row = covariance / np.sqrt(expected)
        surprise = (result - self.mean[candidate]) / np.sqrt(expected)
        return Posterior(
            prior,
            self.mean + surprise * row,
            np.maximum(self.variance - row**2, 0.0),
            np.vstack((self.rows, row)),
            self.misfit + float(surprise) ** 2,
            self.evidence - 0.5 * (float(surprise) ** 2 + math.log(expected)),
        )


def before_results(prior: Prior) -> Posterior:
    """Return what is believed before the first result."""
    size = len(prior.mean)
    variance = np.maximum(np.diag(prior.covariance), 0.0)
    return Posterior(prior, np.array(prior.mean, dtype=float), variance, np.zeros((0, size)))


def from_configurations(configs: Sequence[Config], scale: float, noise: float = 0.0) -> Prior:
    """Guess a prior with mean 0 and variance 1: candidates are the more alike, the more of their
    values they share; the paper leaves this to standard kernels. Numbers are compared by their
    rank. `scale`: length scale, as a share of the distance of two that share no value.
    """
    names = sorted({name for config in configs for name in config})
    apart = sum((_apart([c.get(name) for c in configs]) for name in names), np.zeros(()))
    apart = np.broadcast_to(apart, (len(configs), len(configs))) / max(1, len(names))
    return Prior(np.zeros(len(configs)), np.asarray(np.exp(-(apart / scale**2) / 2)), noise)


def _apart(values: Sequence[object]) -> Floats:
    """Square the distance of every two values of one parameter, from 0 to 1, shape [K, K]."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in values]
    if all(numbers):
        levels, places = np.unique(np.array(values, dtype=float), return_inverse=True)
        shares = places / max(1, len(levels) - 1)
        return np.asarray((shares[:, None] - shares[None, :]) ** 2)
    return np.array([[float(value != other) for other in values] for value in values])
