"""The plan for an experiment: its cluster, what was measured of its scripts, and its policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from seerd.backends.base import Quote
from seerd.core.events import Objective, RunFacts
from seerd.errors import LimitsError, UsageError
from seerd.planner.forecast import Forecast, lane_time
from seerd.planner.gpu_parts import gpus_number, gpus_text
from seerd.planner.halving import sha_rungs
from seerd.planner.model import ClusterFacts, Impossible, Limits, Problem
from seerd.planner.policy import outline_of
from seerd.planner.profile import Profile
from seerd.planner.rubberband import ElasticPlan, cheapest, fastest
from seerd.planner.stages import WorkStage, lanes, work_stages
from seerd.planning.facts import (
    earlier_notes,
    job_facts,
    problem_of,
    shared_problem,
    target_notes,
    with_t_min,
)
from seerd.planning.parts import InSlots, in_slots
from seerd.planning.planned import Planned, closing_of, others, plan_for, warnings
from seerd.planning.profiles import profile_for
from seerd.shell import places
from seerd.shell.home import Home
from seerd.spec.experiment import Experiment
from seerd.spec.spec import Spec
from seerd.units import format_duration

Minimize = Literal["cost", "time"]
SPARE = 1.1  # a run is ended after this many times the 95th percentile of what is minimised
HALVINGS = 10
UNLIMITED_S = 1e9
NO_PLAN = "There is no plan at all on so few GPUs; allow more with --max-gpus."


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be planned."""

    stages: tuple[WorkStage, ...]  # the stages that need GPUs
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    profile: Profile  # how long things take
    max_gpus: int | None  # most GPUs at one moment; None: any number

    def cheapest(self, deadline_s: float) -> ElasticPlan | None:
        if deadline_s <= 0:
            return None
        return cheapest(self.stages, self.cluster, self.profile, deadline_s, max_gpus=self.max_gpus)

    def fastest(self, **limit: float) -> ElasticPlan | None:
        return fastest(self.stages, self.cluster, self.profile, max_gpus=self.max_gpus, **limit)


def elastic_plan(
    spec: Spec,
    cluster: ClusterFacts,
    profile: Profile,
    minimize: Minimize,
    notes: tuple[str, ...] = (),
) -> Planned:
    """Plan successive halving with the GPUs for each stage that `minimize` asks for (RubberBand).
    The limit is kept at the 95th percentile of the forecast, where the paper keeps it in the mean.
    `notes`: what the user should know of the cluster.

    Raises `UsageError` for what cannot be planned like this, `LimitsError` if no allocation keeps
    the limits.
    """
    if spec.policy.name != "sha":
        raise UsageError(
            f"--minimize plans the stages of --policy sha, and the policy is {spec.policy.name}"
        )
    if spec.policy.p_min > 1:
        raise UsageError("--minimize plans with policy.p_min = 1")
    if not spec.train.saves or spec.loads_nothing():
        raise UsageError(
            "--minimize moves trials to other numbers of GPUs, and without `checkpoint` and "
            "`resume` in [train] each would begin anew: leave --minimize out"
        )
    measured = max(gpus for gpus, _ in profile.job.scaling.points)
    p_max = spec.policy.p_max or (int(measured) if measured > 1 else None)
    stages = work_stages(sha_rungs(spec.policy), p_max)
    most = cluster.most_gpus(spec.limits.max_gpus)
    task = _Task(stages, cluster, profile, most)
    closing_s = closing_of(spec.limits.deadline_s or UNLIMITED_S, cluster, profile)
    search = _cheapest if minimize == "cost" else _fastest
    planned = _planned(spec, task, search(task, spec, closing_s), closing_s)
    adjusted = (*notes, *planned.problem.adjusted)
    return replace(planned, problem=replace(planned.problem, adjusted=adjusted))


def _cheapest(task: _Task, spec: Spec, closing_s: float) -> ElasticPlan:
    deadline_s = (spec.limits.deadline_s or 0.0) - closing_s
    best = _kept(task.cheapest, deadline_s, lambda plan: plan.forecast.time_s.p95)
    if best is None:
        quickest = task.fastest(budget_gpu_s=math.inf)
        least_s = quickest.forecast.time_s.p95 + closing_s if quickest else UNLIMITED_S
        spent = quickest.forecast.gpu_s.p95 if quickest else 0.0
        advice = (
            f"The fastest plan needs --deadline {format_duration(math.ceil(least_s))}."
            if quickest
            else NO_PLAN
        )
        raise LimitsError(
            f"no number of GPUs ends these stages by the deadline{_if_assumed(task)}",
            least_s,
            spent,
            advice,
        )
    limits, forecast = spec.limits, best.forecast
    dear = limits.cost_usd is not None and forecast.usd.p95 > limits.cost_usd
    if dear or (limits.budget_gpu_s is not None and forecast.gpu_s.p95 > limits.budget_gpu_s):
        raise LimitsError(
            "the cheapest plan by the deadline costs more than the budget",
            limits.deadline_s or 0.0,
            forecast.gpu_s.p95,
            f"It takes {_bill(forecast, task.cluster)}: give as much, or a later deadline.",
        )
    return best


def _fastest(task: _Task, spec: Spec, closing_s: float) -> ElasticPlan:
    price, limits = task.cluster.usd_per_gpu_h, spec.limits
    cost_usd = limits.cost_usd if price else None
    budgets = [limits.budget_gpu_s, cost_usd / price * 3600 if cost_usd is not None else None]
    limited = [budget for budget in budgets if budget is not None]
    if not limited:
        raise UsageError("--minimize time needs --cost, or --budget on machines that cost nothing")
    # What instances fetch is paid in money alone.
    has_ingress = task.profile.job.ingress_gb * task.profile.cloud.usd_per_ingress_gb > 0
    if has_ingress and cost_usd is not None and min(limited) == budgets[1]:
        best = _kept(lambda usd: task.fastest(cost_usd=usd), cost_usd, lambda p: p.forecast.usd.p95)
    else:
        best = _kept(
            lambda gpu_s: task.fastest(budget_gpu_s=gpu_s),
            min(limited),
            lambda p: p.forecast.gpu_s.p95,
        )
    if best is None or (cost_usd is not None and best.forecast.usd.p95 > cost_usd):
        least = task.cheapest(UNLIMITED_S)
        raise LimitsError(
            f"no number of GPUs does these stages within the budget{_if_assumed(task)}",
            least.forecast.time_s.p95 if least else UNLIMITED_S,
            least.forecast.gpu_s.p95 if least else 0.0,
            f"The cheapest plan takes {_bill(least.forecast, task.cluster)}." if least else NO_PLAN,
        )
    needed_s = best.forecast.time_s.p95 + closing_s
    if limits.deadline_s is not None and needed_s > limits.deadline_s:
        raise LimitsError(
            "the fastest plan within the budget ends after the deadline",
            needed_s,
            min(limited),
            f"It needs --deadline {format_duration(math.ceil(needed_s))}, or more money.",
        )
    return best


def _bill(forecast: Forecast, cluster: ClusterFacts) -> str:
    """Write what a plan takes, in money too if it costs any, to compare with a limit."""
    money = f", which are ${forecast.usd.p95:.2f}" if cluster.usd_per_gpu_h else ""
    return f"{forecast.gpu_s.p95 / 60:.4g} GPU-min{money}"


def _if_assumed(task: _Task) -> str:
    report_s = task.profile.job.report.p50_s
    note = f", with {report_s:g}s assumed for each report (`seerd profile` measures it)"
    return "" if task.profile.is_measured else note


def _kept(
    plan: Callable[[float], ElasticPlan | None], limit: float, taken: Callable[[ElasticPlan], float]
) -> ElasticPlan | None:
    """Return the plan whose 95th percentile keeps the limit; None if none was found.

    `plan` keeps a limit only in the mean, and returns None where no plan does. So search for the
    highest limit with which the percentile fits too.
    """
    made, best = plan(limit), None
    if made is None or taken(made) <= limit:
        return made
    low, high = 0.0, limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        made = plan(middle)
        if made is not None and taken(made) > limit:
            high = middle
        else:
            low, best = middle, made or best
    return best


def _planned(spec: Spec, task: _Task, plan: ElasticPlan, closing_s: float) -> Planned:
    cluster, profile, forecast = task.cluster, task.profile, plan.forecast
    deadline_s = spec.limits.deadline_s or SPARE * forecast.time_s.p95 + closing_s
    limits = Limits(
        deadline_s,
        spec.limits.budget_gpu_s or SPARE * forecast.gpu_s.p95,
        task.max_gpus,
        spec.limits.cost_usd,
    )
    start_s = (
        profile.cloud.pending.p50_s + profile.cloud.boot.p50_s if cluster.per_instance else 0.0
    )
    stages = [replace(stage, gpus=n) for stage, n in zip(task.stages, plan.gpus, strict=True)]
    stage_s = tuple(  # the mean of the longest lane of each
        max(
            lane.turns * lane_time(stage.iterations, lane.gpus_per_trial, cluster, profile).mean_s
            for lane in lanes(stage, cluster.gpus_per_instance)
        )
        for stage in stages
    )
    params = replace(spec.policy, stage_gpus=plan.gpus, stage_s=stage_s)
    problem = Problem(
        limits,
        spec.space,
        params,
        profile.job.scaling,
        cluster.gpus_per_instance,
        within=replace(limits, deadline_s=deadline_s - start_s),
        start_s=start_s,
        adjusted=(*target_notes(spec), *earlier_notes(spec.policy)),
    )
    outline = outline_of(problem)
    assert not isinstance(outline, Impossible), outline.reason
    planned = Planned(problem, outline, cluster, forecast)
    return replace(planned, warnings=tuple(warnings(planned, profile)))


def plan_of(
    experiment: Experiment,
    home: Home,
    quote: Quote,
    *,
    ideal: bool = False,
    minimize: Minimize | None = None,
) -> Planned:
    """Plan what `seerd run` would start. `quote`: what the cluster offers.

    Raises `UsageError` for what cannot be planned, `LimitsError` if the limits fit nothing.
    """
    counted = _in_slots(experiment, home, quote, whole=ideal or minimize is not None)
    experiment, profiles = counted.experiment, counted.profiles
    slowest = max(profiles, key=lambda profile: profile.job.start.p50_s)
    cluster = _booting(counted.cluster, slowest)
    if quote.places and not any(places.is_noted(home.path, place) for place in quote.places):
        cluster = replace(cluster, scout_s=cluster.boot_s)
    notes = (*quote.notes, *counted.notes)
    if experiment.is_shared:
        problem = shared_problem(experiment, cluster, profiles, notes)
        return plan_for(problem, cluster, slowest)
    job = experiment.jobs[0]
    if minimize is not None:
        if ideal:
            raise UsageError(
                "--minimize plans with what a cloud takes; --ideal is for the policies as published"
            )
        return elastic_plan(job, cluster, slowest, minimize, quote.notes)
    notes = (*notes, *filter(None, [slowest.note]))
    problem = problem_of(job, cluster, slowest, notes, ideal=ideal)
    return plan_for(problem, cluster, slowest, ideal=ideal)


def facts_of(
    experiment: Experiment, home: Home, quote: Quote, *, ideal: bool, minimize: Minimize | None
) -> RunFacts:
    """Decide about a run before it begins; its id follows when it is made. Raises as `plan_of`."""
    planned = plan_of(experiment, home, quote, ideal=ideal, minimize=minimize)
    jobs = [job_facts(job) for job in experiment.jobs]
    objective = {name: getattr(jobs[0], name) for name in Objective.__struct_fields__}
    return RunFacts(
        run="",
        name=experiment.name,
        **objective,
        problem=planned.problem,
        cluster=planned.cluster,
        outline=planned.outline,
        jobs=tuple(jobs) if experiment.is_shared else (),
        minimize=minimize,
        ideal=ideal,
        promises=True,
    )


def others_of(
    experiment: Experiment, home: Home, quote: Quote, *, ideal: bool
) -> dict[str, Planned | Impossible]:
    """Plan for the same limits with each other policy; with none where jobs share the run."""
    if experiment.is_shared:
        return {}
    counted = _in_slots(experiment, home, quote, whole=ideal)
    job, profile = counted.experiment.jobs[0], counted.profiles[0]
    cluster = _booting(counted.cluster, profile)
    problem = problem_of(job, cluster, profile, ideal=ideal)

    def t_min_s(name: str) -> float:
        params = with_t_min(
            job, profile, problem.limits, name=name, ideal=ideal, parts=problem.parts
        )
        return params.t_min_s

    return others(problem, cluster, profile, ideal=ideal, t_min_s=t_min_s)


def _in_slots(experiment: Experiment, home: Home, quote: Quote, *, whole: bool) -> InSlots:
    """Count GPUs in slots. `whole`: they are not shared: as published, or for `--minimize`."""
    profiles = [profile_for(home.path, job, quote.machine_types) for job in experiment.jobs]
    counted = in_slots(experiment, quote, profiles, whole=whole)
    jobs = tuple(_on_any_type(job, counted.cluster) for job in counted.experiment.jobs)
    return replace(counted, experiment=replace(counted.experiment, jobs=jobs))


def _on_any_type(job: Spec, cluster: ClusterFacts) -> Spec:
    """Return a job whose trials can run on whichever types come: without torchrun, none is larger
    than the smallest instance. Raises `UsageError` if its smallest trials cannot.
    """
    if not cluster.other_sizes:
        return job
    policy, least = job.policy, cluster.sizes[-1]
    spans = job.train.launcher == "torchrun"
    if cluster.fitting(policy.p_min) != policy.p_min or (policy.p_min > least and not spans):
        sizes = ", ".join(gpus_text(cluster.gpus(size)) for size in cluster.sizes)
        raise UsageError(
            f"policy.p_min = {gpus_number(cluster.gpus(policy.p_min))}, and the types in "
            f"cluster.instance_type have {sizes}: name only types on which such a trial can run"
        )
    if spans:
        return job
    return replace(job, policy=replace(policy, p_max=min(policy.p_max or least, least)))


def _booting(cluster: ClusterFacts, profile: Profile) -> ClusterFacts:
    """Return the cluster with the seconds that its rented instances take to boot."""
    if not cluster.per_instance:
        return cluster
    return replace(cluster, boot_s=profile.cloud.pending.p50_s + profile.cloud.boot.p50_s)
