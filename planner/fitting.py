"""From measured times to a law and distributions: lambda(p) for numbers of GPUs that were never
measured, and latencies.

The one rule: what was measured stays as it was measured, also where it is no smooth curve; the law
only speaks for what lies beyond.

The law is that of Ernest (Venkataraman et al., NSDI '16): on p GPUs a report takes `serial + work /
p + exchange log2 p + contention (p - 1)` seconds, with no term negative, found by non-negative
least squares of the relative deviations. A few points do not tell the terms apart, so the fewest
that explain them are taken, in this order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seerd.planner.profile import Latency
from seerd.planner.scaling import Scaling

FARTHEST = 64
"""Fitted points go as far as this many GPUs."""
CLOSE = 0.01
"""A law that is nowhere farther off explains the points."""
FEWEST_TERMS = 2
PERCENTILE = 0.95


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds per report: what no GPU shares, what all share, what each doubling and what each
    further GPU adds.
    """

    serial_s: float
    work_s: float
    exchange_s: float = 0.0
    contention_s: float = 0.0

    @property
    def terms(self) -> int:
        """How many of them there are."""
        return sum(weight > 0 for weight in self._weights)

    def seconds(self, gpus: int) -> float:
        """Compute the seconds of one report on so many GPUs."""
        return sum(
            weight * feature for weight, feature in zip(self._weights, _features(gpus), strict=True)
        )

    @property
    def _weights(self) -> tuple[float, float, float, float]:
        return self.serial_s, self.work_s, self.exchange_s, self.contention_s


@dataclass(frozen=True, slots=True)
class Fit:
    """What samples of seconds per report come to.

    scaling    the measured points, and fitted ones at the powers of two beyond them
    error      the law's largest relative deviation from a measured point
    one_gpu_s  seconds per report on one GPU; fitted if that was not measured, and then not less
               than on the fewest that were
    measured   numbers of GPUs that were measured, ascending
    """

    scaling: Scaling
    law: Law
    error: float
    one_gpu_s: float
    measured: tuple[int, ...]


def fit(samples: Mapping[int, Sequence[float]]) -> Fit:
    """Fit a law to seconds per report by number of GPUs; medians count.

    Raises `ValueError` if there is none, or one is not positive.
    """
    points = {gpus: statistics.median(samples[gpus]) for gpus in sorted(samples) if samples[gpus]}
    if not points:
        raise ValueError("nothing was measured")
    if not all(
        math.isfinite(seconds) and seconds > 0 and gpus > 0 for gpus, seconds in points.items()
    ):
        raise ValueError(f"seconds per report must be positive numbers, not {points}")
    law = _law(points)
    one_gpu_s = points.get(1) or max(law.seconds(1), points[min(points)])
    return Fit(
        Scaling(_speeds(points, law, one_gpu_s)),
        law,
        deviation(law, points),
        one_gpu_s,
        tuple(points),
    )


def deviation(law: Law, points: Mapping[int, float]) -> float:
    """Compute the largest relative deviation of the law from these seconds per report."""
    return max(abs(law.seconds(gpus) / seconds - 1) for gpus, seconds in points.items())


def latency(samples: Sequence[float]) -> Latency:
    """Compute median and 95th percentile (between neighbours, in proportion).

    Raises `ValueError` if there is no sample.
    """
    if not samples:
        raise ValueError("nothing was measured")
    ordered = sorted(samples)
    place = PERCENTILE * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    p95 = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return Latency(statistics.median(ordered), p95)


def report_latency(samples: Mapping[int, Sequence[float]], one_gpu_s: float) -> Latency:
    """Compute the latency of one report on one GPU: how much reports vary is taken from all numbers
    of GPUs, relative to their medians.
    """
    ratios = [
        value / statistics.median(values)
        for values in samples.values()
        if values
        for value in values
    ]
    spread = latency(ratios)
    return Latency(one_gpu_s, one_gpu_s * max(1.0, spread.p95_s))


def _features(gpus: int) -> tuple[float, float, float, float]:
    return 1.0, 1 / gpus, math.log2(gpus), gpus - 1.0


def _law(points: Mapping[int, float]) -> Law:
    """Fit the law; from one point nothing is known of others: twice the GPUs are taken to be twice
    as fast.
    """
    if len(points) == 1:
        ((gpus, seconds),) = points.items()
        return Law(0.0, seconds * gpus)
    laws = [_least_squares(points, terms) for terms in range(FEWEST_TERMS, len(_features(1)) + 1)]
    errors = [deviation(law, points) for law in laws]
    close = [law for law, error in zip(laws, errors, strict=True) if error <= CLOSE]
    return close[0] if close else laws[errors.index(min(errors))]


def _least_squares(points: Mapping[int, float], terms: int) -> Law:
    """Fit the law of the first `terms` terms with the least squares of relative deviations."""
    from scipy.optimize import nnls  # costs more to import than all other commands together take

    rows = [
        [feature / seconds for feature in _features(gpus)[:terms]]
        for gpus, seconds in points.items()
    ]
    weights, _ = nnls(rows, [1.0] * len(rows))
    return Law(*map(float, weights))


def _speeds(
    points: Mapping[int, float], law: Law, one_gpu_s: float
) -> tuple[tuple[int, float], ...]:
    """Tabulate measured points; behind the last one the law goes on from there, unless there is
    only one and so no law.
    """
    speeds = {1: 1.0} | {gpus: one_gpu_s / seconds for gpus, seconds in points.items()}
    last = max(points)
    gpus = 1
    while gpus < FARTHEST and len(points) > 1:
        gpus *= 2
        if gpus > last:
            speeds[gpus] = speeds[last] * law.seconds(last) / law.seconds(gpus)
    return tuple(sorted(speeds.items()))
