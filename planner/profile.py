"""How long things take in a training job and in a cloud, as distributions, and by GPUs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

from seerd.planner.gpu_parts import MOST_PARTS


@dataclass(frozen=True, slots=True)
class Scaling:
    """lambda(p): how many times as fast a trial trains on p GPUs as on one (SEER section 3.1,
    RubberBand section 4.1). Between two points it follows the power law through both; beyond the
    last one that of the last two, but never above linear, and never falling. Below the first it is
    linear, the least that a part of a GPU can do: a plan never counts on more before it was seen.
    Raises `ValueError` for points other than these.
    """

    # (GPUs, throughput relative to one GPU), ascending in GPUs; (1, 1.0) is one of them. Below it
    # are parts of a GPU that others share
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if (1, 1.0) not in map(tuple, self.points):
            raise ValueError("a scaling begins with 1:1, or with parts of a GPU")
        for (before, _), (gpus, speed) in pairwise(self.points):
            if gpus <= before:
                raise ValueError(f"{gpus} GPUs come after {before}: their numbers must grow")
            if not (math.isfinite(speed) and speed > 0):
                raise ValueError(
                    f"the throughput on {gpus} GPUs must be a positive number, not {speed:g}"
                )

    def speed(self, gpus: float) -> float:
        """Return the throughput on `gpus` GPUs, relative to one."""
        if gpus < self.points[0][0]:
            return self.points[0][1] * gpus / self.points[0][0]
        for (low, slow), (high, fast) in pairwise(self.points):
            if gpus <= high:
                return float(slow * (gpus / low) ** (math.log(fast / slow) / math.log(high / low)))
        last, speed = self.points[-1]
        if len(self.points) == 1:
            exponent = 1.0
        else:
            low, slow = self.points[-2]
            exponent = min(1.0, max(0.0, math.log(speed / slow) / math.log(last / low)))
        return float(speed * (gpus / last) ** exponent)

    def efficiency(self, gpus: float) -> float:
        """Return the throughput per GPU, relative to one."""
        return self.speed(gpus) / gpus

    def in_slots(self, parts: int) -> Scaling:
        """Return the throughput on 1, 2, ... slots, of which a GPU has `parts`, relative to one."""
        if parts == 1 and self.points[0][0] == 1:
            return self
        measured = {int(gpus * parts) for gpus, _ in self.points if gpus * parts >= 1}
        below = {1 << power for power in range(parts.bit_length())}  # 1, 2, ..., a whole GPU
        beyond = {2 * parts} if self.points[-1][0] == 1 and parts > 1 else set()
        speeds = {some: self.speed(some / parts) for some in sorted(measured | below | beyond)}
        speeds |= {int(p * parts): speed for p, speed in self.points if p * parts in speeds}
        return Scaling(tuple((some, speed / speeds[1]) for some, speed in speeds.items()))


LINEAR = Scaling(((1, 1.0),))


def _table(*speeds: float) -> Scaling:
    return Scaling(tuple((2**i, speed) for i, speed in enumerate((1.0, *speeds))))


BUNDLED: Mapping[str, Scaling] = {
    "linear": LINEAR,
    "resnet18": _table(1.854, 3.426, 5.398),
    "resnet50": _table(1.870, 3.421, 5.598),
    "resnet101": _table(1.892, 3.632, 6.672),
    "resnet152": _table(1.796, 3.448, 6.541),
    "shufflenet": _table(1.920, 3.605, 6.084),
    "resnet50-imagenet": _table(1.77, 2.93, 4.29),
}
"""Throughput of V100 GPUs on one p3.16xlarge (Liaw et al., HyperSched, SoCC '19)."""


def parse_scaling(text: str) -> Scaling:
    """Read `1:1,2:1.87,4:3.42` or a bundled scaling's name. Raises `ValueError` in words."""
    if text.lower() in BUNDLED:
        return BUNDLED[text.lower()]
    try:
        pairs = [part.split(":") for part in text.split(",")]
        points = tuple((_gpus(gpus), float(speed)) for gpus, speed in pairs)
    except (ValueError, ZeroDivisionError) as error:
        allowed = f"write 1:1,2:1.87,4:3.42, with parts 1/2:0.8,1:1, or one of {', '.join(BUNDLED)}"
        raise ValueError(f"{text!r}: {allowed}") from error
    return Scaling(points)


def _gpus(text: str) -> float:
    """Read a number of GPUs, or a part of one: 1/4."""
    part = Fraction(text)
    return int(part) if part.denominator == 1 else float(part)


Z95 = 1.6448536269514722  # the 95th percentile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class Latency:
    """A time that varies: log-normal, or constant if both values are equal."""

    p50_s: float  # median, seconds
    p95_s: float  # 95th percentile, seconds

    @property
    def sigma(self) -> float:
        """Standard deviation of its logarithm."""
        if self.p50_s <= 0 or self.p95_s <= self.p50_s:
            return 0.0
        return math.log(self.p95_s / self.p50_s) / Z95

    def draw(self, rng: random.Random) -> float:
        """Draw one such time in seconds."""
        return self.p50_s * math.exp(self.sigma * rng.gauss(0.0, 1.0)) if self.sigma else self.p50_s

    def quantile(self, z: float) -> float:
        """Return the seconds at `z` standard deviations, for example `Z95`."""
        return self.p50_s * math.exp(self.sigma * z)

    def times(self, factor: float) -> Latency:
        """Return the time `factor` times as long."""
        return Latency(self.p50_s * factor, self.p95_s * factor)


NONE = Latency(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class JobProfile:
    """One training script on one kind of GPU."""

    # training until one report, on one GPU; on p GPUs it takes `scaling.speed(p)` times less
    report: Latency = Latency(60.0, 60.0)
    scaling: Scaling = LINEAR  # throughput by number of GPUs
    # from the order to start until the training loop, restoring a checkpoint included
    start: Latency = NONE
    # from being asked to stop until the checkpoint is in the store and no process is left
    save: Latency = NONE
    ingress_gb: float = 0.0  # GB that every instance fetches before its first trial
    most_parts: int = MOST_PARTS  # how many trials fit into a GPU's memory, as far as was seen


@dataclass(frozen=True, slots=True)
class CloudProfile:
    """How long a cloud takes for what it does with instances."""

    pending: Latency = NONE  # from the request until the instance runs: not billed
    boot: Latency = NONE  # from running until its agent takes orders: billed
    release: Latency = NONE  # from the request to terminate until it is no longer billed
    usd_per_ingress_gb: float = 0.0  # USD for each GB that an instance fetches


@dataclass(frozen=True, slots=True)
class Profile:
    """What is assumed of a job and of a cloud."""

    job: JobProfile = field(default_factory=JobProfile)
    cloud: CloudProfile = field(default_factory=CloudProfile)
    source: str = "assumed"  # where the figures come from, in words
    note: str = ""  # what a user should know of the cloud's figures; empty: nothing

    @property
    def is_measured(self) -> bool:
        """Whether it is of this script, and no assumption."""
        return self.source != "assumed"

    def in_slots(self, parts: int) -> Profile:
        """Return the profile with slots for GPUs, of which a GPU has `parts`."""
        scaling, report = self.job.scaling, self.job.report
        if parts > 1:
            report = report.times(1 / scaling.speed(1 / parts))
        return replace(self, job=replace(self.job, report=report, scaling=scaling.in_slots(parts)))
