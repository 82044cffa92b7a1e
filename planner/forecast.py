"""When a plan ends and what it costs, before it runs: RubberBand's model (Misra et al., EuroSys
'21, sections 4.1 and 4.2), sampled. `allocations` has its expected values, which a search can
afford; `seerd.sim` plays a run event by event.

A stage waits for SCALE (one request) and INIT_INSTANCE (all boot side by side) if it needs more
instances; TRAIN is one trial, SYNC waits for the slowest. A barrier joins all paths, so the
critical path is the sum over stages of the slowest lane. Rented instances are paid whole from
running until released, for `minimum_s` at least. Stages of a fixed length (SEER) end at their wall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from seerd.planner.model import ClusterFacts, Outline
from seerd.planner.profile import Latency, Profile
from seerd.planner.stages import (
    Lanes,
    Rental,
    WorkStage,
    instances_for,
    instances_of,
    lanes,
    rentals,
)

Samples = NDArray[np.float64]
FAR, STEP = 12.0, 0.01  # ends and steps of the table of the normal distribution


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a time."""

    mean_s: float
    variance: float  # seconds squared

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.mean_s + other.mean_s, self.variance + other.variance)

    def times(self, count: int) -> Moments:
        """Return the moments of `count` such times in turn."""
        return Moments(self.mean_s * count, self.variance * count)

    def all_alike(self, count: int, faster: float) -> Moments:
        """Return the moments of `count` times that are drawn once: if one is long, all are."""
        return Moments(self.mean_s * count / faster, self.variance * (count / faster) ** 2)


def moments(latency: Latency) -> Moments:
    """Return mean and variance of the log-normal."""
    square = latency.sigma**2
    mean_s = latency.p50_s * math.exp(square / 2)
    return Moments(mean_s, mean_s**2 * math.expm1(square))


@dataclass(frozen=True, slots=True)
class Crowd:
    """Independent times with the same distribution, as log-normals: the slowest of n is drawn from
    F(x)^n, the sum of the others, which cannot be slower, from their mean and variance given that.
    """

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
    """Tabulate z and the logarithm of the share above it; interpolation errs by less than 1e-4, and
    scipy.special imports too slowly.
    """
    z = np.arange(-FAR, FAR + STEP / 2, STEP)
    return z, np.array([math.log(0.5 * math.erfc(x / math.sqrt(2))) for x in z])


def _below(z: Samples) -> Samples:
    grid, log_above = _normal_table()
    return np.asarray(np.exp(np.interp(-z, grid, log_above)))


HOUR_S = 3600.0
NOTHING = Moments(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure is distributed."""

    p50: float  # median
    p95: float  # 95th percentile
    mean: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a plan will take."""

    time_s: Spread  # seconds from the first request until the last checkpoint is saved
    gpu_s: Spread  # GPU-seconds that are billed
    usd: Spread  # their price, and that of what the instances fetch


@dataclass(frozen=True, slots=True)
class _Draws:
    """Draws from distributions, each as a row of `samples` values."""

    rng: np.random.Generator
    samples: int

    def slowest(self, crowds: Sequence[Crowd]) -> Samples:
        """Draw the seconds of the slowest member of each crowd: shape (crowds, samples)."""
        return slowest(crowds, self.rng.random((len(crowds), self.samples)))


@dataclass(frozen=True, slots=True)
class _Clock:
    """Moments of each stage in seconds since the run began: shape (stages, samples)."""

    begin: Samples  # when the instances that the stage asks for run
    ready: Samples  # when its trials can start
    end: Samples  # when its last trial is saved


def forecast_stages(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    *,
    samples: int = 200,
    seed: int = 0,
) -> Forecast:
    """Forecast stages that end when all their trials have made their reports."""
    draws = _Draws(np.random.default_rng(seed), samples)
    held = [instances_of(stage, cluster.gpus_per_instance) for stage in stages]
    grown = [max(0, now - before) for before, now in zip([0, *held], held, strict=False)]
    members = [lanes(stage, cluster.gpus_per_instance) for stage in stages]
    crowds = [
        lane_crowd(stage.iterations, lane, cluster, profile)
        for stage, some in zip(stages, members, strict=True)
        for lane in some
    ]
    sizes = [[cluster.gpus(lane.gpus_per_trial)] for some in members for lane in some]
    gpus = np.array(sizes, dtype=float)
    longest = draws.slowest(crowds)
    first_rows = np.cumsum([0, *(len(some) for some in members[:-1])])
    work = np.maximum.reduceat(longest, first_rows)
    pending, boot = _arrivals(grown, draws, profile)
    begin, ready, end = np.zeros_like(work), np.zeros_like(work), np.zeros_like(work)
    now = np.zeros(work.shape[1])
    for stage in range(len(grown)):  # one that grows waits for its new instances
        begin[stage] = now + pending[stage]
        ready[stage] = begin[stage] + boot[stage]
        now = end[stage] = ready[stage] + work[stage]
    clock = _Clock(begin, ready, end)
    if not cluster.per_instance:
        normal = draws.rng.standard_normal(longest.shape)
        gpu_s = (gpus * together(crowds, longest, normal)).sum(axis=0)
    else:
        gpu_s = _per_instance_gpu_s(rentals(held), clock, draws, cluster, profile)
    return _forecast(clock.end[-1], gpu_s, sum(grown), cluster, profile)


def lane_time(
    iterations: int, gpus_per_trial: int, cluster: ClusterFacts, profile: Profile
) -> Moments:
    """Return the time of one trial in a stage; a straggler is slow throughout (4.2, 6.1.1)."""
    job = profile.job
    save = NOTHING if cluster.instant else moments(job.save)
    work = moments(job.report).all_alike(iterations, job.scaling.speed(gpus_per_trial))
    return moments(job.start) + work + save


def lane_crowd(iterations: int, lane: Lanes, cluster: ClusterFacts, profile: Profile) -> Crowd:
    """Return the times of lanes in one stage, in which trials take turns."""
    each = lane_time(iterations, lane.gpus_per_trial, cluster, profile)
    return Crowd(lane.count, each.times(lane.turns))


def _arrivals(grown: Sequence[int], draws: _Draws, profile: Profile) -> tuple[Samples, Samples]:
    """Draw SCALE and INIT_INSTANCE of each stage, in seconds; 0 for stages that do not grow."""
    cloud = profile.cloud
    asks = [Crowd(1, moments(cloud.pending) if more else NOTHING) for more in grown]
    boots = [Crowd(max(1, more), moments(cloud.boot) if more else NOTHING) for more in grown]
    both = draws.slowest([*asks, *boots])
    return both[: len(grown)], both[len(grown) :]


def forecast_outline(
    outline: Outline,
    cluster: ClusterFacts,
    profile: Profile,
    *,
    start_s: float = 0.0,
    samples: int = 200,
    seed: int = 0,
) -> Forecast:
    """Forecast stages that end at fixed moments, `start_s` late; instances are asked for at 0."""
    draws = _Draws(np.random.default_rng(seed), samples)
    stages = outline.stages
    held = [instances_for(stage.groups, cluster.gpus_per_instance) for stage in stages]
    grown = [max(0, now - before) for before, now in zip([0, *held], held, strict=False)]
    save = NOTHING if cluster.instant else moments(profile.job.save)
    trials = [sum(group.trials for group in stage.groups) for stage in stages]
    saved = draws.slowest([Crowd(max(1, count), save) for count in trials])
    starts = np.array([[start_s + stage.start_s] for stage in stages])
    walls = np.array([[start_s + stage.end_s] for stage in stages])
    asked = np.vstack([np.zeros((1, 1)), walls[:-1]])
    pending, boot = _arrivals(grown, draws, profile)
    begin = np.minimum(asked + pending, walls)
    clock = _Clock(begin, np.clip(begin + boot, starts, walls), walls + saved)
    if not cluster.per_instance:
        gpus = [cluster.gpus(stage.gpus) for stage in stages]
        gpu_s = _per_trial_gpu_s(gpus, clock, walls, saved)
    else:
        gpu_s = _per_instance_gpu_s(rentals(held), clock, draws, cluster, profile)
    return _forecast(clock.end[-1], gpu_s, sum(grown), cluster, profile)


def closed_early(
    forecast: Forecast, outline: Outline, cluster: ClusterFacts, by_s: float
) -> Forecast:
    """Adjust a forecast to a last stage that is ended so that all is over `by_s` seconds after the
    run began. Where whole instances are billed, it ends early enough by itself.
    """
    early_s = max(0.0, outline.stages[-1].end_s - by_s)
    gpu_s = _less(forecast.gpu_s, early_s * cluster.gpus(outline.stages[-1].gpus))
    return Forecast(_less(forecast.time_s, early_s), gpu_s, forecast.usd)


def _less(spread: Spread, by: float) -> Spread:
    return Spread(*(max(0.0, figure - by) for figure in (spread.p50, spread.p95, spread.mean)))


def _per_trial_gpu_s(
    gpus: Sequence[float], clock: _Clock, walls: Samples, saved: Samples
) -> Samples:
    """Add up GPU-seconds that trials hold. GPUs that the stage before had are held from its wall
    on; those that are freed at a wall are held until their trials are saved.
    """
    later = np.append(walls[1:, 0] - walls[:-1, 0], np.inf)
    total = np.zeros(saved.shape[1])
    for stage, count in enumerate(gpus):
        kept = min(count, gpus[stage - 1]) if stage else 0
        since = walls[stage - 1] if stage else clock.ready[0]
        freed = count - min(count, gpus[stage + 1] if stage + 1 < len(gpus) else 0)
        added = (count - kept) * (walls[stage] - clock.ready[stage])
        total += kept * (walls[stage] - since) + added
        total += freed * np.minimum(saved[stage], later[stage])
    return total


def _per_instance_gpu_s(
    rented: Sequence[Rental], clock: _Clock, draws: _Draws, cluster: ClusterFacts, profile: Profile
) -> Samples:
    """Add up GPU-seconds of whole instances from running until released, at least the minimum."""
    release = NOTHING if cluster.instant else moments(profile.cloud.release)
    late = draws.slowest([Crowd(1, release)] * len(rented))
    total = np.zeros(draws.samples)
    for rental, extra in zip(rented, late, strict=True):
        lasts = clock.end[rental.last] + extra - clock.begin[rental.first]
        total += rental.instances * np.maximum(lasts, cluster.minimum_s)
    return total * cluster.gpus(cluster.gpus_per_instance)


def _forecast(
    time_s: Samples, gpu_s: Samples, fetches: int, cluster: ClusterFacts, profile: Profile
) -> Forecast:
    ingress_usd = fetches * profile.job.ingress_gb * profile.cloud.usd_per_ingress_gb
    billed = _spread(gpu_s)
    rate = cluster.usd_per_gpu_h / HOUR_S
    usd = Spread(*(rate * figure + ingress_usd for figure in (billed.p50, billed.p95, billed.mean)))
    return Forecast(_spread(time_s), billed, usd)


def _spread(values: Samples) -> Spread:
    ordered = np.sort(values)
    p50, p95 = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.5, 0.95))
    return Spread(p50, p95, float(ordered.mean()))
