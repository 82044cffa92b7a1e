"""From a spec and what the machine offers to what the core is told: limits, cluster, problem.

The one rule: pure functions; what this machine has is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.clouds import DEFAULT_TYPE, INSTANCE_TYPES, RENTED_TERMINATE_S
from planner.model import ClusterFacts, Limits, Problem
from planner.profile import Profile
from seerd.errors import UsageError
from seerd.spec import Spec, SpecLimits

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: CUDA devices, CPU cores, and the name of the first device."""

    cuda_devices: int
    cores: int
    device: str = ""


@dataclass(frozen=True, slots=True)
class Slots:
    """What trials get of this machine: so many CUDA devices, or CPU slots, and CPU threads for each rank."""

    gpus: int
    cuda: bool
    threads: int


def local_slots(wanted: int | None, machine: Machine) -> Slots:
    """CUDA devices if there are any, else CPU slots: as many as the spec says, or as the machine has."""
    cuda = machine.cuda_devices > 0
    there = machine.cuda_devices if cuda else machine.cores
    gpus = there if wanted is None else wanted
    if cuda and gpus > there:
        raise UsageError(f"cluster.gpus = {gpus}, but this machine has {there} CUDA devices")
    return Slots(gpus, cuda, max(1, machine.cores // gpus))


def cluster_of(spec: Spec, slots: Slots | None) -> ClusterFacts:
    """What machines the spec's provider has, and what they cost. `slots`: this machine's, for the local provider."""
    if slots is not None:
        return ClusterFacts(billing="held", gpus_per_instance=slots.gpus, max_instances=1)
    more = spec.cluster.more
    if spec.cluster.provider == "hosts":
        sizes = [int(host.get("gpus", 1)) for host in more.get("hosts", ())] or [1]
        return ClusterFacts(billing="held", gpus_per_instance=min(sizes), max_instances=len(sizes))
    name = (more.get("instance_type") or [DEFAULT_TYPE])[0]
    if name not in INSTANCE_TYPES:
        raise UsageError(f"cluster.instance_type = {name!r} is not known; known are {', '.join(INSTANCE_TYPES)}")
    kind = INSTANCE_TYPES[name]
    price = more.get("price", kind.usd_per_h)
    return ClusterFacts(
        billing="rented",
        gpus_per_instance=kind.gpus,
        usd_per_gpu_h=price / kind.gpus,
        terminate_s=RENTED_TERMINATE_S,
    )


def problem_of(spec: Spec, cluster: ClusterFacts, profile: Profile) -> Problem:
    """What the policy plans with, before the cloud's costs are set aside."""
    most = cluster.max_instances and cluster.max_instances * cluster.gpus_per_instance
    bounds = [n for n in (spec.limits.max_gpus, most) if n is not None]
    limits = Limits(
        deadline_s=_needed(spec.limits.deadline_s, "--deadline"),
        budget_gpu_s=_needed(budget_of(spec.limits, cluster), "--budget"),
        max_gpus=min(bounds) if bounds else None,
        cost_usd=spec.limits.cost_usd,
    )
    return Problem(limits, spec.space, spec.policy, profile.job.scaling, cluster.gpus_per_instance)


def budget_of(limits: SpecLimits, cluster: ClusterFacts) -> float | None:
    """GPU-seconds: what the spec says, else what its money pays for."""
    if limits.budget_gpu_s is None and limits.cost_usd is not None and cluster.usd_per_gpu_h > 0:
        return limits.cost_usd / cluster.usd_per_gpu_h * HOUR_S
    return limits.budget_gpu_s


def _needed(value: float | None, option: str) -> float:
    if value is None:
        raise UsageError(f"give {option}, or put it into [limits] of the spec")
    return value
