"""A Gaussian process over a finite set of candidates: what their results are expected to be, given
those that are known (Li et al., Ease.ml, VLDB '18, Algorithm 1, lines 6 and 7).

The one rule: a posterior is a value; observing gives another one, and nothing is drawn.

Observing appends one row to the Cholesky factor of the observed candidates' covariance, carried on
to all candidates. For K candidates of which t were observed that is O(t K), and no matrix is ever
inverted. The variance that is left is kept from falling below zero, and a candidate whose result is
all but certain tells nothing of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

JITTER = 1e-10
"""The least noise, as a share of the largest prior variance."""
CERTAIN = 1e-8
"""A candidate with less than this share of it left tells nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is believed before anything was observed."""

    mean: Floats  # expected result of each candidate, shape [K]
    covariance: Floats  # of the results, shape [K, K], symmetric and not negative definite
    noise: float = 0.0  # variance of a result around what the candidate is worth


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What is believed after some results."""

    prior: Prior  # what was believed before
    mean: Floats  # expected worth of each candidate, shape [K]
    variance: Floats  # of that worth, shape [K]
    rows: Floats  # rows of the Cholesky factor, one for each result, shape [t, K]
    # sum of the squares of how far results were from what was expected, in standard deviations:
    # about t where the prior is right
    misfit: float = 0.0
    evidence: float = 0.0  # logarithm of the results' likelihood under the prior, up to a constant

    @property
    def deviation(self) -> Floats:
        """Standard deviation of each candidate's worth, shape [K]."""
        return np.sqrt(self.variance)

    def deviation_doubting(self, worth: float) -> Floats:
        """Standard deviation where the prior's scale is doubted, and learned from the misfit, shape
        [K] (Shah, Wilson and Ghahramani, Student-t Processes as Alternatives to Gaussian Processes,
        AISTATS '14, lemma 3).

        worth  how many results the prior's scale is worth
        """
        doubt = (worth + self.misfit) / (worth + len(self.rows))
        return np.asarray(self.deviation * np.sqrt(doubt))

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
