"""`seerd simulate` of one job (`simulate.py`), or of jobs that share a run. It is compared with
two other ways: one run after the other on all GPUs, and a part of the GPUs for each, all the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rich.console import Group as Parts
from rich.console import RenderableType
from rich.text import Text

from seerd.backends.base import Machine, Quote
from seerd.commands import simulate
from seerd.commands.common import tell
from seerd.commands.options import SimulateOptions, SpecOptions
from seerd.commands.simulate import IDEAL, Json, curves_of, each, limits_of, mean, simulated_goal
from seerd.errors import LimitsError, UsageError
from seerd.planner.model import Impossible, Limits, Sharing
from seerd.planner.profile import Profile
from seerd.planning.facts import with_t_min
from seerd.planning.machine import this_machine
from seerd.planning.parts import in_slots
from seerd.planning.planned import plan_for
from seerd.planning.profiles import profile_for
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.sim.setting import JobOutcome, JobSetting, Outcome, Setting, problem_of, run
from seerd.spec.experiment import SHARING, Experiment
from seerd.spec.spec import Spec
from seerd.telling.tables import plain_table

AFTER, APART = "one by one", "apart"

Outcomes = Mapping[str, JobOutcome]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the jobs."""

    name: str  # how it is called
    setting: Setting  # the jobs, with the way in which they share a run


def simulate_specs(
    asked: SimulateOptions, specs: Sequence[Path], home: Home, *, json: bool
) -> None:
    """Simulate what these specs ask for; without any, curves alone. Raises `UsageError`, and
    `LimitsError` if the limits fit nothing.
    """
    if asked.set_ and not specs:
        raise UsageError("--set changes keys of a spec: give a SPEC as well")
    group = SpecOptions(specs, set_=asked.set_).load() if specs else None
    if group is None or not group.is_shared:
        simulate.simulate(asked, None if group is None else group.jobs[0], home, json=json)
        return
    if asked.plot is not None:
        raise UsageError("--plot compares policies of one job")
    setting = setting_of(group, asked, home.path, this_machine())
    chosen = [group.sharing] if asked.policies is None else asked.policies.split(",")
    names = SHARING if asked.policies == "all" else chosen
    for name in names:
        if name not in SHARING:
            known = ", ".join(SHARING)
            raise UsageError(f"--policies: jobs share a run by {known}, and not by {name!r}")
    ways = [Way(name, replace(setting, sharing=cast("Sharing", name))) for name in names]
    ways += [Way(AFTER, setting), Way(APART, setting)]
    tasks = [(way, seed) for way in ways for seed in range(asked.seeds)]
    with simulate.progress(len(tasks)) as tick:
        outcomes = iter(each(simulated, tasks, tick))
    rows = [_row(way, [next(outcomes) for _ in range(asked.seeds)]) for way in ways]
    tell(rows, lambda rows: _view(rows, [job.id for job in group.jobs]), json=json)


def setting_of(group: Experiment, asked: SimulateOptions, home: Path, machine: Machine) -> Setting:
    """Return the setting that all ways have in common. Raises `UsageError`."""
    kind = clusters.simulated(group)
    types = kind.machine_types(machine)
    offer = Quote(IDEAL if asked.ideal else kind.unasked_quote(machine).facts)
    profiles = [profile_for(home, job, types) for job in group.jobs]
    counted = in_slots(group, offer, profiles, whole=asked.ideal)
    group, cluster, parts = counted.experiment, counted.cluster, counted.cluster.parts
    limits, *others = limits_of(asked, group.limits, cluster)
    if others:
        raise UsageError("jobs that share a run are simulated with one deadline and one budget")

    def job_setting(job: Spec, in_gpus: Profile, profile: Profile) -> JobSetting:
        own = job.limits
        curves, _ = curves_of(replace(asked, curves=job.curves or asked.curves), job, in_gpus)
        curves = replace(curves, gpus=curves.gpus * parts)
        return JobSetting(
            curves,
            profile,
            simulated_goal(job, curves),
            id=job.id,
            params=with_t_min(job, profile, limits, ideal=asked.ideal, parts=parts),
            limits=Limits(
                min(own.deadline_s or math.inf, limits.deadline_s),
                min(own.budget_gpu_s or math.inf, limits.budget_gpu_s),
                own.max_gpus,
            ),
            weight=job.weight,
        )

    jobs = tuple(map(job_setting, group.jobs, profiles, counted.profiles))
    return Setting(jobs, limits, cluster, sharing=group.sharing)


def simulated(way: Way, seed: int) -> tuple[Outcomes, bool]:
    """Simulate one run with a seed, or one for each job. Return the outcomes, and whether limits
    were kept. Raises `LimitsError`.
    """
    setting = way.setting
    if way.name in SHARING:
        slowest = max((job.profile for job in setting.jobs), key=lambda each: each.job.start.p50_s)
        outcome = _outcome(setting, slowest, seed)
        return outcome.jobs, _in_limits(outcome)
    alone = {job.id: _alone(setting, job, seed, after=way.name == AFTER) for job in setting.jobs}
    reached = {
        job: JobOutcome(outcome.metric, outcome.regret, outcome.gpu_s, outcome.trials)
        for job, outcome in alone.items()
    }
    return reached, all(map(_in_limits, alone.values()))


def _in_limits(outcome: Outcome) -> bool:
    return outcome.within_deadline and outcome.within_budget


def _outcome(setting: Setting, profile: Profile, seed: int) -> Outcome:
    cluster = setting.cluster
    planned = plan_for(problem_of(setting), cluster, profile, ideal=cluster.instant)
    outcome = run(setting, planned.problem, seed)
    if isinstance(outcome, Impossible):
        raise LimitsError(outcome.reason, outcome.min_deadline_s, outcome.min_budget_gpu_s)
    return outcome


def _alone(setting: Setting, job: JobSetting, seed: int, *, after: bool) -> Outcome:
    """Simulate a job without the others: on all GPUs `after` one another, or on its part."""
    whole, cluster, jobs = setting.limits, setting.cluster, len(setting.jobs)
    most = whole.max_gpus or cluster.gpus_per_instance
    gpus = most if after else max(1, most // jobs)
    limits = Limits(
        whole.deadline_s / jobs if after else whole.deadline_s, whole.budget_gpu_s / jobs, gpus
    )
    if not cluster.per_instance and not after:
        cluster = replace(cluster, gpus_per_instance=min(gpus, cluster.gpus_per_instance))
    own = replace(setting.alone(job), limits=limits, cluster=cluster)
    return _outcome(own, job.profile, seed)


def _row(way: Way, runs: Sequence[tuple[Outcomes, bool]]) -> Json:
    regrets = [[outcome.regret for outcome in outcomes.values()] for outcomes, _ in runs]
    sums = [
        math.fsum(r for r in of_run if r is not None) for of_run in regrets if None not in of_run
    ]
    of_jobs = {job.id: [outcomes[job.id] for outcomes, _ in runs] for job in way.setting.jobs}
    return {
        "sharing": way.name,
        "regret_sum": mean(sums),
        "regret_sums": sums,
        "jobs": {
            job: {
                "best": [one.metric for one in outcomes],
                "regret": mean([one.regret for one in outcomes if one.regret is not None]),
                "gpu_min": math.fsum(one.gpu_s for one in outcomes) / 60 / len(outcomes),
                "trials": sum(one.trials for one in outcomes) / len(outcomes),
            }
            for job, outcomes in of_jobs.items()
        },
        "violations": sum(not kept for _, kept in runs),
        "without_model": sum(outcome.metric is None for o, _ in runs for outcome in o.values()),
    }


def _view(rows: Sequence[Json], jobs: Sequence[str]) -> RenderableType:
    def figure(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    table = plain_table("", *(f">{row['sharing']}" for row in rows))
    for job in jobs:
        table.add_row(job, *(figure(row["jobs"][job]["regret"]) for row in rows))
    table.add_row("sum", *(figure(row["regret_sum"]) for row in rows))
    used = (sum(row["jobs"][job]["gpu_min"] for job in jobs) for row in rows)
    table.add_row("GPU-min", *(f"{gpu_min:.0f}" for gpu_min in used))
    if any(row["violations"] for row in rows):
        table.add_row("over a limit", *(str(row["violations"]) for row in rows))
    what = "regret of the jobs' models: how far they are from the best of their curves, on average"
    return Parts(Text(what), Text(), table)
