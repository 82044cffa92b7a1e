"""The numbers of GPUs that each stage could be given, and the expected time and cost of a choice of
one per stage, for searches of plans (RubberBand, EuroSys '21, sections 4.2 and 4.3).

No random numbers: a stage's time is the mean over fixed quantiles of its slowest lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from seerd.planner.forecast import HOUR_S, Crowd, lane_crowd, moments, slowest
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import Profile
from seerd.planner.stages import WorkStage, instances_of, lanes, rentals, share

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

    def boot_of(self, count: int) -> float:
        """Return the expected seconds until the slowest of `count` instances has booted."""
        if count not in self.boots:
            boot = moments(self.profile.cloud.boot)
            is_instant = boot.mean_s <= 0
            self.boots[count] = 0.0 if is_instant else expected_slowest([Crowd(count, boot)])[0]
        return self.boots[count]


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
    now_s, cost, count = 0.0, 0.0, 0
    begins_s, ends_s = [], []  # when the instances that each stage asks for run, and when it ends
    for option in choice:
        grown, count = option.instances - count, option.instances
        begins_s.append(now_s + terms.pending_s)
        if grown > 0:
            now_s = begins_s[-1] + terms.boot_of(grown)
            cost += grown * terms.per_fetch
        now_s += option.work_s
        ends_s.append(now_s)
        cost += 0.0 if terms.cluster.per_instance else option.held_gpu_s * terms.per_gpu_s
    if terms.cluster.per_instance:
        for count, first, last in rentals([option.instances for option in choice]):
            lasts_s = ends_s[last] + terms.release_s - begins_s[first]
            cost += count * max(terms.cluster.minimum_s, lasts_s) * terms.per_instance_s
    return Figures(now_s, cost)
