"""One run of the search bench, in a process of its own or not.

A regret is 0 for the best final value of the file, and 1 for its median configuration after 5% of
the curve (two reports at least). It is clipped at 2, which is what no model counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench.search.tasks import KNOWS_NO_R, Case, Task
from seerd.commands.simulate import PAPER_P_MAX
from seerd.errors import LimitsError
from seerd.planner.clouds import INSTANCE_TYPES, PAPERS_TYPE, RENTED_TERMINATE_S, assumed
from seerd.planner.memory import Memory
from seerd.planner.model import ClusterFacts, Limits, Plan, Policy, PolicyParams, Problem, View
from seerd.planner.policies import POLICIES
from seerd.planner.profile import BUNDLED
from seerd.planning.planned import plan_for
from seerd.sim.curves import Curves, load_curves
from seerd.sim.setting import Outcome, Setting, alone, problem_of, run

WORST = 2.0
SCALING = BUNDLED["resnet50"]
BESIDE = 1.05
"""On machines that are there the budget is no limit: so many times GPUs times deadline."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a run.

    regret       see above
    used         the share of the GPU time that it might have had
    violated     whether the deadline or the budget was passed
    impossible   whether the limits fit nothing that the policy could begin
    decisions_s  CPU seconds of each of the policy's decisions, where they are timed
    """

    regret: float
    used: float = 0.0
    violated: bool = False
    impossible: bool = False
    decisions_s: tuple[float, ...] = ()


def play(task: Task) -> Came:
    """Simulate one run."""
    problem = planned(task.case)
    if problem is None:
        return Came(WORST, impossible=True)
    setting = setting_of(task.case)
    with decisions_of(task.case.policy, timed=task.timed) as took_s:
        outcome = run(setting, problem, task.seed)
    assert isinstance(outcome, Outcome)
    return replace(came_of(task.case, setting, outcome), decisions_s=tuple(took_s))


def came_of(case: Case, setting: Setting, outcome: Outcome) -> Came:
    """Turn a run's outcome into figures."""
    regret = outcome.regret
    return Came(
        WORST if regret is None else min(WORST, regret / unit_of(setting.job.curves)),
        outcome.gpu_s / (case.cell.gpus * case.cell.deadline_s),
        not (outcome.within_deadline and outcome.within_budget),
    )


@lru_cache(maxsize=2)
def planned(case: Case) -> Problem | None:
    """Plan once for all seeds; None: the limits fit nothing."""
    setting = setting_of(case)
    try:
        return plan_for(problem_for(case, setting), setting.cluster, setting.job.profile).problem
    except LimitsError:
        return None


def problem_for(case: Case, setting: Setting) -> Problem:
    """Make the policy's problem, with R as the policy is told it."""
    p_max = PAPER_P_MAX.get(case.policy) if case.where == "rented" else None
    params = PolicyParams(name=case.policy, p_max=p_max)
    if case.policy == KNOWS_NO_R or case.told is None:
        gpus = setting.cluster.gpus_per_instance
        return Problem(
            setting.limits,
            setting.job.curves.space(),
            params,
            setting.job.profile.job.scaling,
            gpus,
        )
    problem = problem_of(setting, params)
    reports = max(1, round(setting.job.curves.epochs * case.told))
    return replace(problem, params=replace(problem.params, max_reports=reports))


def setting_of(case: Case) -> Setting:
    """Make the world of a case: one file, and one machine or a cloud."""
    rented, cell = case.where == "rented", case.cell
    profile = assumed(rented=rented)
    profile = replace(profile, job=replace(profile.job, scaling=SCALING))
    gpu_s = cell.gpus * cell.deadline_s
    if rented:
        kind = INSTANCE_TYPES[PAPERS_TYPE]
        cluster = ClusterFacts(
            "rented", kind.gpus, usd_per_gpu_h=kind.usd_per_gpu_h, terminate_s=RENTED_TERMINATE_S
        )
        limits = Limits(cell.deadline_s, gpu_s)
    else:
        cluster = ClusterFacts("held", cell.gpus, max_instances=1)
        limits = Limits(cell.deadline_s, BESIDE * gpu_s, cell.gpus)
    return alone(curves_of(case.file, case.full_curve_s), limits, cluster, profile)


@lru_cache(maxsize=2)
def curves_of(file: Path, full_curve_s: float) -> Curves:
    """Read the curves of a file, rescaled."""
    curves = load_curves(file)
    return curves.lasting(full_curve_s, SCALING.speed(curves.gpus))


def unit_of(curves: Curves) -> float:
    """Compute the distance from the best final value that counts as 1."""
    early = curves.metric[:, max(2, round(0.05 * curves.epochs)) - 1]
    return curves.regret(float(np.median(early[np.isfinite(early)])))


@contextmanager
def decisions_of(name: str, *, timed: bool) -> Iterator[list[float]]:
    """Collect the CPU seconds of each decision that a policy makes meanwhile, if they are timed."""
    took_s: list[float] = []
    policy = POLICIES[name]

    def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        began = time.process_time()
        answer = policy.plan(problem, memory, view)
        took_s.append(time.process_time() - began)
        return answer

    if timed:
        POLICIES[name] = Policy(policy.outline, plan)
    try:
        yield took_s
    finally:
        POLICIES[name] = policy
