"""New limits for a run that goes on. What is left is planned as a run of its own that begins now;
if that is too little, the present plan goes on under the new limits. Only pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seerd.planner.budget_margin import Terms, with_margin
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Impossible, Limits, Outline, Problem
from seerd.planner.policies import TO_THE_LAST_RUNG
from seerd.planner.policy import outline_of
from seerd.planner.profile import Latency, Profile
from seerd.planning.planned import closing_of


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """A run that goes on."""

    problem: Problem  # what is planned with
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    now_s: float  # seconds since the run began
    spent_gpu_s: float  # GPU-seconds that are spent, or cannot be kept from being spent
    spent_usd: float  # the same in USD


@dataclass(frozen=True, slots=True)
class Extension:
    """What is planned with from now on."""

    problem: Problem  # the problem with the new limits
    # the rest of the run as the policy would have it; None: the present one stands
    outline: Outline | None


def extension(run: RunSoFar, limits: Limits) -> Extension:
    """Plan what is left under the new limits, none of which is lower than before."""
    problem, raised = run.problem, Extension(replace(run.problem, limits=limits), None)
    if problem.params.name in TO_THE_LAST_RUNG or problem.params.stage_gpus is not None:
        return raised
    rest = Limits(
        limits.deadline_s - run.now_s,
        limits.budget_gpu_s - run.spent_gpu_s,
        limits.max_gpus,
        None if limits.cost_usd is None else limits.cost_usd - run.spent_usd,
    )
    if rest.deadline_s <= 0 or rest.budget_gpu_s <= 0 or (rest.cost_usd or 1.0) <= 0:
        return raised
    fresh = replace(problem, limits=rest, within=None, start_s=0.0, adjusted=())
    ideal = run.cluster.instant or (problem.within is None and run.cluster.per_instance)
    planned = fresh if ideal else _within(fresh, limits, run.cluster)
    if isinstance(planned, Impossible):
        return raised
    left = replace(
        planned,
        limits=limits,
        within=planned.planned,
        start_s=run.now_s + planned.start_s,
        extended=problem.extended + 1,
        adjusted=(*problem.adjusted, "the limits were extended, and what was left planned anew"),
    )
    outline = outline_of(left)
    return raised if isinstance(outline, Impossible) else Extension(left, outline)


def _within(fresh: Problem, limits: Limits, cluster: ClusterFacts) -> Problem | Impossible:
    """Set aside what the cloud takes, as for a new run. Profiles are found by the spec, which a
    running run does not need: boots take what was planned with, the rest is assumed.
    """
    profile: Profile = assumed(rented=cluster.per_instance)
    cloud = replace(profile.cloud, boot=Latency(cluster.boot_s, 1.5 * cluster.boot_s))
    profile = replace(
        profile,
        job=replace(profile.job, scaling=fresh.scaling),
        cloud=cloud if cluster.per_instance and cluster.boot_s else profile.cloud,
    )
    terms = Terms(cluster, profile, closing_of(limits.deadline_s, cluster, profile))
    return with_margin(fresh, terms, outline_of)
