"""How good the models are that each policy hands back: on machines that are there, or on rented
instances; prints JSON.

`python bench/search_quality.py [FOLDER] [options]`: every .npz file of learning curves in the
folder (docs/simulate.md says what is in one); files whose names agree up to the first `_` are one
family, and every family counts the same. `--help` lists the options.

fixed   one machine of 1, 2, 4 or 8 GPUs for 30 min and for 2 h, with a budget that is no limit
rented  SEER's cells: deadlines of 15, 30 and 60 min, 8, 16 and 32 GPU-min for each of them, on
        p3.8xlarge instances; boot, billing minimum, whole instances, starts and saves are paid

The median whole curve takes `--full-curve` on one GPU, and scales as ResNet50 does (HyperSched,
SoCC '19). The first policy is the one under test. `seer+` never knows R, the reports of a whole
curve; the others are told `--told` times R, or nothing. Figures, tests and the scale of regret are
explained in bench/search/, and on docs/comparison.md. All but `cpu_s_per_decision` is the same to
the bit whenever it is run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.search import figures  # noqa: E402
from bench.search.play import Came, play  # noqa: E402
from bench.search.tasks import Bench, Where  # noqa: E402
from seerd.planner.policies import POLICIES  # noqa: E402
from seerd.units import parse_duration  # noqa: E402

FOLDER = ROOT / "examples" / "curves"


def main() -> None:
    """Run what is asked for."""
    asked = arguments().parse_args()
    bench = Bench(
        files=tuple(sorted(asked.folder.glob("*.npz"))),
        where=asked.where,
        policies=tuple(asked.policies.split(",")),
        seeds=asked.seeds,
        told=None if asked.told == "none" else float(asked.told),
        full_curve_s=parse_duration(asked.full_curve),
    )
    print(json.dumps(summary(bench, played(bench, asked.jobs)), indent=1))


def arguments() -> argparse.ArgumentParser:
    """List the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="files of curves")
    parser.add_argument("--where", choices=Where.__args__, default="fixed")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--told", default="1", help="times R, or none (1)")
    parser.add_argument("--full-curve", default="60m", help="for example 20m, 60m, 240m (60m)")
    parser.add_argument(
        "--policies", default=",".join(POLICIES), help="the first is under test (all)"
    )
    parser.add_argument("--jobs", type=int, help="processes (all cores)")
    return parser


def played(bench: Bench, jobs: int | None) -> list[Came]:
    """Play all runs, in the order of the tasks."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(play, bench.tasks(), chunksize=bench.seeds))


def summary(bench: Bench, came: Sequence[Came]) -> dict[str, Any]:
    """Everything that is printed."""
    shape = len(bench.files), len(bench.policies), len(bench.cells), bench.seeds
    regrets = np.moveaxis(np.array([c.regret for c in came]).reshape(shape), 1, 0)
    used = np.moveaxis(np.array([c.used for c in came]).reshape(shape), 1, 0)
    grouped = list(bench.families.values())
    found = figures.Regrets(
        bench.policies,
        tuple(bench.families),
        bench.cells,
        figures.by_family(regrets, grouped),
    )
    rows = {
        name: row(found.by_cell[number])
        | {
            "median": round(float(figures.medians(regrets, grouped)[number]), 4),
            "used": round(float(figures.medians(used, grouped)[number]), 3),
        }
        for number, name in enumerate(bench.policies)
    }
    told = {
        "where": bench.where,
        "seeds": bench.seeds,
        "r_told_to_others": bench.told,
        "full_curve_min": bench.full_curve_s / 60,
        "families": {name: len(files) for name, files in bench.families.items()},
        "cells": [{"deadline_min": c.deadline_s / 60, "gpus": c.gpus} for c in bench.cells],
        "runs": len(came),
        "violations": sum(c.violated for c in came),
        "impossible": sum(c.impossible for c in came),
        "policies": rows,
        "cpu_s_per_decision": decision_s(came),
    }
    return told | (beside(found, rows, regrets, grouped) if len(bench.policies) > 1 else {})


def row(by_cell: figures.Floats) -> dict[str, Any]:
    """One policy's regrets, from those by (family, cell)."""
    return {
        "regret": round(float(by_cell.mean()), 4),
        "cells": [round(float(value), 4) for value in by_cell.mean(axis=0)],
        "families": [round(float(value), 4) for value in by_cell.mean(axis=1)],
    }


def beside(
    found: figures.Regrets,
    rows: dict[str, dict[str, Any]],
    regrets: figures.Floats,
    grouped: list[list[int]],
) -> dict[str, Any]:
    """The policy under test beside the others; ranks go into the policies' rows."""
    placed = figures.by_family(figures.ranks(regrets), grouped).mean(axis=(1, 2, 3))
    for name, place in zip(found.policies, placed, strict=True):
        rows[name]["rank"] = round(float(place), 2)
    mine, others = found.by_cell[0], found.by_cell[1:]
    oracle = figures.best_of_them(found)
    rows[figures.BEST_OF_THEM] = row(oracle)
    names = (*found.policies[1:], figures.BEST_OF_THEM)
    return {
        "best_other": min(found.policies[1:], key=lambda name: rows[name]["regret"]),
        "beside": {
            name: figures.ratio(mine, other)
            for name, other in zip(names, (*others, oracle), strict=True)
        },
        "worse_than_best_other": figures.worse_than_others(found),
        "worse_with_more": figures.worse_with_more(found),
    }


def decision_s(came: Sequence[Came]) -> dict[str, float]:
    """How long the policy under test took to decide, CPU seconds."""
    took_s = [second for c in came for second in c.decisions_s]
    if not took_s:
        return {"decisions": 0}
    return {"decisions": len(took_s), "median": round(median(took_s), 6)}


if __name__ == "__main__":
    main()
