"""From a spec and what its cluster offers to what the core is told: limits, cluster, problem.

The one rule: pure functions; what a machine or a cloud has to offer is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts, Limits, Problem
from seerd.planner.profile import Profile
from seerd.spec.spec import Spec, SpecLimits

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: CUDA devices, CPU cores, and the name of the first device."""

    cuda_devices: int
    cores: int
    device: str = ""


@dataclass(frozen=True, slots=True)
class MachineSlots:
    """What trials get of this machine.

    gpus     CUDA devices (`cuda`), or CPU slots
    threads  CPU threads for each rank
    """

    gpus: int
    cuda: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Quote:
    """What a cluster offers, before anything is planned.

    facts      what the core goes by
    threads    CPU threads for each GPU; 0: not known
    cuda       whether its GPUs are CUDA devices, not CPU slots
    usd_per_h  USD, the most that one instance costs for an hour
    owner      who rents it, as every tag says; empty: nobody, or nobody was asked
    notes      what a person should know of it, one sentence each
    """

    facts: ClusterFacts
    threads: int = 0
    cuda: bool = True
    usd_per_h: float = 0.0
    owner: str = ""
    notes: tuple[str, ...] = ()


def problem_of(
    spec: Spec, cluster: ClusterFacts, profile: Profile, notes: tuple[str, ...] = ()
) -> Problem:
    """What the policy plans with, before the cloud's costs are set aside. `notes`: what a person
    should know of it.
    """
    limits = Limits(
        deadline_s=_needed(spec.limits.deadline_s, "--deadline"),
        budget_gpu_s=_needed(budget_of(spec.limits, cluster), "--budget"),
        max_gpus=most_gpus(spec.limits.max_gpus, cluster),
        cost_usd=spec.limits.cost_usd,
    )
    return Problem(
        limits,
        spec.space,
        spec.policy,
        profile.job.scaling,
        cluster.gpus_per_instance,
        adjusted=notes,
    )


def most_gpus(limit: int | None, cluster: ClusterFacts) -> int | None:
    """Count the GPUs that there may be at one moment: the limit, or all that the cluster has."""
    there = cluster.max_instances and cluster.max_instances * cluster.gpus_per_instance
    return min((most for most in (limit, there) if most is not None), default=None)


def budget_of(limits: SpecLimits, cluster: ClusterFacts) -> float | None:
    """GPU-seconds: what the spec says, else what its money pays for."""
    if limits.budget_gpu_s is None and limits.cost_usd is not None and cluster.usd_per_gpu_h > 0:
        return limits.cost_usd / cluster.usd_per_gpu_h * HOUR_S
    return limits.budget_gpu_s


def _needed(value: float | None, option: str) -> float:
    if value is None:
        raise UsageError(f"give {option}, or put it into [limits] of the spec")
    return value
