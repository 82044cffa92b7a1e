"""`seerd simulate GROUP`: jobs that share a run, beside what each would come to without the others.

The one rule: what jobs come to together is compared with two ways to do without: one run after the
other on all GPUs, and a part of the GPUs for each, all the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from rich.console import Group as Parts
from rich.console import RenderableType
from rich.text import Text

from seerd.backends.base import Machine
from seerd.commands.common import tell
from seerd.commands.options import SimulateOptions
from seerd.commands.simulate import curves_of, limits_of, progress, simulated_goal
from seerd.commands.workers import each
from seerd.errors import LimitsError, UsageError
from seerd.planner.model import ClusterFacts, Impossible, Limits, Sharing
from seerd.planner.profile import Profile
from seerd.planning.facts import with_t_min
from seerd.planning.machine import this_machine
from seerd.planning.planned import plan_for
from seerd.planning.profiles import profile_for
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.sim.setting import JobOutcome, JobSetting, Outcome, Setting, problem_of, run
from seerd.spec.experiment import SHARING, Experiment
from seerd.spec.spec import Spec
from seerd.telling.tables import plain_table

AFTER, APART = "one by one", "apart"

Json = dict[str, Any]
Outcomes = Mapping[str, JobOutcome]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the jobs."""

    name: str  # how it is called
    setting: Setting  # the jobs, with the way in which they share a run


def simulate(asked: SimulateOptions, group: Experiment, home: Home, *, json: bool) -> None:
    """Compare ways to run several jobs, and print the comparison. Raises `UsageError`, and
    `LimitsError` if the limits fit nothing.
    """
    setting = setting_of(group, asked, home.path, this_machine())
    ways = [Way(name, replace(setting, sharing=name)) for name in _sharings(asked, group)]
    ways += [Way(AFTER, setting), Way(APART, setting)]
    tasks = [(way, seed) for way in ways for seed in range(asked.seeds)]
    with progress(len(tasks)) as tick:
        found = each(_run, tasks, tick)
    of_way = [found[n * asked.seeds : (n + 1) * asked.seeds] for n in range(len(ways))]
    rows = [_row(way, outcomes) for way, outcomes in zip(ways, of_way, strict=True)]
    tell(rows, partial(_view, group=group), json=json)


def outcomes_by_seed(way: Way, seeds: int) -> list[tuple[Outcomes, bool]]:
    """Run the jobs in one way with each seed from 0. Return what they came to, and whether the
    limits were kept. Raises `LimitsError`.
    """
    return each(_run, [(way, seed) for seed in range(seeds)], lambda: None)


def setting_of(group: Experiment, asked: SimulateOptions, home: Path, machine: Machine) -> Setting:
    """Make the setting that all ways have in common. Raises `UsageError`."""
    kind = clusters.simulated(group)
    ideal = ClusterFacts("held", 8, instant=True)
    cluster = ideal if asked.ideal else kind.unasked_quote(machine).facts
    limits, *others = limits_of(asked, group.limits, cluster)
    if others:
        raise UsageError("jobs that share a run are simulated with one deadline and one budget")
    types = kind.machine_types(machine)
    jobs = tuple(_job(job, asked, home, types, limits) for job in group.jobs)
    return Setting(jobs, limits, cluster, sharing=group.sharing)


def _job(
    job: Spec, asked: SimulateOptions, home: Path, types: tuple[str, ...], limits: Limits
) -> JobSetting:
    profile, own = profile_for(home, job, types), job.limits
    curves, _ = curves_of(replace(asked, curves=job.curves or asked.curves), job, profile)
    return JobSetting(
        curves,
        profile,
        simulated_goal(job, curves),
        id=job.id,
        params=with_t_min(job, profile, limits),
        limits=Limits(
            min(own.deadline_s or math.inf, limits.deadline_s),
            min(own.budget_gpu_s or math.inf, limits.budget_gpu_s),
            own.max_gpus,
        ),
        weight=job.weight,
    )


def _sharings(asked: SimulateOptions, group: Experiment) -> Sequence[Sharing]:
    if asked.policies is None:
        return [group.sharing]
    names = SHARING if asked.policies == "all" else asked.policies.split(",")
    for name in names:
        if name not in SHARING:
            raise UsageError(
                f"--policies: jobs share a run by {', '.join(SHARING)}, and not by {name!r}"
            )
    return cast("list[Sharing]", list(names))


def _run(task: tuple[Way, int]) -> tuple[Outcomes, bool]:
    """Simulate one run, or each job's own. Return what jobs came to, and whether the limits were
    kept. Raises `LimitsError`.
    """
    way, seed = task
    setting = way.setting
    if way.name in SHARING:
        return _together(setting, seed)
    jobs = len(setting.jobs)
    alone = [_alone(setting, job, seed, after=way.name == AFTER, jobs=jobs) for job in setting.jobs]
    return {name: one for name, one, _ in alone}, all(kept for _, _, kept in alone)


def _together(setting: Setting, seed: int) -> tuple[Outcomes, bool]:
    slowest = max((job.profile for job in setting.jobs), key=lambda each: each.job.start.p50_s)
    outcome = _outcome(setting, slowest, seed)
    return outcome.jobs, outcome.within_deadline and outcome.within_budget


def _outcome(setting: Setting, profile: Profile, seed: int) -> Outcome:
    """Plan and simulate one run. Raises `LimitsError`."""
    cluster = setting.cluster
    planned = plan_for(problem_of(setting), cluster, profile, ideal=cluster.instant)
    outcome = run(setting, planned.problem, seed)
    if isinstance(outcome, Impossible):
        raise LimitsError(outcome.reason, outcome.min_deadline_s, outcome.min_budget_gpu_s)
    return outcome


def _alone(
    setting: Setting, job: JobSetting, seed: int, *, after: bool, jobs: int
) -> tuple[str, JobOutcome, bool]:
    whole, cluster = setting.limits, setting.cluster
    most = whole.max_gpus or cluster.gpus_per_instance
    gpus = most if after else max(1, most // jobs)
    limits = Limits(
        whole.deadline_s / jobs if after else whole.deadline_s, whole.budget_gpu_s / jobs, gpus
    )
    if not cluster.per_instance and not after:
        cluster = replace(cluster, gpus_per_instance=min(gpus, cluster.gpus_per_instance))
    own = replace(setting.alone(job), limits=limits, cluster=cluster)
    outcome = _outcome(own, job.profile, seed)
    came_to = JobOutcome(outcome.metric, outcome.regret, outcome.gpu_s, outcome.trials)
    return job.id, came_to, outcome.within_deadline and outcome.within_budget


def _row(way: Way, found: Sequence[tuple[Outcomes, bool]]) -> Json:
    regrets = [[one.regret for one in outcomes.values()] for outcomes, _ in found]
    sums = [math.fsum(r for r in one if r is not None) for one in regrets if None not in one]
    return {
        "sharing": way.name,
        "regret_sum": math.fsum(sums) / len(sums) if sums else None,
        "regret_sums": sums,
        "jobs": {job.id: _of_job([o[job.id] for o, _ in found]) for job in way.setting.jobs},
        "violations": sum(not kept for _, kept in found),
        "without_model": sum(one.metric is None for o, _ in found for one in o.values()),
    }


def _of_job(found: Sequence[JobOutcome]) -> Json:
    regrets = [one.regret for one in found if one.regret is not None]
    return {
        "best": [one.metric for one in found],
        "regret": math.fsum(regrets) / len(regrets) if regrets else None,
        "gpu_min": math.fsum(one.gpu_s for one in found) / 60 / len(found),
        "trials": sum(one.trials for one in found) / len(found),
    }


def _view(rows: Sequence[Json], group: Experiment) -> RenderableType:
    table = plain_table("", *(f">{row['sharing']}" for row in rows))
    for line in _lines(rows, [job.id for job in group.jobs]):
        table.add_row(*line)
    what = "regret of the jobs' models: how far they are from the best of their curves, on average"
    return Parts(Text(what), Text(), table)


def _lines(rows: Sequence[Json], jobs: Sequence[str]) -> Iterator[list[str]]:
    for job in jobs:
        yield [job, *(_figure(row["jobs"][job]["regret"]) for row in rows)]
    yield ["sum", *(_figure(row["regret_sum"]) for row in rows)]
    used = (sum(row["jobs"][job]["gpu_min"] for job in jobs) for row in rows)
    yield ["GPU-min", *(f"{gpu_min:.0f}" for gpu_min in used)]
    if any(row["violations"] for row in rows):
        yield ["over a limit", *(str(row["violations"]) for row in rows)]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
