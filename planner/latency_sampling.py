"""Many latencies at once, in numpy: how long the slowest of n takes, and all n together.

The one rule: the work depends on the number of samples, never on n.

A sum of independent latencies is taken to be the log-normal with the same mean and variance. The
slowest of n is drawn from its own distribution, F(x)^n. The others cannot be slower; their sum is
drawn from their mean and variance given that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seerd.planner.normal import above, below
from seerd.planner.profile import Latency

Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a time."""

    mean_s: float
    variance: float  # seconds squared

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.mean_s + other.mean_s, self.variance + other.variance)

    def times(self, count: int, faster: float = 1.0) -> Moments:
        """Compute the moments of `count` such times one after another, each `faster` times as
        fast.
        """
        return Moments(self.mean_s * count / faster, self.variance * count / faster**2)

    def all_alike(self, count: int, faster: float = 1.0) -> Moments:
        """Compute the moments of `count` times that are drawn once: if one is long, all are."""
        return Moments(self.mean_s * count / faster, self.variance * (count / faster) ** 2)


def moments(latency: Latency) -> Moments:
    """Compute mean and variance of the log-normal."""
    square = latency.sigma**2
    mean_s = latency.p50_s * math.exp(square / 2)
    return Moments(mean_s, mean_s**2 * math.expm1(square))


@dataclass(frozen=True, slots=True)
class Crowd:
    """Independent times with the same distribution."""

    count: int
    time: Moments  # mean and variance of each


def slowest(crowds: Sequence[Crowd], uniform: Samples) -> Samples:
    """Compute how many seconds the slowest of each crowd takes: shape (crowds, samples), as
    `uniform`.

    `uniform`: random numbers between 0 and 1.
    """
    mu, sigma, _ = _parameters(crowds)
    counts = np.array([[crowd.count] for crowd in crowds], dtype=float)
    share_above = -np.expm1(np.log(np.maximum(uniform, 1e-300)) / counts)
    return np.asarray(np.exp(mu + sigma * above(share_above)))


def together(crowds: Sequence[Crowd], longest: Samples, normal: Samples) -> Samples:
    """Compute how many seconds the members of each crowd take in all: shape (crowds, samples).

    `longest`: how long the slowest takes; `normal`: standard normal random numbers of the same
    shape.
    """
    mu, sigma, mean = _parameters(crowds)
    others = np.array([[crowd.count - 1] for crowd in crowds], dtype=float)
    safe = np.where(sigma > 0, sigma, 1.0)
    z = (np.log(longest) - mu) / safe
    share = below(z)
    first = mean * below(z - sigma) / share
    second = mean**2 * np.exp(sigma**2) * below(z - 2 * sigma) / share
    spread = np.sqrt(np.maximum(second - first**2, 0.0) * others)
    rest = np.where(sigma > 0, others * first + spread * normal, others * longest)
    return np.asarray(longest + np.clip(rest, 0.0, others * longest))


def _parameters(crowds: Sequence[Crowd]) -> tuple[Samples, Samples, Samples]:
    """Compute mu, sigma and mean of each crowd, as columns of shape (crowds, 1).

    A mean of 0 counts as 1e-12 seconds, so that it has a logarithm.
    """
    mean = np.array([[max(crowd.time.mean_s, 1e-12)] for crowd in crowds])
    square = np.log1p(np.array([[crowd.time.variance] for crowd in crowds]) / mean**2)
    return np.log(mean) - square / 2, np.sqrt(square), mean
