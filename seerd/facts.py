"""From a spec and what the machine offers to what the core is told: limits, cluster, problem.

The one rule: pure functions; what this machine has is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.model import ClusterFacts, Impossible, Limits, Outline, Problem
from planner.policy import make_policy
from seerd.core.events import RunFacts
from seerd.errors import LimitsError, UsageError
from seerd.spec import Spec


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: CUDA devices and CPU cores; `device`: what the first CUDA device calls itself."""

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


def problem_of(spec: Spec, most_gpus: int | None) -> Problem:
    """What the policy plans with. `most_gpus`: what the cluster can offer at one moment, None if it is not bounded."""
    bounds = [n for n in (spec.limits.max_gpus, most_gpus) if n is not None]
    limits = Limits(
        deadline_s=_needed(spec.limits.deadline_s, "--deadline"),
        budget_gpu_s=_needed(spec.limits.budget_gpu_s, "--budget"),
        max_gpus=min(bounds) if bounds else None,
        cost_usd=spec.limits.cost_usd,
    )
    return Problem(limits, spec.space, spec.policy)


def _needed(value: float | None, option: str) -> float:
    if value is None:
        raise UsageError(f"give {option}, or put it into [limits] of the spec")
    return value


def outline_of(problem: Problem) -> Outline:
    """The policy's outline. Raises `LimitsError` if the limits fit nothing."""
    outline = make_policy(problem).outline()
    if isinstance(outline, Impossible):
        raise LimitsError(outline.reason, outline.min_deadline_s, outline.min_budget_gpu_s)
    return outline


def facts_of(spec: Spec, run: str, slots: Slots) -> RunFacts:
    """What the journal of a run on this machine begins with."""
    return RunFacts(
        run=run,
        name=spec.name,
        metric=spec.metric.name,
        mode=spec.metric.mode,
        problem=problem_of(spec, slots.gpus),
        cluster=ClusterFacts(billing="held", gpus_per_instance=slots.gpus, max_instances=1),
    )
