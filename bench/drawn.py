"""Runs as people have them on EC2, drawn at random: policy, limits, job, and a cloud with its
latencies, refusals and interruptions.

The one rule: a number determines a run to the last bit, and what is planned with may be wrong about
what happens.

Where the ranges come from: boots of 30 to 120 s with tails, billing by the second from 60 s on, and
two minutes' notice of an interruption are EC2's (Amazon EC2 User Guide: instance lifecycle,
billing, Spot Instance interruption notices); the rest is drawn wide enough to hurt.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from bench.testbed.checked_world import Behaviour, with_faults
from seerd.planner.clouds import INSTANCE_TYPES, RENTED_TERMINATE_S, assumed
from seerd.planner.model import ClusterFacts, Limits, PolicyParams
from seerd.planner.profile import BUNDLED, CloudProfile, JobProfile, Latency, Profile
from seerd.planner.space import Config, Parameter, Space
from seerd.sim.curves import Curves, synthetic
from seerd.sim.setting import Faults, Setting, alone, behaviour_of

MOST_GPUS = 24
PLENTY = 1_000_000
TYPES = ("g5.xlarge", "p3.2xlarge", "p3.8xlarge", "g5.12xlarge", "p3.16xlarge", "p4d.24xlarge")
DEADLINE_S = (600.0, 14400.0)
TIGHT = {"barely": (0.1, 0.5), "tight": (0.5, 1.0), "normal": (1.0, 4.0), "generous": (4.0, 16.0)}
"""How many instances the budget pays for from the start to the deadline, by name."""
SPACES = (
    (Parameter("lr", low=1e-4, high=1.0, log=True), Parameter("momentum", low=0.8, high=0.999)),
    (Parameter("lr", low=1e-5, high=1e-1, log=True), Parameter("dropout", low=0.0, high=0.6)),
)

Tightness = Literal["barely", "tight", "normal", "generous"]


@dataclass(frozen=True, slots=True)
class Phases:
    """How many instances the cloud has for the run: `most[i]` from `since_s[i]` on, as many as it
    wants before.
    """

    since_s: Sequence[float]
    most: Sequence[int]

    def __call__(self, now_s: float) -> int:
        """At this moment."""
        place = bisect_right(self.since_s, now_s) - 1
        return self.most[place] if place >= 0 else PLENTY


@dataclass(frozen=True, slots=True)
class Drawn:
    """A run. `believed`: what it is planned with; `setting.job.profile` is what happens."""

    number: int
    tightness: str
    setting: Setting
    params: PolicyParams
    believed: Profile
    behaviour: Behaviour

    def within(self, limits: Limits) -> Drawn:
        """The same with other limits."""
        return replace(self, setting=replace(self.setting, limits=limits))


def draw(number: int, seed: int, policies: Sequence[str]) -> Drawn:
    """The run with this number."""
    rng = random.Random(f"drawn {seed} {number}")
    tightness = rng.choice(list(TIGHT))
    kind = INSTANCE_TYPES[rng.choice(TYPES)]
    deadline_s = _log(rng, *DEADLINE_S)
    truth = _profile(rng, deadline_s)
    believed = truth if rng.random() < 0.5 else replace(assumed(rented=True), job=truth.job)
    cluster = ClusterFacts(
        "rented",
        kind.gpus,
        usd_per_gpu_h=kind.usd_per_gpu_h,
        terminate_s=RENTED_TERMINATE_S,
        boot_s=believed.cloud.pending.p50_s + believed.cloud.boot.p50_s,
    )
    limits = _limits(rng, deadline_s, tightness, cluster)
    setting = alone(
        _curves(rng.randrange(len(SPACES)), rng.randrange(4)), limits, cluster, truth, _faults(rng)
    )
    behaviour = with_faults(
        behaviour_of(setting),
        unit_s=_UnitTime(truth.job),
        capacity=_capacity(rng, deadline_s) if rng.random() < 0.25 else None,
        deaf=rng.random() < 0.02,
    )
    return Drawn(number, tightness, setting, _params(rng, policies, setting), believed, behaviour)


def _log(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _profile(rng: random.Random, deadline_s: float) -> Profile:
    """A unit of work takes from a hundredth to a twentieth of the deadline; saving and starting up
    to a minute.
    """
    report_s = deadline_s / _log(rng, 20, 100)
    save_s, start_s = _log(rng, 1, 30), _log(rng, 5, 60)
    job = JobProfile(
        Latency(report_s, report_s * 1.1),
        BUNDLED[rng.choice(["linear", "resnet50", "resnet18"])],
        start=Latency(start_s, start_s * rng.uniform(1.2, 2)),
        save=Latency(save_s, save_s * rng.uniform(1.2, 2)),
    )
    pending_s, boot_s = rng.uniform(5, 30), rng.uniform(30, 120)
    cloud = CloudProfile(
        pending=Latency(pending_s, pending_s * rng.uniform(1.5, 4)),
        boot=Latency(boot_s, boot_s * rng.uniform(1.2, 2)),
        release=Latency(1.0, rng.uniform(2, 5)),
    )
    return Profile(job, cloud, "drawn")


def _limits(rng: random.Random, deadline_s: float, tightness: str, cluster: ClusterFacts) -> Limits:
    """GPU time, money or both; the tighter one is what was drawn."""
    size = cluster.gpus_per_instance
    wide = min(_log(rng, *TIGHT[tightness]) * size, MOST_GPUS)
    budget_gpu_s = wide * deadline_s
    max_gpus = (
        None
        if rng.random() < 0.5
        else max(size, min(MOST_GPUS, round(wide * rng.uniform(0.7, 3)) // size * size))
    )
    paid_usd = budget_gpu_s / 3600 * cluster.usd_per_gpu_h
    match rng.choice(["time", "money", "both"]):
        case "time":
            return Limits(deadline_s, budget_gpu_s, max_gpus)
        case "money":
            return Limits(deadline_s, budget_gpu_s, max_gpus, paid_usd)
        case _:
            more = rng.uniform(1, 1.5)
            if rng.random() < 0.5:
                return Limits(deadline_s, budget_gpu_s * more, max_gpus, paid_usd)
            return Limits(deadline_s, budget_gpu_s, max_gpus, paid_usd * more)


def _params(rng: random.Random, policies: Sequence[str], setting: Setting) -> PolicyParams:
    """The shortest round is long enough for a trial to start and to make a report or two, as people
    choose it.
    """
    job = setting.job.profile.job
    return PolicyParams(
        name=rng.choice(policies),
        p_max=rng.choice([None, setting.cluster.gpus_per_instance, 4]),
        t_min_s=job.start.p95_s + rng.choice([1, 2]) * job.report.p95_s,
        seed=rng.randrange(2**31),
        max_reports=rng.choice([None, 27, 81]),
    )


def _faults(rng: random.Random) -> Faults:
    spot = rng.random() < 0.4
    return Faults(
        straggling=rng.choice([0.0, 0.0, 0.2, 1.0]),
        drop_rate=rng.choice([0.0, 0.0, 0.001, 0.01]),
        lifetime_s=_log(rng, 1200, 36000) if spot else None,
        notice_s=120.0 if rng.random() < 0.9 else None,
        sudden=0.1,
    )


def _capacity(rng: random.Random, deadline_s: float) -> Phases:
    """A few times of one to thirty minutes in which there is little or nothing to be had; in half
    of all runs one is when it begins.
    """
    begins = sorted(rng.uniform(0, deadline_s) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.5:
        begins[0] = 0.0
    ends = [since_s + _log(rng, 60, 1800) for since_s in begins]
    phases = [(since_s, rng.choice([0, 1, 2])) for since_s in begins] + [
        (end_s, PLENTY) for end_s in ends
    ]
    return Phases(*zip(*sorted(phases), strict=True))


@cache
def _curves(space: int, seed: int) -> Curves:
    return synthetic(Space(SPACES[space]), "max", 1.0, seed)


@dataclass(frozen=True, slots=True)
class _UnitTime:
    """Every unit of work takes as long as the job's report does."""

    job: JobProfile

    def __call__(self, config: Config, report: int, gpus: int) -> float:  # noqa: ARG002
        return self.job.report.p50_s / self.job.scaling.speed(gpus)
