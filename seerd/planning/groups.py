"""From a group and what its cluster offers to what the core is told of a run that jobs share.

The one rule: only pure functions; what was measured of each job is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seerd.core.events import JobFacts
from seerd.planner.model import ClusterFacts, Limits, PlannedJob, PolicyParams, Problem
from seerd.planner.profile import Profile
from seerd.planner.space import Space
from seerd.planning.facts import budget_of, most_gpus, needed, problem_of
from seerd.spec.group import GroupJob, JobGroup
from seerd.spec.spec import SpecLimits


def group_problem(
    group: JobGroup,
    cluster: ClusterFacts,
    profiles: Sequence[Profile],
    notes: tuple[str, ...] = (),
) -> Problem:
    """Make what the jobs' shares are planned with, before the cloud's costs are set aside.

    profiles  how long things take, for each job
    notes     what a person should know of it

    Raises `UsageError` if a limit is missing.
    """
    lead = group.lead
    limits = Limits(
        deadline_s=needed(lead.limits.deadline_s, "--deadline"),
        budget_gpu_s=needed(budget_of(lead.limits, cluster), "--budget"),
        max_gpus=most_gpus(lead.limits.max_gpus, cluster),
        cost_usd=lead.limits.cost_usd,
    )
    jobs = tuple(
        planner_job(job, limits, cluster, profile)
        for job, profile in zip(group.jobs, profiles, strict=True)
    )
    least_s = min(job.problem.params.t_min_s for job in jobs)
    return Problem(
        limits,
        Space(),
        PolicyParams(name="jobs", t_min_s=least_s, seed=lead.policy.seed),
        gpus_per_instance=cluster.gpus_per_instance,
        adjusted=(*notes, *(f"{job.id}: {text}" for job in jobs for text in job.problem.adjusted)),
        jobs=jobs,
        sharing=group.sharing,
    )


def planner_job(job: GroupJob, run: Limits, cluster: ClusterFacts, profile: Profile) -> PlannedJob:
    """Make what the policy is told of a job; `run`: the limits of the run."""
    own = job.spec.limits
    given = SpecLimits(
        min(own.deadline_s or run.deadline_s, run.deadline_s),
        min(own.budget_gpu_s or run.budget_gpu_s, run.budget_gpu_s),
        None,
        own.max_gpus,
    )
    problem = problem_of(replace(job.spec, limits=given), cluster, profile)
    metric = job.spec.metric
    return PlannedJob(job.id, problem, metric.mode, metric.name, job.weight)


def job_facts(job: GroupJob) -> JobFacts:
    """Collect what is decided about a job."""
    metric, observed = job.spec.metric, job.spec.train.observed
    return JobFacts(
        id=job.id,
        owner=job.owner,
        metric=metric.name,
        mode=metric.mode,
        target=metric.target,
        smooth=metric.smooth,
        constraints=metric.constraints,
        patterns={} if observed is None else observed.report,
        saves_to="" if observed is None else observed.checkpoint,
    )
