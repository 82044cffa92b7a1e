"""From an experiment and what its cluster offers to limits and a problem, by pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from seerd.core.events import JobFacts
from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts, Limits, PlannedJob, PolicyParams, Problem
from seerd.planner.profile import Profile
from seerd.planner.space import Space
from seerd.spec.experiment import Experiment
from seerd.spec.spec import Spec, SpecLimits

HOUR_S = 3600.0
# a first round has room for so many reports, so that none is judged by its first
FIRST_LOOK_REPORTS = 2
LEAST_LOOK_S = 10.0
# most of a trial's share of the limits that a first round gets, however slow reports are
MOST_LOOK = 1 / 3
BEGINS_ANEW = "a trial that is stopped begins anew: `checkpoint` in [train] would spare that"
P_MAX_UNUSED = (
    "policy.p_max = {most} is not used: without `checkpoint` and `resume` in [train] no "
    "trial moves to more GPUs, and each trains on p_min = {least}"
)


def problem_of(
    spec: Spec,
    cluster: ClusterFacts,
    profile: Profile,
    notes: tuple[str, ...] = (),
    *,
    ideal: bool = False,
) -> Problem:
    """Make what one job's policy plans with, before the cloud's costs are set aside. `notes`: what
    the user should know of it; `ideal`: as published. Raises `UsageError` if a limit is missing.
    """
    limits = limits_of(spec.limits, cluster)
    params = with_t_min(spec, profile, limits, ideal=ideal, parts=cluster.parts)
    saves, sizes = spec.train.saves, (params.p_min, params.p_max or params.p_min)
    least, most = map(cluster.gpus, sizes)
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
            *(P_MAX_UNUSED.format(least=least, most=most),) * (begins_anew and is_wider),
            *target_notes(spec),
            *earlier_notes(spec.policy),
        ),
        begins_anew=begins_anew,
        saves=saves,
        parts=cluster.parts,
    )


def shared_problem(
    experiment: Experiment,
    cluster: ClusterFacts,
    profiles: Sequence[Profile],
    notes: tuple[str, ...] = (),
) -> Problem:
    """Make what the shares of several jobs are planned with, before the cloud's costs are set
    aside. Raises `UsageError` if a limit is missing.

    profiles  how long things take, for each job
    notes     what the user should know of it
    """
    limits = limits_of(experiment.limits, cluster)
    jobs = tuple(
        planned_job(job, limits, cluster, profile)
        for job, profile in zip(experiment.jobs, profiles, strict=True)
    )
    least_s = min(job.problem.params.t_min_s for job in jobs)
    return Problem(
        limits,
        Space(),
        PolicyParams(name="jobs", t_min_s=least_s, seed=experiment.jobs[0].policy.seed),
        gpus_per_instance=cluster.gpus_per_instance,
        adjusted=(*notes, *(f"{job.id}: {text}" for job in jobs for text in job.problem.adjusted)),
        jobs=jobs,
        sharing=experiment.sharing,
        parts=cluster.parts,
    )


def planned_job(job: Spec, run: Limits, cluster: ClusterFacts, profile: Profile) -> PlannedJob:
    """Make what the policy of a shared run knows of a job. `run`: the limits of the run."""
    own = job.limits
    within = SpecLimits(
        min(own.deadline_s or run.deadline_s, run.deadline_s),
        min(own.budget_gpu_s or run.budget_gpu_s, run.budget_gpu_s),
        None,
        own.max_gpus,
    )
    problem = problem_of(replace(job, limits=within), cluster, profile)
    return PlannedJob(job.id, problem, job.goal.mode, job.goal.metric, job.weight)


def with_t_min(
    spec: Spec,
    profile: Profile,
    *limits: Limits,
    name: str | None = None,
    ideal: bool = False,
    parts: int = 1,
) -> PolicyParams:
    """Return the `[policy]` table with the shortest first round, unless `t_min` is given: a start
    and two reports on `p_min` GPUs, if they were measured and the tightest of these limits allow
    that. On machines that are there `seer+` needs no round but these and a save, also as assumed.

    name   the policy, if it is another than the spec's
    ideal  as published: nothing that was only assumed counts
    parts  how many slots a GPU has; sizes and profile are in slots
    """
    params, job = replace(spec.policy, name=name or spec.policy.name), profile.job
    is_least = params.name == "seer+" and not (spec.cluster.rented or ideal)
    if spec.t_min_s is not None or not (profile.is_measured or is_least):
        return params
    report_s = job.report.p50_s / job.scaling.speed(params.p_min)
    look_s = job.start.p50_s + FIRST_LOOK_REPORTS * report_s + job.save.p50_s * is_least
    if profile.is_measured:
        longest_s = min(
            min(each.deadline_s, each.budget_gpu_s * parts / params.p_min) for each in limits
        )
        look_s = min(look_s, MOST_LOOK * longest_s)
    return replace(params, t_min_s=look_s if is_least else max(LEAST_LOOK_S, look_s))


def target_notes(spec: Spec) -> tuple[str, ...]:
    """Say when the run ends before its limits, if it has a target."""
    goal = spec.goal
    if goal.target is None:
        return ()
    bound = "at least" if goal.mode == "max" else "at most"
    mean = f" (mean of the last {goal.smooth} reports)" if goal.smooth > 1 else ""
    wanted = f"{goal.metric}{mean} {bound} {goal.target:.6g}"
    what = "a model is saved with" if spec.train.saves else "a trial reports"
    return (f"the run ends as soon as {what} {wanted}",)


def earlier_notes(params: PolicyParams) -> tuple[str, ...]:
    """Say what earlier runs are known, if there are any."""
    if not params.earlier:
        return ()
    known = f"{len(params.earlier)} trials of earlier runs are known"
    learns = "its model learns from all"
    if params.name != "seer+":
        learns = f"{params.name} learns nothing more"
    return (f"{known}: the best configurations are tried again first, and {learns}",)


def budget_of(limits: SpecLimits, cluster: ClusterFacts) -> float | None:
    """Return the budget in GPU-seconds: as given, else what the money pays for; None: none."""
    if limits.budget_gpu_s is None and limits.cost_usd is not None and cluster.usd_per_gpu_h > 0:
        return limits.cost_usd / cluster.usd_per_gpu_h * HOUR_S
    return limits.budget_gpu_s


def limits_of(limits: SpecLimits, cluster: ClusterFacts) -> Limits:
    """Complete the limits with the cluster's. Raises `UsageError` if one is missing."""
    return Limits(
        deadline_s=_needed(limits.deadline_s, "--deadline"),
        budget_gpu_s=_needed(budget_of(limits, cluster), "--budget"),
        max_gpus=cluster.most_gpus(limits.max_gpus),
        cost_usd=limits.cost_usd,
    )


def _needed(value: float | None, option: str) -> float:
    if value is None:
        raise UsageError(f"give {option}, or put it into [limits] of the spec")
    return value


def job_facts(job: Spec) -> JobFacts:
    """Collect what is decided about a job."""
    observed = job.train.observed
    return JobFacts(
        id=job.id,
        owner=job.owner,
        **msgspec.structs.asdict(job.goal),
        patterns={} if observed is None else observed.report,
        saves_to="" if observed is None else observed.checkpoint,
    )
