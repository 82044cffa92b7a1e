"""Many latencies at once: how long the slowest of n takes, and all n together, at a cost that does
not depend on n.

A sum of independent latencies is taken to be the log-normal with the same mean and variance. The
slowest of n is drawn from its own distribution, F(x)^n; the sum of the others, which cannot be
slower, from their mean and variance given that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from seerd.planner.profile import Latency

Samples = NDArray[np.float64]
FAR, STEP = 12.0, 0.01  # ends and steps of the table of the normal distribution


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a time."""

    mean_s: float
    variance: float  # seconds squared

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.mean_s + other.mean_s, self.variance + other.variance)

    def times(self, count: int, faster: float = 1.0) -> Moments:
        """Return the moments of `count` such times in turn, each `faster` times as fast."""
        return Moments(self.mean_s * count / faster, self.variance * count / faster**2)

    def all_alike(self, count: int, faster: float = 1.0) -> Moments:
        """Return the moments of `count` times that are drawn once: if one is long, all are."""
        return Moments(self.mean_s * count / faster, self.variance * (count / faster) ** 2)


def moments(latency: Latency) -> Moments:
    """Return mean and variance of the log-normal."""
    square = latency.sigma**2
    mean_s = latency.p50_s * math.exp(square / 2)
    return Moments(mean_s, mean_s**2 * math.expm1(square))


@dataclass(frozen=True, slots=True)
class Crowd:
    """Independent times with the same distribution."""

    count: int
    time: Moments  # mean and variance of each


def slowest(crowds: Sequence[Crowd], uniform: Samples) -> Samples:
    """Return the seconds of the slowest of each crowd from `uniform`, shape (crowds, samples)."""
    mu, sigma, _ = _parameters(crowds)
    counts = np.array([[crowd.count] for crowd in crowds], dtype=float)
    share_above = -np.expm1(np.log(np.maximum(uniform, 1e-300)) / counts)
    z, log_above = _normal_table()
    quantile = np.interp(-np.log(np.maximum(share_above, 1e-300)), -log_above, z)
    return np.asarray(np.exp(mu + sigma * np.asarray(quantile)))


def together(crowds: Sequence[Crowd], longest: Samples, normal: Samples) -> Samples:
    """Return the seconds of all of each crowd from its slowest and `normal`, the same shape."""
    mu, sigma, mean = _parameters(crowds)
    others = np.array([[crowd.count - 1] for crowd in crowds], dtype=float)
    safe = np.where(sigma > 0, sigma, 1.0)
    z = (np.log(longest) - mu) / safe
    share = _below(z)
    first = mean * _below(z - sigma) / share
    second = mean**2 * np.exp(sigma**2) * _below(z - 2 * sigma) / share
    spread = np.sqrt(np.maximum(second - first**2, 0.0) * others)
    rest = np.where(sigma > 0, others * first + spread * normal, others * longest)
    return np.asarray(longest + np.clip(rest, 0.0, others * longest))


def _parameters(crowds: Sequence[Crowd]) -> tuple[Samples, Samples, Samples]:
    """Return mu, sigma and mean of each crowd, as columns; a mean of 0 counts as 1e-12 seconds."""
    mean = np.array([[max(crowd.time.mean_s, 1e-12)] for crowd in crowds])
    square = np.log1p(np.array([[crowd.time.variance] for crowd in crowds]) / mean**2)
    return np.log(mean) - square / 2, np.sqrt(square), mean


@cache
def _normal_table() -> tuple[Samples, Samples]:
    """Tabulate z and the logarithm of the share above it: scipy.special imports too slowly."""
    z = np.arange(-FAR, FAR + STEP / 2, STEP)
    return z, np.array([math.log(0.5 * math.erfc(x / math.sqrt(2))) for x in z])


def _below(z: Samples) -> Samples:
    grid, log_above = _normal_table()
    return np.asarray(np.exp(np.interp(-z, grid, log_above)))
