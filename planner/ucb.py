"""Which candidate to train next: GP-UCB with and without costs, and expected improvement per cost
(Li et al., Ease.ml, VLDB '18, section 3).

The one rule: a candidate that was trained is not trained again. Its result is known, so that the
largest bound is looked for among the others. Of equal ones the first is chosen.

Larger results are better. Costs are in any unit, the same for all, and above zero; None: all cost
the same.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seerd.planner.finite_gp import Floats, Posterior

DELTA = 0.1
"""The regret bounds of the paper hold with a probability of 1 - DELTA."""


FREEDOM = 5
"""Degrees of freedom of what is believed in an expected improvement, and how many results the scale
of a prior counts for there: other jobs' results spread more, or less, than this one's.
"""


def beta(step: int, candidates: int, *, jobs: int = 1, dearest: float = 1.0) -> float:
    """Compute beta_t = 2 c* log(pi^2 n K* t^2 / (6 delta)) (theorems 2 and 3; with one job theorem
    1).

    step        t, from 1: the job's own
    candidates  K*, the most that any job has
    jobs        n
    dearest     c*, the largest cost of any candidate of any job; 1 where costs do not count
    """
    return 2 * dearest * math.log(math.pi**2 * jobs * candidates * step**2 / (6 * DELTA))


def upper_bounds(posterior: Posterior, beta_t: float, costs: Floats | None = None) -> Floats:
    """Compute mu + sqrt(beta_t / c) sigma for each candidate, shape [K] (Algorithm 1, line 4;
    section 3.2).
    """
    widths = math.sqrt(beta_t) if costs is None else np.sqrt(beta_t / costs)
    return np.asarray(posterior.mean + widths * posterior.deviation)


def expected_improvement(posterior: Posterior, best: float) -> Floats:
    """Compute by how much each candidate is expected to be better than `best`, shape [K].

    Worths are taken to follow Student's t with `FREEDOM` degrees, not a normal distribution: the
    kernel is learned from other jobs, and under a normal one a candidate that it thinks little of
    would never be tried, whatever it costs. A candidate that is certain improves by what it is
    above `best`, or not at all.
    """
    scale = posterior.deviation_doubting(FREEDOM)
    certain = scale <= 0
    ahead = posterior.mean - best
    z = ahead / np.where(certain, 1.0, scale)
    density, share = _student(z)
    tail = (FREEDOM + z**2) / (FREEDOM - 1) * density
    gain = np.where(certain, ahead, ahead * share + scale * tail)
    return np.maximum(gain, 0.0)


def _student(z: Floats) -> tuple[Floats, Floats]:
    """Density, and share below z, of Student's t with 5 degrees of freedom, in closed form."""
    angle = np.arctan(z / math.sqrt(5))
    cosine = np.cos(angle)
    share = 0.5 + (angle + np.sin(angle) * (cosine + 2 / 3 * cosine**3)) / math.pi
    return 8 / (3 * math.pi * math.sqrt(5)) * cosine**6, share


def chosen(worth: Floats, untried: NDArray[np.bool_]) -> int | None:
    """Return the untried candidate that is worth most; None: all were tried."""
    if not untried.any():
        return None
    return int(np.argmax(np.where(untried, worth, -np.inf)))
