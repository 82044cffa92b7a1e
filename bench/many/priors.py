"""Priors that are learned from how other jobs did with the same candidates (Li et al., Ease.ml,
VLDB '18, section 5.3.2 and appendix A). NaN: that job has not trained that candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from seerd.planner.gp_ucb import Floats, Prior

SCALES = np.geomspace(0.25, 16.0, 10)
"""Length scales that are tried, as multiples of the typical distance of two candidates."""
NOISES = np.geomspace(1e-4, 10.0, 16)
"""Variance of each candidate alone that is tried, as multiples of what candidates share."""
FEW = 4
"""With fewer other jobs than this no half of them can be left out."""
Kernel = Callable[[Floats], Floats]
"""Covariance by squared distance in length scales."""


def from_quality_vectors(rows: Floats) -> Prior:
    """Make the paper's prior: the same mean for all, and a squared exponential kernel between
    candidates' quality vectors, which hold a candidate's results for all other jobs (appendix A).

    Amplitude, length scale and noise are those under which the rows themselves are most likely, as
    draws from the process (section 5.2). The paper's mean is 0 without loss of generality: here it
    is that of all results.

    rows  results of other jobs, shape [jobs, K]
    """
    rows = filled(rows)
    mean = float(rows.mean())
    apart = _squared_distances(rows.T)
    fit = _likeliest(_gaussian, [(apart, rows - mean)])
    covariance = fit.amplitude * _gaussian(apart / fit.scale**2)
    return Prior(np.full(rows.shape[1], mean), covariance, fit.amplitude * fit.noise)


def from_rows(rows: Floats) -> Prior:
    """Make a prior from how candidates did for other jobs, so that it holds for a job that is not
    among them: each candidate has its own mean, and a part of its worth that is its alone.

    The kernel is Matern 3/2 between quality vectors from which the means were taken. Length scale
    and amplitudes are those under which half of the rows is most likely, given vectors that were
    made from the other half: under the rows that the vectors were made from, any two candidates
    with near vectors seem all but the same.

    rows  results of other jobs, shape [jobs, K]; with fewer than `FEW` it is the paper's prior
    """
    rows = filled(rows)
    if len(rows) < FEW:
        return from_quality_vectors(rows)
    halves = (rows[0::2], rows[1::2])
    parts = [(_vectors(one), other - one.mean(axis=0)) for one, other in (halves, halves[::-1])]
    fit = _likeliest(_matern, parts)
    covariance = fit.amplitude * _matern(_vectors(rows) / fit.scale**2)
    return Prior(
        rows.mean(axis=0), covariance + fit.amplitude * fit.noise * np.eye(len(covariance))
    )


def filled(rows: Floats) -> Floats:
    """Fill gaps in rows with what their job and their candidate are on average.

    A candidate that no job has trained is as the others are.
    """
    present = ~np.isnan(rows)
    if present.all():
        return rows
    overall = float(rows[present].mean()) if present.any() else 0.0
    shown = np.where(present, rows, 0.0)
    job = shown.sum(axis=1) / np.maximum(present.sum(axis=1), 1)
    job = np.where(present.any(axis=1), job, overall)
    rest = np.where(present, rows - job[:, None], 0.0)
    candidate = rest.sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    return np.asarray(np.where(present, rows, job[:, None] + candidate[None, :]))


def _squared_distances(vectors: Floats) -> Floats:
    """Square the distance of every two vectors, so that the median is 1, shape [K, K]."""
    squares = (vectors**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * vectors @ vectors.T, 0.0)
    np.fill_diagonal(apart, 0.0)
    others = apart[~np.eye(len(apart), dtype=bool)]
    typical = float(np.median(others)) if len(others) else 0.0
    return np.asarray(apart / typical if typical > 0 else apart)


def _vectors(rows: Floats) -> Floats:
    """Square the distances of candidates' quality vectors without what each is on average."""
    return _squared_distances((rows - rows.mean(axis=0)).T)


def _gaussian(apart: Floats) -> Floats:
    return np.asarray(np.exp(-apart / 2))


def _matern(apart: Floats) -> Floats:
    """Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation 4.17."""
    distance = np.sqrt(3 * apart)
    return np.asarray((1 + distance) * np.exp(-distance))


class _Fit(NamedTuple):
    """Hyperparameters, best last: how likely the rows are, and what is multiplied with what."""

    likely: float = -np.inf
    scale: float = 1.0
    amplitude: float = 1.0
    noise: float = 1.0


def _likeliest(kernel: Kernel, parts: Sequence[tuple[Floats, Floats]]) -> _Fit:
    """Choose length scale and noise from their grids; the amplitude follows from them.

    With one decomposition for each length scale all noises are tried at once.

    parts  squared distances of all candidates, and rows that are taken for draws with mean 0
    """
    best = _Fit()
    total = sum(rows.size for _, rows in parts)
    for scale in SCALES:
        powers, logs = np.zeros(len(NOISES)), np.zeros(len(NOISES))
        for apart, rows in parts:
            values, vectors = np.linalg.eigh(kernel(apart / scale**2))
            spread = np.maximum(values, 0.0)[None, :] + NOISES[:, None]
            powers += (((rows @ vectors) ** 2).sum(axis=0) / spread).sum(axis=1)
            logs += len(rows) * np.log(spread).sum(axis=1)
        amplitudes = np.maximum(powers / total, 1e-12)
        likely = -0.5 * (total * np.log(amplitudes) + logs)
        at = int(np.argmax(likely))
        fit = _Fit(float(likely[at]), float(scale), float(amplitudes[at]), float(NOISES[at]))
        best = max(best, fit)
    return best
