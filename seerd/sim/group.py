"""A simulated run that jobs share: each job replays its own curves.

The one rule: as for one job, a setting and a seed determine the run to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seerd.core.events import JobFacts, RunFacts
from seerd.core.incumbent import incumbent
from seerd.core.state import State
from seerd.planner.model import (
    ClusterFacts,
    Impossible,
    Limits,
    PlannedJob,
    PolicyParams,
    Problem,
    Sharing,
)
from seerd.planner.policy import outline_of
from seerd.planner.profile import Profile
from seerd.planner.space import Space
from seerd.sim.curves import Curves
from seerd.sim.setting import METRIC, Setting, behaviour_of, problem_of
from seerd.sim.world import World


@dataclass(frozen=True, slots=True)
class JobSetting:
    """One of the jobs."""

    id: str
    curves: Curves  # the recorded curves that its trials replay
    params: PolicyParams
    profile: Profile  # how long its trials' starts and saves take, and lambda(p)
    limits: Limits | None = None  # limits of its own; None: those of the run
    weight: float = 1.0  # its share beside the others'
    target: float | None = None  # it is over when a saved model is as good as this; None: it is not
    smooth: int = 1  # its models are compared by the mean of so many last reports
    metric: str = METRIC  # its metric's name: results under the same name are compared as they are


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """Everything that determines a simulated run but the seed."""

    jobs: tuple[JobSetting, ...]  # the jobs that share it
    limits: Limits  # what the run may take
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    sharing: Sharing = "fair"  # how the jobs share it

    def alone(self, job: JobSetting) -> Setting:
        """Return the setting of a run that this job would have for itself."""
        return Setting(
            job.curves, self.limits, self.cluster, job.profile, target=job.target, smooth=job.smooth
        )


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What one job came to."""

    metric: float | None  # metric of its model at its last report; None: there is no model
    regret: float | None  # its distance from the best metric of its curves; None: there is no model
    gpu_s: float  # GPU-seconds for which its trials held GPUs
    trials: int  # how many configurations were tried


def problem_of_group(group: GroupSetting) -> Problem:
    """Make the problem of the run, before the cloud's costs are set aside."""
    jobs = tuple(
        PlannedJob(
            one.id,
            replace(problem_of(group.alone(one), one.params), limits=one.limits or group.limits),
            one.curves.mode,
            one.metric,
            one.weight,
        )
        for one in group.jobs
    )
    least = min(job.problem.params.t_min_s for job in jobs)
    params = PolicyParams(name="jobs", t_min_s=least)
    size = group.cluster.gpus_per_instance
    return Problem(
        group.limits, Space(), params, gpus_per_instance=size, jobs=jobs, sharing=group.sharing
    )


def seeded(problem: Problem, seed: int) -> Problem:
    """Have every job draw its configurations from this seed."""
    jobs = tuple(
        replace(job, problem=replace(job.problem, params=replace(job.problem.params, seed=seed)))
        for job in problem.jobs
    )
    return replace(problem, params=replace(problem.params, seed=seed), jobs=jobs)


def world_of_group(
    group: GroupSetting, problem: Problem, seed: int, *, checked: bool = False
) -> World | Impossible:
    """Make the world of one run, before it begins; `Impossible` if the limits fit nothing."""
    problem = seeded(problem, seed)
    outline = outline_of(problem)
    if isinstance(outline, Impossible):
        return outline
    jobs = tuple(
        JobFacts(
            id=one.id,
            metric=one.metric,
            mode=one.curves.mode,
            target=one.target,
            smooth=one.smooth,
        )
        for one in group.jobs
    )
    facts = RunFacts(
        run=f"simulated-{seed}",
        name="simulated",
        metric=jobs[0].metric,
        mode=jobs[0].mode,
        problem=problem,
        cluster=group.cluster,
        jobs=jobs,
    )
    behaviours = {one.id: behaviour_of(group.alone(one)) for one in group.jobs}
    behaviour = replace(behaviours[jobs[0].id], jobs=behaviours)
    return World(facts, behaviour, seed=seed, checked=checked)


def outcomes_of(group: GroupSetting, state: State) -> dict[str, JobOutcome]:
    """Summarise a run that is over, by job."""
    return {one.id: _outcome(one, state) for one in group.jobs}


def _outcome(job: JobSetting, state: State) -> JobOutcome:
    published = state.result.of_jobs.get(job.id)
    best = published.incumbent if published is not None else incumbent(state, job.id)
    trials = [trial for trial in state.trials if trial.startswith(f"{job.id}.")]
    gpu_s = state.jobs[job.id].spent_gpu_s(state.now)
    if best is None:
        return JobOutcome(None, None, gpu_s, len(trials))
    metric = job.curves.at(state.trials[best.trial].config, best.checkpoint.reports)
    regret = None if metric is None else job.curves.regret(metric)
    return JobOutcome(metric, regret, gpu_s, len(trials))
