"""From a spec and what its cluster offers to what the core is told: limits, cluster, problem.

The one rule: only pure functions; what a machine or a cloud offers is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from seerd.backends.base import Quote
from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts, Limits, Outline, PolicyParams, Problem
from seerd.planner.profile import Profile
from seerd.spec.spec import Spec, SpecLimits

HOUR_S = 3600.0
FIRST_LOOK_REPORTS = 2
"""A first round has room for so many reports of a trial, so that none is judged by its first."""
LEAST_LOOK_S = 10.0
MOST_LOOK = 1 / 3
"""The share of what the limits allow one trial that a first round gets at most, however slow
reports are.
"""
BEGINS_ANEW = "a trial that is stopped begins anew: `checkpoint` in [train] would spare that"
P_MAX_UNUSED = (
    "policy.p_max = {params.p_max} is not used: without `checkpoint` and `resume` in [train] no "
    "trial moves to more GPUs, and each trains on p_min = {params.p_min}"
)


@dataclass(frozen=True, slots=True)
class Intended:
    """What a run begins with."""

    problem: Problem  # what the policy plans with
    outline: Outline  # the whole run as the policy would have it
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    # what the person wanted minimised
    minimize: Literal["cost", "time"] | None = field(default=None, kw_only=True)
    # whether it was planned as published, whatever is billed
    ideal: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where planning happens."""

    home: Path  # the folder of all runs
    machine_types: tuple[str, ...]  # what the spec runs on, as in profiles, preferred first
    quote: Quote  # what the cluster offers


def problem_of(
    spec: Spec, cluster: ClusterFacts, profile: Profile, notes: tuple[str, ...] = ()
) -> Problem:
    """Make what the policy plans with, before the cloud's costs are set aside.

    `notes`: what a person should know of it. Raises `UsageError` if a limit is missing.
    """
    limits = Limits(
        deadline_s=needed(spec.limits.deadline_s, "--deadline"),
        budget_gpu_s=needed(budget_of(spec.limits, cluster), "--budget"),
        max_gpus=most_gpus(spec.limits.max_gpus, cluster),
        cost_usd=spec.limits.cost_usd,
    )
    params, saves = with_t_min(spec, profile, limits), spec.train.saves
    begins_anew = not saves or spec.loads_nothing()
    is_wider = params.p_max is not None and params.p_max > params.p_min
    return Problem(
        limits,
        spec.space,
        replace(params, p_max=params.p_min) if begins_anew else params,
        profile.job.scaling,
        cluster.gpus_per_instance,
        adjusted=(
            *notes,
            *(BEGINS_ANEW,) * (not saves),
            *(P_MAX_UNUSED.format(params=params),) * (begins_anew and is_wider),
            *target_notes(spec),
            *earlier_notes(spec.policy),
        ),
        begins_anew=begins_anew,
        saves=saves,
    )


def with_t_min(spec: Spec, profile: Profile, *limits: Limits) -> PolicyParams:
    """Return the `[policy]` table with `t_min` as measured, unless it is given or nothing was
    measured: a start and two reports on `p_min` GPUs, if the tightest of these limits allow that.
    """
    params, job = spec.policy, profile.job
    if spec.t_min_s is not None or not profile.is_measured:
        return params
    report_s = job.report.p50_s / job.scaling.speed(params.p_min)
    look_s = job.start.p50_s + FIRST_LOOK_REPORTS * report_s
    longest_s = min(min(one.deadline_s, one.budget_gpu_s / params.p_min) for one in limits)
    return replace(params, t_min_s=max(LEAST_LOOK_S, min(look_s, MOST_LOOK * longest_s)))


def target_notes(spec: Spec) -> tuple[str, ...]:
    """Say when the run ends before its limits, if it has a target; nothing if it has none."""
    metric = spec.metric
    if metric.target is None:
        return ()
    bound = "at least" if metric.mode == "max" else "at most"
    mean = f" (mean of the last {metric.smooth} reports)" if metric.smooth > 1 else ""
    wanted = f"{metric.name}{mean} {bound} {metric.target:.6g}"
    what = "a model is saved with" if spec.train.saves else "a trial reports"
    return (f"the run ends as soon as {what} {wanted}",)


def earlier_notes(params: PolicyParams) -> tuple[str, ...]:
    """Say what earlier runs are known; nothing if there are none."""
    if not params.earlier:
        return ()
    known = f"{len(params.earlier)} trials of earlier runs are known"
    learns = "its model learns from all"
    if params.name != "seer+":
        learns = f"{params.name} learns nothing more"
    return (f"{known}: the best configurations are tried again first, and {learns}",)


def most_gpus(limit: int | None, cluster: ClusterFacts) -> int | None:
    """Return the most GPUs at one moment: the limit, or all that the cluster has; None: any
    number.
    """
    there = cluster.max_instances and cluster.max_instances * cluster.gpus_per_instance
    return min((most for most in (limit, there) if most is not None), default=None)


def budget_of(limits: SpecLimits, cluster: ClusterFacts) -> float | None:
    """Return the budget in GPU-seconds: what the spec says, else what its money pays for; None:
    none.
    """
    if limits.budget_gpu_s is None and limits.cost_usd is not None and cluster.usd_per_gpu_h > 0:
        return limits.cost_usd / cluster.usd_per_gpu_h * HOUR_S
    return limits.budget_gpu_s


def needed(value: float | None, option: str) -> float:
    """Return a limit that is given. Raises `UsageError` if it is missing."""
    if value is None:
        raise UsageError(f"give {option}, or put it into [limits] of the spec")
    return value
