"""What is assumed of a cloud before anything was measured there, with source and date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seerd.planner.profile import CloudProfile, JobProfile, Latency, Profile


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One type of instance."""

    gpus: int  # GPUs of one instance
    usd_per_h: float  # USD for one instance for an hour

    @property
    def usd_per_gpu_h(self) -> float:
        """USD for one of its GPUs for an hour."""
        return self.usd_per_h / self.gpus


INSTANCE_TYPES: Mapping[str, InstanceType] = {
    "g4dn.xlarge": InstanceType(1, 0.526),
    "g4dn.12xlarge": InstanceType(4, 3.912),
    "g5.xlarge": InstanceType(1, 1.006),
    "g5.12xlarge": InstanceType(4, 5.672),
    "g5.48xlarge": InstanceType(8, 16.288),
    "g6.xlarge": InstanceType(1, 0.8048),
    "g6.12xlarge": InstanceType(4, 4.6016),
    "g6.48xlarge": InstanceType(8, 13.3504),
    "g6e.xlarge": InstanceType(1, 1.861),
    "g6e.12xlarge": InstanceType(4, 10.49264),
    "g6e.48xlarge": InstanceType(8, 30.13118),
    "p3.2xlarge": InstanceType(1, 3.06),
    "p3.8xlarge": InstanceType(4, 12.24),
    "p3.16xlarge": InstanceType(8, 24.48),
    "p4d.24xlarge": InstanceType(8, 21.957642),
    "p4de.24xlarge": InstanceType(8, 27.44705),
    "p5.48xlarge": InstanceType(8, 55.04),
}
"""On-demand Linux prices in us-east-1, as AWS's price list has them
(pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2, aws.amazon.com/ec2/pricing/on-demand).

A `price` in the spec replaces them.
"""

PRICES_AS_OF = "2026-07"

UNPRICED_GPUS: Mapping[str, int] = {
    **{f"g4dn.{size}xlarge": 1 for size in (2, 4, 8, 16)},
    **{f"{family}.{size}xlarge": 1 for family in ("g5", "g6", "g6e") for size in (2, 4, 8, 16)},
    **{f"{family}.24xlarge": 4 for family in ("g5", "g6", "g6e")},
    **{f"{family}.{size}xlarge": 1 for family in ("g7", "g7e") for size in (2, 4, 8)},
    **{f"{family}.12xlarge": 2 for family in ("g7", "g7e")},
    **{f"{family}.24xlarge": 4 for family in ("g7", "g7e")},
    **{f"{family}.48xlarge": 8 for family in ("g7", "g7e")},
    "gr6.4xlarge": 1,
    "gr6.8xlarge": 1,
    "g4dn.metal": 8,
    "p5.4xlarge": 1,
    "p5e.48xlarge": 8,
    "p5en.48xlarge": 8,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 8,
}
"""GPUs of further types (aws.amazon.com/ec2/instance-types), for which the spec says a price."""

PAPERS_TYPE = "p3.8xlarge"
"""The instance of RubberBand's evaluation (EuroSys '21, section 6), simulated where the spec names
none. It is not advised: today's images have no driver for its GPUs.
"""

EC2 = CloudProfile(
    pending=Latency(12.0, 25.0),
    boot=Latency(50.0, 90.0),
    release=Latency(1.0, 3.0),
)
"""Assumed: from the request until `running` (not billed), from there until an agent takes orders,
and from the request until a termination is accepted.
"""

# assumed of a training script, until `seerd profile` has measured it
JOB = JobProfile(report=Latency(30.0, 33.0), start=Latency(8.0, 12.0), save=Latency(2.0, 4.0))

# assumed of a script that is small enough for this machine
LOCAL_JOB = JobProfile(report=Latency(5.0, 6.0), start=Latency(4.0, 8.0), save=Latency(0.1, 0.2))

# on this machine an instance is only an agent's process
LOCAL = CloudProfile(boot=Latency(0.5, 1.0))

BOOT_LIMIT_S = 420.0  # seconds from `running` until an instance's agent must answer, for most types
SLOW_BOOT_LIMIT_S: Mapping[str, float] = {"p4": 900.0, "p5": 900.0, "p6": 900.0}
"""Where eight GPUs and their NVSwitches start first, by how the type's name begins
(github.com/awslabs/amazon-eks-ami/issues/1099, github.com/skypilot-org/skypilot/issues/5630).
"""
# where the machine's own firmware comes first (github.com/canonical/pycloudlib/issues/192)
METAL_BOOT_LIMIT_S = 1500.0
# least seconds beyond the limit for which an instance without an agent goes on
ORPHAN_SPARE_S = 180.0


def boot_limit_s(types: Sequence[str]) -> float:
    """Return how many seconds after `running` an agent must answer on the slowest of the types."""
    if any(".metal" in name for name in types):
        return METAL_BOOT_LIMIT_S
    return max(
        (SLOW_BOOT_LIMIT_S.get(name[:2], BOOT_LIMIT_S) for name in types), default=BOOT_LIMIT_S
    )


# most seconds until a termination is accepted, which the budget guard sets aside
RENTED_TERMINATE_S = 6.0


def assumed(*, rented: bool) -> Profile:
    """Return the profile to plan with until something has been measured."""
    return Profile(JOB, EC2, "assumed") if rented else Profile(LOCAL_JOB, LOCAL, "assumed")
