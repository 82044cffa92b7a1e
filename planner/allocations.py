"""The numbers of GPUs that each stage could be given, and the expected time and cost of a choice of
one per stage, for searches of plans (RubberBand, EuroSys '21, sections 4.2 and 4.3).

No random numbers: a stage's time is the mean over fixed quantiles of its slowest lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seerd.planner.forecast import HOUR_S, Crowd, lane_crowd, moments, slowest
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import Profile
from seerd.planner.stages import WorkStage, instances_of, lanes, share

WIDEST = 64  # most GPUs per trial that are considered: no published scaling goes further

QUANTILES = 32


@dataclass(frozen=True, slots=True)
class Option:
    """One stage on a certain number of GPUs."""

    gpus: int  # GPUs in all
    instances: int  # whole instances that hold them
    work_s: float  # seconds from when all its instances are ready until its slowest trial is saved
    held_gpu_s: float  # GPU-seconds while trials hold GPUs


@dataclass(frozen=True, slots=True)
class Figures:
    """What a choice takes."""

    time_s: float
    cost: float  # cost in the units of `AllocationTerms`


@dataclass(frozen=True)
class AllocationTerms:
    """How cost is counted: in USD, or in GPU-seconds without a price or if `in_gpu_s`."""

    cluster: ClusterFacts  # what machines can be had, and how they are billed
    profile: Profile  # how long things take
    in_gpu_s: bool = False  # count cost in GPU-seconds even if GPU time has a price
    boots: dict[int, float] = field(default_factory=dict, compare=False)  # `boot_of` by count

    @cached_property
    def per_gpu_s(self) -> float:
        """Cost of a GPU-second."""
        priced = self.cluster.usd_per_gpu_h > 0 and not self.in_gpu_s
        return self.cluster.usd_per_gpu_h / HOUR_S if priced else 1.0

    @cached_property
    def per_instance_s(self) -> float:
        """Cost of one instance for one second; 0 if only the GPUs that trials hold are billed."""
        return self.per_gpu_s * self.cluster.gpus_per_instance if self.cluster.per_instance else 0.0

    @cached_property
    def per_fetch(self) -> float:
        """Cost of the data that each new instance fetches."""
        if self.in_gpu_s or self.cluster.usd_per_gpu_h <= 0:
            return 0.0
        return self.profile.job.ingress_gb * self.profile.cloud.usd_per_ingress_gb

    @cached_property
    def pending_s(self) -> float:
        """Seconds from a request until its instances run."""
        return moments(self.profile.cloud.pending).mean_s

    @cached_property
    def release_s(self) -> float:
        """Seconds from the end of a stage until its surplus instances are no longer billed."""
        return 0.0 if self.cluster.instant else moments(self.profile.cloud.release).mean_s

    def boot_s(self, counts: Sequence[int]) -> list[float]:
        """Return, for each count, the expected seconds until the slowest of so many has booted."""
        boot = moments(self.profile.cloud.boot)
        if not counts or boot.mean_s <= 0:
            return [0.0] * len(counts)
        return expected_slowest([Crowd(max(1, count), boot) for count in counts])

    def boot_of(self, count: int) -> float:
        """Return the expected seconds until the slowest of `count` instances has booted, or 0."""
        if count and count not in self.boots:
            self.boots[count] = self.boot_s([count])[0]
        return self.boots[count] if count else 0.0


def expected_slowest(crowds: Sequence[Crowd]) -> list[float]:
    """Return the mean seconds of each crowd's slowest member, over evenly spaced quantiles."""
    uniform = np.broadcast_to((np.arange(QUANTILES) + 0.5) / QUANTILES, (len(crowds), QUANTILES))
    means: list[float] = slowest(crowds, uniform).mean(axis=1).tolist()
    return means


def option_gpus(
    stage: WorkStage, cluster: ClusterFacts, max_gpus: int | None = None
) -> tuple[int, ...]:
    """List the GPUs worth trying for a stage, ascending: multiples of its trials that give each
    more, and the fewest on which all have had one GPU after 1, 2, ... turns.
    """
    size, trials = cluster.gpus_per_instance, stage.trials
    most = cluster.most_gpus(max_gpus)
    turns = {-(-trials // turn) for turn in range(1, trials + 1)}
    widest = min(WIDEST, stage.p_max or WIDEST)
    multiples = {
        trials * each
        for each in range(1, widest + 1)
        if share(trials, trials * each, size, stage.p_max) == each
    }
    return tuple(sorted(gpus for gpus in turns | multiples if most is None or gpus <= most))


def options(stage: WorkStage, gpus: Iterable[int], terms: AllocationTerms) -> tuple[Option, ...]:
    """Return what a stage takes on each of these numbers of GPUs."""
    size = terms.cluster.gpus_per_instance
    stages = [replace(stage, gpus=n) for n in gpus]
    lanes_of = [lanes(sized, size) for sized in stages]
    crowds = [
        lane_crowd(stage.iterations, lane, terms.cluster, terms.profile)
        for some in lanes_of
        for lane in some
    ]
    longest = iter(expected_slowest(crowds) if crowds else [])
    counted = iter(crowds)
    made = []
    for sized, some in zip(stages, lanes_of, strict=True):
        work_s = max(next(longest) for _ in some)
        held = sum(lane.gpus_per_trial * lane.count * next(counted).time.mean_s for lane in some)
        made.append(Option(sized.gpus, instances_of(sized, size), work_s, held))
    return tuple(made)


def expected(choice: Sequence[Option], terms: AllocationTerms) -> Figures:
    """Add up time and cost of a plan that has these options, one per stage."""
    now_s, cost = 0.0, 0.0
    held: list[tuple[int, float]] = []
    count = 0
    for option in choice:
        grown = option.instances - count
        if grown < 0:
            cost += give_back(held, -grown, now_s, terms)
        elif grown > 0:
            begin_s = now_s + terms.pending_s
            held.append((grown, begin_s))
            now_s = begin_s + terms.boot_of(grown)
            cost += grown * terms.per_fetch
        count = option.instances
        now_s += option.work_s
        cost += 0.0 if terms.cluster.per_instance else option.held_gpu_s * terms.per_gpu_s
    cost += give_back(held, count, now_s, terms)
    return Figures(now_s, cost)


def give_back(
    held: list[tuple[int, float]], surplus: int, now_s: float, terms: AllocationTerms
) -> float:
    """Give back the youngest of `held` (instances, running since), in place; return their cost."""
    cost = 0.0
    while surplus:
        count, begin_s = held.pop()
        back = min(count, surplus)
        if back < count:
            held.append((count - back, begin_s))
        surplus -= back
        lasts_s = max(terms.cluster.minimum_s, now_s + terms.release_s - begin_s)
        cost += back * lasts_s * terms.per_instance_s
    return cost


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTH = 3000
SLACK = 1e-9
# seconds instead of an infinite limit: infinity times an exchange rate of 0 is no number
FAR = 1e15


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best choice."""

    choice: tuple[int, ...]  # the option of each stage, by index
    exact: bool  # no other choice is better


@dataclass(frozen=True, slots=True)
class Aim:
    """What is minimised, within which limits."""

    # limits on time and cost; on what is minimised it is that of the best plan known so far, or
    # infinite
    limits: Figures
    minimise_time: bool  # minimise time, and not cost


@dataclass(frozen=True, slots=True)
class _Stage:
    """The options of one stage, one element for each."""

    instances: Ints  # whole instances
    work_s: Floats  # seconds of training
    cost: Floats  # what the training costs, in the units of `AllocationTerms`

    @staticmethod
    def of(options: Sequence[Option], terms: AllocationTerms) -> _Stage:
        instances = np.array([option.instances for option in options], dtype=np.int64)
        work_s = np.array([option.work_s for option in options])
        held = np.array([option.held_gpu_s for option in options])
        cost = instances * work_s * terms.per_instance_s
        if not terms.cluster.per_instance:
            cost = held * terms.per_gpu_s
        return _Stage(instances, work_s, cost)


@dataclass(frozen=True, slots=True)
class _Labels:
    """Beginnings of plans, one row each."""

    time_s: Floats  # seconds from the first request until the end of the latest stage
    # what is sure to be paid so far; not what the billing minimum may add for instances still held
    cost: Floats
    instances: Ints  # how many are held
    rented: Ints  # how many of those were rented at each stage, shape (rows, stages)
    begin_s: Floats  # since when those run, shape (rows, stages)
    path: Ints  # which option each stage has, shape (rows, stages)

    def take(self, rows: Ints) -> _Labels:
        return _Labels(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The least cost + rate * time that the remaining stages can take."""

    rates: Floats  # exchange rates, cost per second
    rest: Floats  # the bounds for the stages from each on, shape (stages + 1, rates)

    @staticmethod
    def of(stages: Sequence[_Stage], aim: Aim) -> _Bounds:
        longest_s = sum(float(stage.work_s.max()) for stage in stages)
        scale = sum(float(stage.cost.min()) for stage in stages) / longest_s
        broad = max(scale, 1e-12) * np.geomspace(1e-3, 1e5, 400)
        if np.isfinite(aim.limits.time_s) and not aim.minimise_time:
            value = _rest(stages, broad)[0] - broad * aim.limits.time_s
            best = broad[int(np.argmax(value))]
            rates = np.concatenate([[0.0, broad[-1] * 1e3], best * np.geomspace(0.2, 5, 15)])
        else:
            rates = np.concatenate([[0.0], broad[::20], [broad[-1] * 1e3]])
        return _Bounds(rates, _rest(stages, rates))

    def hopeful(
        self, stage: int, time_s: Floats, cost: Floats, limits: Figures
    ) -> NDArray[np.bool_]:
        """Return which beginnings up to this stage may still stay within both limits."""
        good = np.ones(time_s.shape, dtype=bool)
        for rate, rest in zip(self.rates, self.rest[stage + 1], strict=True):
            most = limits.cost + rate * min(limits.time_s, FAR)
            good &= cost + rate * time_s + rest <= most + SLACK * (1 + abs(most))
        return good

    def promise(self, stage: int, labels: _Labels, aim: Aim) -> Floats:
        """Return a lower bound of what is minimised for each beginning."""
        other = aim.limits.cost if aim.minimise_time else aim.limits.time_s
        if not np.isfinite(other):
            row = -1 if aim.minimise_time else 0
            return np.asarray(labels.cost + self.rates[row] * labels.time_s)
        rates, rest = self.rates[1:, None], self.rest[stage + 1][1:, None]
        both = labels.cost + rates * labels.time_s + rest
        if aim.minimise_time:
            return np.asarray(((both - aim.limits.cost) / rates).max(axis=0))
        return np.asarray((both - rates * aim.limits.time_s).max(axis=0))


def _rest(stages: Sequence[_Stage], rates: Floats) -> Floats:
    rest = np.zeros((len(stages) + 1, len(rates)))
    for number in range(len(stages) - 1, -1, -1):
        stage = stages[number]
        rest[number] = rest[number + 1] + (stage.cost + rates[:, None] * stage.work_s).min(axis=1)
    return rest


def search(
    tables: Sequence[Sequence[Option]], terms: AllocationTerms, aim: Aim, width: int = WIDTH
) -> Optimum | None:
    """Find the best choice within the limits, or None, stage after stage; RubberBand (section 4.3)
    searches greedily instead.

    The beginning of a plan is dropped only if another one holds as much and is no worse, or if for
    some exchange rate between time and cost it cannot stay within both limits: the endings' best
    time and cost at that rate, without boot times, bound from below what any real ending takes
    (Lagrangian relaxation). Only beyond `width` beginnings are the least promising dropped as well.
    """
    stages = [_Stage.of(table, terms) for table in tables]
    bounds = _Bounds.of(stages, aim)
    none, no_instances = np.zeros((1, len(stages))), np.zeros((1, len(stages)), dtype=np.int64)
    labels = _Labels(
        np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64), no_instances, none, no_instances
    )
    exact = True
    for number, stage in enumerate(stages):
        labels = _undominated(_extended(labels, number, stage, bounds, (terms, aim)), terms)
        if len(labels.time_s) > width:
            exact = False
            kept = np.argsort(bounds.promise(number, labels, aim), kind="stable")[:width]
            labels = labels.take(kept)
    return _best(labels, terms, aim, exact)


def _best(labels: _Labels, terms: AllocationTerms, aim: Aim, exact: bool) -> Optimum | None:
    cost = labels.cost + _returned(labels, labels.instances, terms)[1]
    limits = aim.limits
    good = (labels.time_s <= limits.time_s * (1 + SLACK)) & (cost <= limits.cost * (1 + SLACK))
    if not good.any():
        return None
    least, other = (labels.time_s, cost) if aim.minimise_time else (cost, labels.time_s)
    equal = good & (least <= least[good].min() * (1 + SLACK))
    first = int(np.where(equal, other, np.inf).argmin())
    return Optimum(tuple(int(option) for option in labels.path[first]), exact)


def _extended(
    labels: _Labels, number: int, stage: _Stage, bounds: _Bounds, what: tuple[AllocationTerms, Aim]
) -> _Labels:
    """Extend every beginning with every option of the next stage that may become good enough."""
    terms, aim = what
    grown = np.maximum(0, stage.instances[None, :] - labels.instances[:, None])
    counts, where = np.unique(grown, return_inverse=True)
    boots = np.array(terms.boot_s([int(count) for count in counts]))
    boot_s = np.where(grown > 0, boots[where.reshape(grown.shape)], 0.0)
    wait_s = np.where(grown > 0, terms.pending_s, 0.0) + boot_s
    time_s = labels.time_s[:, None] + wait_s + stage.work_s[None, :]
    kept = np.minimum(labels.instances[:, None], stage.instances[None, :])
    waiting = (kept * wait_s + grown * boot_s) * terms.per_instance_s
    cost = labels.cost[:, None] + waiting + grown * terms.per_fetch + stage.cost[None, :]
    rows, chosen = np.nonzero(bounds.hopeful(number, time_s, cost, aim.limits))
    before = labels.take(rows)
    surplus = np.maximum(0, before.instances - stage.instances[chosen])
    rented, paid = _returned(before, surplus, terms)
    begin_s, path = before.begin_s, before.path
    rented[:, number] = grown[rows, chosen]
    begin_s[:, number] = before.time_s + terms.pending_s
    path[:, number] = chosen
    cost = cost[rows, chosen] + paid
    return _Labels(time_s[rows, chosen], cost, stage.instances[chosen], rented, begin_s, path)


def _returned(labels: _Labels, surplus: Ints, terms: AllocationTerms) -> tuple[Ints, Floats]:
    """Give back `surplus` of each, the youngest first; return what is left, and its cost."""
    rented, left = labels.rented.copy(), surplus.copy()
    paid = np.zeros(len(left))
    for stage in range(rented.shape[1] - 1, -1, -1):
        back = np.minimum(rented[:, stage], left)
        if not back.any():
            continue
        lasted_s = labels.time_s - labels.begin_s[:, stage]
        paid += back * np.maximum(terms.cluster.minimum_s - lasted_s, terms.release_s)
        rented[:, stage] -= back
        left -= back
    return rented, paid * terms.per_instance_s


def _undominated(labels: _Labels, terms: AllocationTerms) -> _Labels:
    """Drop beginnings no better than another, even if that pays every billing minimum."""
    short_s = np.maximum(
        0.0, terms.cluster.minimum_s - terms.release_s - (labels.time_s[:, None] - labels.begin_s)
    )
    sure = labels.cost + (labels.rented * short_s).sum(axis=1) * terms.per_instance_s
    order = np.lexsort((labels.cost, labels.time_s, labels.instances))
    held = labels.instances[order]
    kept = []
    for group in np.split(order, np.flatnonzero(np.diff(held)) + 1):
        best = np.minimum.accumulate(sure[group])
        good = np.ones(len(group), dtype=bool)
        good[1:] = labels.cost[group][1:] < best[:-1]
        kept.append(group[good])
    return labels.take(np.concatenate(kept))
