"""From the terms of a simulation (limits, cluster, profile, curves) to a world. A setting and a
seed determine the run to the last bit.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from seerd.core.events import Goal, JobFacts, RunFacts
from seerd.core.metrics import incumbent
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
from seerd.planner.profile import NONE, Profile
from seerd.planner.space import Space
from seerd.planner.trial_ids import job_of
from seerd.sim.behaviour import Behaviour
from seerd.sim.curves import Curves
from seerd.sim.world import World

METRIC = "metric"
SAVES_EVERY_S = 10.0
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on purpose, see `Behaviour`."""

    straggling: float = 0.0  # standard deviation of the slowness of attempts
    drop_rate: float = 0.0  # share of attempts that crash, for each minute of training
    lifetime_s: float | None = None  # mean seconds until an instance is interrupted; None: never
    # seconds between the notice and an interruption (two minutes: Amazon EC2 User Guide, Spot
    # Instance interruption notices)
    notice_s: float | None = 120.0
    sudden: float = 0.1  # share of interruptions without a notice


@dataclass(frozen=True, slots=True)
class JobSetting:
    """One of the jobs of a simulated run."""

    curves: Curves  # the recorded curves that its trials replay
    profile: Profile  # how long things take; `profile.job.scaling` is lambda(p)
    goal: Goal  # results under one name of a metric are compared as they are
    id: str = ""  # its name in the run; empty: it has the run for itself
    params: PolicyParams | None = None  # its policy; None: `problem_of` is given it
    limits: Limits | None = None  # limits of its own; None: those of the run
    weight: float = 1.0  # its share beside the others'


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that determines a simulated run but the seed."""

    jobs: tuple[JobSetting, ...]  # one job with an empty id, or the jobs that share the run
    limits: Limits  # what the run may take
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    faults: Faults = Faults()  # what goes wrong on purpose
    sharing: Sharing = "fair"  # how the jobs share the run

    @property
    def job(self) -> JobSetting:
        """The first job, which is the only one unless the run is shared."""
        return self.jobs[0]

    @property
    def is_shared(self) -> bool:
        """Whether its jobs have names, and share the run."""
        return bool(self.job.id)

    def alone(self, job: JobSetting) -> Setting:
        """Return the setting of a run that this job has for itself."""
        return replace(self, jobs=(replace(job, id="", limits=None, weight=1.0),))


def alone(
    curves: Curves,
    limits: Limits,
    cluster: ClusterFacts,
    profile: Profile,
    faults: Faults = Faults(),
    goal: Goal | None = None,
) -> Setting:
    """Make the setting of a run of one job. `goal`: None: to the end, as the curves go."""
    goal = goal or Goal(metric=METRIC, mode=curves.mode)
    return Setting((JobSetting(curves, profile, goal),), limits, cluster, faults)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What one job came to."""

    metric: float | None  # metric of its model at its last report; None: there is no model
    regret: float | None  # its distance from the best metric of its curves; None: there is no model
    gpu_s: float  # GPU-seconds for which its trials held GPUs
    trials: int  # how many configurations were tried


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one simulated run came to."""

    metric: float | None  # of the first job, as its regret is
    regret: float | None
    gpu_s: float  # GPU-seconds billed, by the world's own account and not by the core's ledger
    elapsed_s: float  # seconds from the start until the model was published, or the run ended
    trials: int  # how many configurations were tried
    events: int  # how many events the core has handled
    ending: str  # how the run ended
    within_deadline: bool  # whether it kept the deadline
    within_budget: bool  # whether it kept the budget
    jobs: Mapping[str, JobOutcome] = field(default_factory=dict)  # what each job came to, by its id


def problem_of(setting: Setting, params: PolicyParams | None = None) -> Problem:
    """Make what is planned with, before the cloud's costs are set aside. `params`: the policy of
    the only job; None: each job has its own.
    """
    size, limits = setting.cluster.gpus_per_instance, setting.limits
    if not setting.is_shared:
        return _job_problem(setting, setting.job, params or setting.job.params)
    problems = ((job, _job_problem(setting, job, job.params)) for job in setting.jobs)
    jobs = tuple(
        PlannedJob(job.id, problem, job.goal.mode, job.goal.metric, job.weight)
        for job, problem in problems
    )
    least = min(job.problem.params.t_min_s for job in jobs)
    shared = PolicyParams(name="jobs", t_min_s=least)
    return Problem(
        limits,
        Space(),
        shared,
        gpus_per_instance=size,
        jobs=jobs,
        sharing=setting.sharing,
        parts=setting.cluster.parts,
    )


def _job_problem(setting: Setting, job: JobSetting, params: PolicyParams | None) -> Problem:
    assert params is not None
    most, asked = job.curves.epochs, params.max_reports
    params = replace(params, max_reports=most if asked is None else min(asked, most))
    return Problem(
        job.limits or setting.limits,
        job.curves.space(),
        params,
        job.profile.job.scaling,
        setting.cluster.gpus_per_instance,
        parts=setting.cluster.parts,
    )


def run(setting: Setting, problem: Problem, seed: int) -> Outcome | Impossible:
    """Simulate one run."""
    facts = facts_of(setting, problem, seed)
    if isinstance(facts, Impossible):
        return facts
    world, enabled = World(facts, behaviour_of(setting), seed=seed), gc.isenabled()
    gc.disable()  # the collector would visit all trials again and again for nothing
    try:
        return outcome_of(setting, world, world.run())
    finally:
        if enabled:
            gc.enable()


def facts_of(setting: Setting, problem: Problem, seed: int) -> RunFacts | Impossible:
    """Make the facts of one run, or `Impossible` if the limits fit nothing."""
    problem = seeded(problem, seed)
    outline = outline_of(problem)
    if isinstance(outline, Impossible):
        return outline
    jobs = tuple(JobFacts(id=job.id, **structs.asdict(job.goal)) for job in setting.jobs)
    return RunFacts(
        run=f"simulated-{seed}",
        name="simulated",
        **structs.asdict(setting.job.goal),
        problem=problem,
        cluster=setting.cluster,
        jobs=jobs if setting.is_shared else (),
    )


def seeded(problem: Problem, seed: int) -> Problem:
    """Have every job draw its configurations from this seed."""
    jobs = tuple(replace(job, problem=seeded(job.problem, seed)) for job in problem.jobs)
    return replace(problem, params=replace(problem.params, seed=seed), jobs=jobs)


def behaviour_of(setting: Setting) -> Behaviour:
    """Derive how trials and the cloud behave; nothing takes time on an instant cluster."""
    faults, instant, behaviours = setting.faults, setting.cluster.instant, {}
    for job in setting.jobs:
        times, cloud = job.profile.job, job.profile.cloud
        behaviours[job.id] = Behaviour(
            metric=job.curves.at,
            unit_s=partial(job.curves.unit_s_on, times.scaling),
            most_reports=job.curves.epochs,
            saves_every_s=0.0 if instant else SAVES_EVERY_S,
            pending=NONE if instant else cloud.pending,
            boot=NONE if instant else cloud.boot,
            start=NONE if instant else times.start,
            stop=NONE if instant else times.save,
            release=NONE if instant else cloud.release,
            release_most_s=setting.cluster.terminate_s,
            partial="kept" if instant else "finished",
            straggling=faults.straggling,
            drop_rate=faults.drop_rate / 60,
            lifetime_s=faults.lifetime_s,
            notice_s=faults.notice_s,
            sudden=faults.sudden,
        )
    first = behaviours[setting.job.id]
    return replace(first, jobs=behaviours) if setting.is_shared else first


def outcome_of(setting: Setting, world: World, state: State) -> Outcome:
    """Summarise a run that is over."""
    jobs = {}
    for job in setting.jobs:
        published = state.result.of_jobs.get(job.id)
        best = published.incumbent if published is not None else incumbent(state, job.id)
        metric = regret = None
        if best is not None:
            config = state.trials[best.trial].config
            metric = job.curves.at(config, best.checkpoint.reports)
            regret = None if metric is None else job.curves.regret(metric)
        trials = sum(job_of(trial) == job.id for trial in state.trials)
        gpu_s = state.jobs[job.id].spent_gpu_s(state.now)
        jobs[job.id] = JobOutcome(metric, regret, gpu_s, trials)
    first, cluster, limits = jobs[setting.job.id], setting.cluster, setting.limits
    per_instance = cluster.per_instance
    fleet = world.fleet
    slot_s = fleet.billed_gpu_s(cluster.minimum_s) if per_instance else fleet.held_gpu_s
    billed = slot_s / cluster.parts
    elapsed_s = world.published_at if world.published_at is not None else state.now
    allowed = limits.gpu_s(cluster.usd_per_gpu_h)
    return Outcome(
        metric=first.metric,
        regret=first.regret,
        gpu_s=billed,
        elapsed_s=elapsed_s,
        trials=len(state.trials),
        events=world.events,
        ending=state.end.status or "failed",
        within_deadline=elapsed_s <= limits.deadline_s + TOLERANCE,
        within_budget=billed <= allowed * (1 + 1e-9) + TOLERANCE,
        jobs=jobs,
    )
