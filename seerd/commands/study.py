"""Many simulated runs: every policy under every pair of limits, with every seed, on all cores.

The one rule: a run depends only on its setting, problem and seed, so the answer is the same on any
number of cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from typing import Any

from seerd.commands.workers import given, workers
from seerd.errors import LimitsError, UsageError
from seerd.planner.model import Impossible, Limits, PolicyParams, Problem
from seerd.planning.planned import plan_for
from seerd.sim.setting import Outcome, Setting, problem_of, run

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared."""

    setting: Setting  # the setting of all runs; each of `limits` replaces its limits
    policies: tuple[PolicyParams, ...]  # the policies' parameters
    limits: tuple[Limits, ...]  # the limits under which each policy runs
    seeds: int  # how many runs of each policy
    ideal: bool = False  # nothing is set aside for the cloud


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy under one pair of limits."""

    params: PolicyParams  # the policy's parameters
    limits: Limits
    problem: Problem | Impossible  # its problem, or why it has none


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one cell."""

    cell: Cell
    outcomes: tuple[Outcome, ...]  # one outcome per seed; empty if the limits fit nothing


def rows(study: Study, tick: Callable[[], None]) -> list[Row]:
    """Run the whole study; rows are in the order of the limits, then of the policies.

    tick  called after every run
    """
    cells = [_cell(study, limits, params) for limits in study.limits for params in study.policies]
    tasks = [
        (cell, seed)
        for cell in cells
        if isinstance(cell.problem, Problem)
        for seed in range(study.seeds)
    ]
    outcomes: dict[tuple[int, int], Outcome] = {}
    numbers = {id(cell): number for number, cell in enumerate(cells)}
    with workers(len(tasks), study.setting) as submit:
        waiting = {submit(_run, cell, seed): (numbers[id(cell)], seed) for cell, seed in tasks}
        for done in as_completed(waiting):
            outcomes[waiting[done]] = done.result()
            tick()
    return [
        Row(cell, tuple(outcomes[n, seed] for seed in range(study.seeds) if (n, seed) in outcomes))
        for n, cell in enumerate(cells)
    ]


def runs(study: Study) -> int:
    """Count the runs that the study takes at most."""
    return len(study.limits) * len(study.policies) * study.seeds


def _cell(study: Study, limits: Limits, params: PolicyParams) -> Cell:
    setting = replace(study.setting, limits=limits)
    problem = problem_of(setting, params)
    try:
        planned = plan_for(problem, setting.cluster, setting.job.profile, ideal=study.ideal)
    except LimitsError as error:
        return Cell(
            params, limits, Impossible(error.reason, error.min_deadline_s, error.min_budget_gpu_s)
        )
    except UsageError as error:
        return Cell(params, limits, Impossible(str(error), 0.0, 0.0))
    return Cell(params, limits, planned.problem)


def _run(cell: Cell, seed: int) -> Outcome:
    assert isinstance(cell.problem, Problem)
    outcome = run(replace(given(), limits=cell.limits), cell.problem, cell.params.seed + seed)
    assert isinstance(outcome, Outcome)
    return outcome


def row_json(row: Row) -> Json:
    """Make one row of `simulate --json`."""
    outcomes = row.outcomes
    best = [outcome.metric for outcome in outcomes]
    found = [metric for metric in best if metric is not None]
    told: Json = {
        "policy": row.cell.params.name,
        "deadline_s": row.cell.limits.deadline_s,
        "budget_gpu_min": row.cell.limits.budget_gpu_s / 60,
        "best": best,
        "mean": _mean(found),
        "stderr": _stderr(found),
        "regret": _mean([outcome.regret for outcome in outcomes if outcome.regret is not None]),
        "gpu_min": _mean([outcome.gpu_s / 60 for outcome in outcomes]),
        "elapsed_s": _mean([outcome.elapsed_s for outcome in outcomes]),
        "trials": _mean([outcome.trials for outcome in outcomes]),
        "violations": sum(
            not (outcome.within_deadline and outcome.within_budget) for outcome in outcomes
        ),
        "without_model": len(best) - len(found),
    }
    if isinstance(row.cell.problem, Impossible):
        told["impossible"] = row.cell.problem.reason
    return told


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _stderr(values: Sequence[float]) -> float | None:
    """Compute the standard error of the mean; 0 for a single value, None for none."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return 0.0
    return math.sqrt(
        math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
    )
