"""From a spec and what the machine offers to what the core is told: limits, cluster, problem.

The one rule: pure functions; what this machine has is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seerd.errors import UsageError
from seerd.planner.clouds import DEFAULT_TYPE, INSTANCE_TYPES, PRICES_AS_OF, RENTED_TERMINATE_S, InstanceType
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
    """What trials get of this machine: so many CUDA devices, or CPU slots, and CPU threads for each rank."""

    gpus: int
    cuda: bool
    threads: int


def local_slots(wanted: int | None, machine: Machine) -> MachineSlots:
    """CUDA devices if there are any, else CPU slots: as many as the spec says, or as the machine has."""
    cuda = machine.cuda_devices > 0
    there = machine.cuda_devices if cuda else machine.cores
    gpus = there if wanted is None else wanted
    if cuda and gpus > there:
        raise UsageError(f"cluster.gpus = {gpus}, but this machine has {there} CUDA devices")
    return MachineSlots(gpus, cuda, max(1, machine.cores // gpus))


@dataclass(frozen=True, slots=True)
class Offer:
    """What is rented: GPUs of one instance, the most that it costs for an hour, and where both come from, for people."""

    gpus: int
    usd_per_h: float
    source: str


@dataclass(frozen=True, slots=True)
class RentedOffer:
    """What will be rented, and for whom: `owner` is in every tag. `threads`: CPU threads for each GPU."""

    offer: Offer
    owner: str
    threads: int


def types_of(spec: Spec) -> tuple[str, ...]:
    """The instance types of the spec, in order of preference."""
    return tuple(spec.cluster.more.get("instance_type") or (DEFAULT_TYPE,))


def bundled_offer(spec: Spec) -> Offer:
    """What is known without asking anyone. Raises `UsageError` for types that are not, or that do not fit together."""
    price = spec.cluster.more.get("price")
    kinds = [known_type(name) for name in types_of(spec)]
    check_sizes({name: kind.gpus for name, kind in zip(types_of(spec), kinds, strict=True)})
    source = (
        "the spec says so" if price else f"on-demand prices of us-east-1 that seerd brought along, as of {PRICES_AS_OF}"
    )
    return Offer(kinds[0].gpus, price or max(kind.usd_per_h for kind in kinds), source)


def known_type(name: str) -> InstanceType:
    """A type that seerd brings facts along for."""
    if name not in INSTANCE_TYPES:
        raise UsageError(f"cluster.instance_type = {name!r} is not known; known are {', '.join(INSTANCE_TYPES)}")
    return INSTANCE_TYPES[name]


def check_sizes(gpus: Mapping[str, int]) -> None:
    """Raise `UsageError` if instance types have different numbers of GPUs."""
    if len(set(gpus.values())) > 1:
        sizes = ", ".join(f"{name} {count}" for name, count in gpus.items())
        raise UsageError(f"the types in cluster.instance_type must have the same number of GPUs, and have: {sizes}")


def price_note(spec: Spec, offer: Offer) -> str:
    """What the plan says about money."""
    most = "at most" if len(types_of(spec)) > 1 or spec.cluster.more.get("market") == "spot" else "at"
    return f"{' or '.join(types_of(spec))} {most} ${offer.usd_per_h:.4g} an hour ({offer.source})"


def cluster_of(spec: Spec, slots: MachineSlots | None, offer: Offer | None = None) -> ClusterFacts:
    """What machines the spec's provider has, and what they cost. `slots`: this machine's, for the local provider; `offer`: as the cloud said."""
    if slots is not None:
        return ClusterFacts(billing="held", gpus_per_instance=slots.gpus, max_instances=1)
    more = spec.cluster.more
    if spec.cluster.provider == "hosts":
        sizes = [host.gpus for host in more.get("hosts", ())]
        if not sizes:
            raise UsageError(
                'provider = "hosts" needs machines: hosts = [{ address = "10.0.0.5", user = "ubuntu", gpus = 8 }]'
            )
        return ClusterFacts(billing="held", gpus_per_instance=min(sizes), max_instances=len(sizes))
    offer = offer or bundled_offer(spec)
    return ClusterFacts(
        billing="rented",
        gpus_per_instance=offer.gpus,
        usd_per_gpu_h=offer.usd_per_h / offer.gpus,
        terminate_s=RENTED_TERMINATE_S,
    )


def problem_of(spec: Spec, cluster: ClusterFacts, profile: Profile, notes: tuple[str, ...] = ()) -> Problem:
    """What the policy plans with, before the cloud's costs are set aside. `notes`: what a person should know of it."""
    most = cluster.max_instances and cluster.max_instances * cluster.gpus_per_instance
    bounds = [n for n in (spec.limits.max_gpus, most) if n is not None]
    limits = Limits(
        deadline_s=_needed(spec.limits.deadline_s, "--deadline"),
        budget_gpu_s=_needed(budget_of(spec.limits, cluster), "--budget"),
        max_gpus=min(bounds) if bounds else None,
        cost_usd=spec.limits.cost_usd,
    )
    return Problem(limits, spec.space, spec.policy, profile.job.scaling, cluster.gpus_per_instance, adjusted=notes)


def budget_of(limits: SpecLimits, cluster: ClusterFacts) -> float | None:
    """GPU-seconds: what the spec says, else what its money pays for."""
    if limits.budget_gpu_s is None and limits.cost_usd is not None and cluster.usd_per_gpu_h > 0:
        return limits.cost_usd / cluster.usd_per_gpu_h * HOUR_S
    return limits.budget_gpu_s


def _needed(value: float | None, option: str) -> float:
    if value is None:
        raise UsageError(f"give {option}, or put it into [limits] of the spec")
    return value
