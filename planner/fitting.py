"""From measured times to a law, for numbers of GPUs that were never measured, and to latencies.

The law is that of Ernest (Venkataraman et al., NSDI '16): on p GPUs a report takes `serial + work /
p + exchange log2 p + contention (p - 1)` seconds, with no term negative, found by non-negative
least squares of the relative deviations, with the fewest terms, in this order, that explain the
points.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seerd.planner.profile import Latency, Scaling

FARTHEST = 64  # the largest number of GPUs that a point is fitted for
CLOSE = 0.01  # a law explains the points if its relative deviation is at most this everywhere
FEWEST_TERMS = 2
PERCENTILE = 0.95


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds per report on p GPUs, as a sum of four terms."""

    serial_s: float  # what does not get faster with more GPUs
    work_s: float  # what all GPUs share
    exchange_s: float = 0.0  # what each doubling of the GPUs adds
    contention_s: float = 0.0  # what each further GPU adds

    @property
    def terms(self) -> int:
        """How many of the terms are not 0."""
        return sum(weight > 0 for weight in self._weights)

    def seconds(self, gpus: int) -> float:
        """Return the seconds of one report on so many GPUs."""
        return sum(w * feature for w, feature in zip(self._weights, _features(gpus), strict=True))

    @property
    def _weights(self) -> tuple[float, float, float, float]:
        return self.serial_s, self.work_s, self.exchange_s, self.contention_s


@dataclass(frozen=True, slots=True)
class Fit:
    """A law fitted to samples of seconds per report."""

    scaling: Scaling  # the measured points, and fitted ones at the powers of two beyond them
    law: Law
    error: float  # the law's largest relative deviation from a measured point
    # seconds per report on one GPU; fitted if that was not measured, and then not less than on the
    # smallest number of GPUs that was
    one_gpu_s: float
    measured: tuple[int, ...]  # numbers of GPUs that were measured, ascending


def fit(samples: Mapping[int, Sequence[float]]) -> Fit:
    """Fit a law to the median seconds per report. Raises `ValueError` if nothing was measured."""
    points = {gpus: statistics.median(samples[gpus]) for gpus in sorted(samples) if samples[gpus]}
    if not points:
        raise ValueError("nothing was measured")
    if not all(
        math.isfinite(seconds) and seconds > 0 and gpus > 0 for gpus, seconds in points.items()
    ):
        raise ValueError(f"seconds per report must be positive numbers, not {points}")
    law = _law(points)
    one_gpu_s = points.get(1) or max(law.seconds(1), points[min(points)])
    speeds = {1: 1.0} | {gpus: one_gpu_s / seconds for gpus, seconds in points.items()}
    last, gpus = max(points), 1
    while gpus < FARTHEST and len(points) > 1:
        gpus *= 2
        if gpus > last:
            speeds[gpus] = speeds[last] * law.seconds(last) / law.seconds(gpus)
    scaling = Scaling(tuple(sorted(speeds.items())))
    return Fit(scaling, law, deviation(law, points), one_gpu_s, tuple(points))


def deviation(law: Law, points: Mapping[int, float]) -> float:
    """Return the largest relative deviation of the law from these seconds per report."""
    return max(abs(law.seconds(gpus) / seconds - 1) for gpus, seconds in points.items())


def latency(samples: Sequence[float]) -> Latency:
    """Return the median and the 95th percentile. Raises `ValueError` if there is no sample."""
    if not samples:
        raise ValueError("nothing was measured")
    ordered = sorted(samples)
    place = PERCENTILE * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    p95 = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return Latency(statistics.median(ordered), p95)


def report_latency(samples: Mapping[int, Sequence[float]], one_gpu_s: float) -> Latency:
    """Return the latency of one report on one GPU; all samples tell how much reports vary."""
    ratios = [value / statistics.median(group) for group in samples.values() for value in group]
    spread = latency(ratios)
    return Latency(one_gpu_s, one_gpu_s * max(1.0, spread.p95_s))


def _features(gpus: int) -> tuple[float, float, float, float]:
    return 1.0, 1 / gpus, math.log2(gpus), gpus - 1.0


def _law(points: Mapping[int, float]) -> Law:
    """Fit the law. With a single point, throughput is taken to be proportional to the GPUs."""
    if len(points) == 1:
        ((gpus, seconds),) = points.items()
        return Law(0.0, seconds * gpus)
    from scipy.optimize import nnls  # costs more to import than all other commands together take

    laws = []
    for terms in range(FEWEST_TERMS, len(_features(1)) + 1):
        rows = [[feature / s for feature in _features(gpus)[:terms]] for gpus, s in points.items()]
        weights, _ = nnls(rows, [1.0] * len(rows))  # least squares of relative deviations
        laws.append(Law(*map(float, weights)))
    errors = [deviation(law, points) for law in laws]
    close = (law for law, error in zip(laws, errors, strict=True) if error <= CLOSE)
    return next(close, laws[errors.index(min(errors))])
