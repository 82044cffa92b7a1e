"""How good the models are that each policy hands back on one machine that is there: 1, 2, 4 and 8
GPUs for 30 min and for 2 h, with a budget that is no limit.

`python bench/fixed_machines.py [FOLDER] [SEEDS] [R]`: every .npz file of learning curves in the
folder (docs/simulate.md says what is in one); files whose names agree up to the first `_` are one
family. The median whole curve takes 60 min on one GPU, and scales as ResNet50 does (HyperSched,
SoCC '19). `seer+` does not know R, the reports of a whole curve; the others are told `R` times it
(default 1: the truth).

A regret is 0 for the best final value of the file, and 1 for its median configuration after 5% of
the curve (two reports at least); it is clipped at 2, which is what no model counts. Figures are
means over seeds, then files of a family, then families. `beside` divides the regret of `seer+` by
that of the best single other policy; its interval is the middle 95% of 1,000 draws of families.
Bookkeeping columns of the files are no hyperparameters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Impossible, Limits, PolicyParams, Problem
from seerd.planner.scaling import BUNDLED
from seerd.planning.planned import plan_for
from seerd.sim.curves import Curves, load_curves
from seerd.sim.setting import Outcome, Setting, problem_of, run

GPUS = (1, 2, 4, 8)
DEADLINES_S = (1800.0, 7200.0)
POLICIES = ("seer+", "seer", "hypersched", "asha", "hyperband", "e-grid")
FULL_CURVE_S = 3600.0
NO_LIMIT = 1.05
"""The budget beside GPUs times deadline."""
WORST = 2.0
BOOKKEEPING = frozenset({"study", "trial", "iteration", "nan_train_loss", "global_step", "score"})
FOLDER = Path(__file__).parents[1] / "examples" / "curves"


@dataclass(frozen=True)
class Task:
    """One run."""

    file: Path
    policy: str
    gpus: int
    deadline_s: float
    seed: int
    told: float


@dataclass(frozen=True)
class Came:
    """What came of it."""

    task: Task
    regret: float
    used: float
    violated: bool


def main() -> None:
    """Prints one JSON object."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    told = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
    files = sorted(folder.glob("*.npz"))
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(play, tasks(files, seeds, told), chunksize=16))
    by_policy = {name: regrets(found, files, name) for name in POLICIES}
    others = [name for name in POLICIES if name != "seer+"]
    best = min(others, key=lambda name: float(by_policy[name].mean()))
    print(
        json.dumps(
            {
                "files": [file.stem for file in files],
                "seeds": seeds,
                "r_told_to_others": told,
                "violations": sum(came.violated for came in found),
                "policies": {name: told_of(found, by_policy[name], name) for name in POLICIES},
                "best_other": best,
                "beside": beside(by_policy["seer+"], by_policy[best]),
                "beside_seer": beside(by_policy["seer+"], by_policy["seer"]),
            }
        )
    )


def tasks(files: list[Path], seeds: int, told: float) -> Iterator[Task]:
    """All runs."""
    for file in files:
        for policy in POLICIES:
            for gpus in GPUS:
                for deadline_s in DEADLINES_S:
                    for seed in range(seeds):
                        yield Task(file, policy, gpus, deadline_s, seed, told)


def play(task: Task) -> Came:
    """Simulates one run."""
    setting = setting_of(task)
    cluster, limits = setting.cluster, setting.limits
    params = PolicyParams(name=task.policy)
    if task.policy == "seer+":
        problem = Problem(limits, setting.curves.space(), params, setting.scaling, task.gpus)
    else:
        problem = problem_of(setting, params)
        reports = max(1, round(setting.curves.epochs * task.told))
        problem = replace(problem, params=replace(problem.params, max_reports=reports))
    planned = plan_for(problem, cluster, setting.profile)
    return came_of(task, setting, run(setting, planned.problem, task.seed))


def came_of(task: Task, setting: Setting, outcome: Outcome | Impossible) -> Came:
    """Turns a run's outcome into figures."""
    regret = getattr(outcome, "regret", None)
    kept = getattr(outcome, "within_deadline", True) and getattr(outcome, "within_budget", True)
    used = getattr(outcome, "gpu_s", 0.0) / (task.gpus * task.deadline_s)
    scaled = WORST if regret is None else min(WORST, regret / unit_of(setting.curves))
    return Came(task, scaled, used, not kept)


def setting_of(task: Task) -> Setting:
    """One machine, one file."""
    profile = assumed(rented=False)
    profile = replace(profile, job=replace(profile.job, scaling=BUNDLED["resnet50"]))
    curves = without_bookkeeping(load_curves(task.file))
    speed = profile.job.scaling.speed(curves.gpus)
    cluster = ClusterFacts("held", task.gpus, max_instances=1)
    budget_gpu_s = NO_LIMIT * task.gpus * task.deadline_s
    limits = Limits(task.deadline_s, budget_gpu_s, task.gpus)
    return Setting(curves.lasting(FULL_CURVE_S, speed), limits, cluster, profile)


def without_bookkeeping(curves: Curves) -> Curves:
    """The curves with hyperparameters alone in their configurations."""
    configs = tuple(
        {key: value for key, value in config.items() if key not in BOOKKEEPING}
        for config in curves.configs
    )
    return replace(curves, configs=configs, _rows={})


def unit_of(curves: Curves) -> float:
    """The regret that counts as 1."""
    early = curves.metric[:, max(2, round(0.05 * curves.epochs)) - 1]
    return curves.regret(float(np.median(early[np.isfinite(early)])))


def regrets(found: list[Came], files: list[Path], policy: str) -> np.ndarray:
    """Mean regrets: one row for each family, one column for each cell."""
    families = sorted({file.stem.partition("_")[0] for file in files})
    rows = []
    for family in families:
        of_files = [file for file in files if file.stem.partition("_")[0] == family]
        rows.append(np.mean([cells(found, file, policy) for file in of_files], axis=0))
    return np.array(rows)


def cells(found: list[Came], file: Path, policy: str) -> list[float]:
    """Mean over seeds of each cell on one file."""
    mine = [came for came in found if came.task.file == file and came.task.policy == policy]
    return [
        float(np.mean([c.regret for c in mine if (c.task.gpus, c.task.deadline_s) == cell]))
        for cell in ((gpus, deadline_s) for gpus in GPUS for deadline_s in DEADLINES_S)
    ]


def told_of(found: list[Came], rows: np.ndarray, policy: str) -> dict[str, Any]:
    """One policy's figures; cells in the order of `GPUS`, then of `DEADLINES_S`."""
    used = [came.used for came in found if came.task.policy == policy]
    return {
        "regret": round(float(rows.mean()), 4),
        "cells": [round(float(value), 4) for value in rows.mean(axis=0)],
        "families": [round(float(value), 4) for value in rows.mean(axis=1)],
        "used": round(float(np.median(used)), 3),
    }


def beside(mine: np.ndarray, other: np.ndarray) -> list[float]:
    """The ratio of two policies, and its interval."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(mine), (1000, len(mine)))
    ratios = [float(mine[rows].mean() / other[rows].mean()) for rows in drawn]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return [round(float(mine.mean() / other.mean()), 3), round(low, 3), round(high, 3)]


if __name__ == "__main__":
    main()
