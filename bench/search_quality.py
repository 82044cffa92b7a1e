"""How good the models are that each policy hands back, in SEER's cells: deadlines of 15, 30 and 60
min, 8, 16 and 32 GPU-min for each of them.

`python bench/search_quality.py [FOLDER] [SEEDS]`: every .npz file of learning curves in the folder
(docs/simulate.md says what is in one). The median whole curve takes 60 min on one V100, and scales
as ResNet50 does (HyperSched, SoCC '19). Rented p3.8xlarge instances; boot, billing minimum, whole
instances, starts and saves are paid. The floor is `random`: one configuration on all GPUs (SEER,
section 6.3).

Regrets are normalised by file: 0 is the best final value of the file, 1 its median one; a run
without a model counts as 1. Each figure has the standard error of its mean over files and seeds
beside it.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seerd.commands.simulate import PAPER_P_MAX
from seerd.commands.study import Row, Study, rows
from seerd.planner.clouds import DEFAULT_TYPE, INSTANCE_TYPES, RENTED_TERMINATE_S, assumed
from seerd.planner.model import ClusterFacts, Limits, PolicyParams
from seerd.planner.policy import POLICIES
from seerd.planner.scaling import BUNDLED
from seerd.sim.curves import Curves, load_curves
from seerd.sim.setting import Setting

DEADLINES_MIN = (15, 30, 60)
GPUS = (8, 16, 32)
FULL_CURVE_S = 3600.0
FOLDER = Path(__file__).parents[1] / "examples" / "curves"


def main() -> None:
    """Prints one JSON object."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    files = sorted(folder.glob("*.npz"))
    cells: dict[tuple[int, int, str], list[float]] = {}
    told: dict[str, Any] = {
        "seeds": seeds,
        "files": [file.stem for file in files],
        "violations": 0,
        "runs": 0,
    }
    for file in files:
        curves = load_curves(file)
        for row in rows(study_of(curves, seeds), lambda: None):
            note(row, scale_of(curves), cells, told)
    told["cells"] = [
        cell_json(cells, deadline, gpus) for deadline in DEADLINES_MIN for gpus in GPUS
    ]
    everything = {
        name: [r for (_, _, policy), found in cells.items() if policy == name for r in found]
        for name in POLICIES
    }
    told["all"] = {name: figures(found) for name, found in everything.items()}
    print(json.dumps(told))


def study_of(curves: Curves, seeds: int) -> Study:
    """All cells and policies on one file."""
    profile = assumed(rented=True)
    profile = replace(profile, job=replace(profile.job, scaling=BUNDLED["resnet50"]))
    speed = profile.job.scaling.speed(curves.gpus)
    kind = INSTANCE_TYPES[DEFAULT_TYPE]
    cluster = ClusterFacts(
        "rented", kind.gpus, usd_per_gpu_h=kind.usd_per_gpu_h, terminate_s=RENTED_TERMINATE_S
    )
    limits = tuple(Limits(t * 60.0, t * 60.0 * gpus) for t in DEADLINES_MIN for gpus in GPUS)
    params = tuple(PolicyParams(name=name, p_max=PAPER_P_MAX.get(name)) for name in POLICIES)
    setting = Setting(curves.lasting(FULL_CURVE_S, speed), limits[0], cluster, profile)
    return Study(setting, params, limits, seeds)


def scale_of(curves: Curves) -> float:
    """The regret of the median final value."""
    final = curves.metric[:, -1]
    return curves.regret(float(np.median(final[np.isfinite(final)])))


def note(
    row: Row, scale: float, cells: dict[tuple[int, int, str], list[float]], told: dict[str, Any]
) -> None:
    """Add what came of one cell on one file."""
    limits = row.cell.limits
    key = (
        round(limits.deadline_s / 60),
        round(limits.budget_gpu_s / limits.deadline_s),
        row.cell.params.name,
    )
    regrets = [1.0 if o.regret is None else o.regret / scale for o in row.outcomes]
    cells.setdefault(key, []).extend(regrets or [1.0])
    told["runs"] += len(row.outcomes)
    told["violations"] += sum(not (o.within_deadline and o.within_budget) for o in row.outcomes)


def cell_json(
    cells: dict[tuple[int, int, str], list[float]], deadline: int, gpus: int
) -> dict[str, Any]:
    """One pair of limits: every policy's figures."""
    policies = {name: figures(cells[deadline, gpus, name]) for name in POLICIES}
    return {
        "deadline_min": deadline,
        "gpus": gpus,
        "budget_gpu_min": deadline * gpus,
        "policies": policies,
    }


def figures(regrets: list[float]) -> dict[str, float]:
    """Mean and standard error."""
    count = len(regrets)
    mean = math.fsum(regrets) / count
    spread = math.sqrt(math.fsum((r - mean) ** 2 for r in regrets) / max(1, count - 1) / count)
    return {"regret": round(mean, 4), "stderr": round(spread, 4), "runs": count}


if __name__ == "__main__":
    main()
