"""How long things take in a training job and in a cloud, as distributions."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from seerd.planner.scaling import LINEAR, Scaling

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
