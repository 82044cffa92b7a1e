"""What sharing a run is worth to three jobs, beside runs one by one, and a part of the GPUs each.

    python bench/sharing.py [FILE.npz FILE.npz FILE.npz ...] [--seeds 10] [--gpus 6]

All ways have the same limits, in simulation. The files have recorded curves (docs/simulate.md),
three for each comparison; without any, those of examples/curves. `ratio` is the sum of the jobs'
regrets by that of the better of the two ways without sharing, in the same seeds. A job's regret is
in units of how far its median curve ends from its best one, so that none counts more for the scale
of its metric.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from seerd.commands.simulate import each
from seerd.commands.simulation import AFTER, APART, Way, simulated
from seerd.core.events import Goal
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Limits, PolicyParams
from seerd.sim.curves import Curves, load_curves
from seerd.sim.setting import JobSetting, Setting
from seerd.spec.experiment import SHARING
from seerd.units import parse_duration

CURVES = Path(__file__).parent.parent / "examples" / "curves"
HOURS = 1.0


def main() -> None:
    """Print one JSON object for each three files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=sorted(CURVES.glob("*.npz")))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--gpus", type=int, default=6)
    parser.add_argument("--full-curve", type=parse_duration, default=1800.0)
    asked = parser.parse_args()
    for first in range(0, len(asked.files) - 2, 3):
        files = asked.files[first : first + 3]
        curves = [load_curves(file).lasting(asked.full_curve, 1.0) for file in files]
        print(json.dumps(compared(files, curves, asked.gpus, asked.seeds)), flush=True)


def compared(
    files: Sequence[Path], curves: Sequence[Curves], gpus: int, seeds: int
) -> dict[str, object]:
    """Compare all ways for these jobs."""
    setting = setting_of(files, curves, gpus)
    units = dict(zip((job.id for job in setting.jobs), map(spread, curves), strict=True))
    sums = {}
    for name in (*SHARING, AFTER, APART):
        shared = replace(setting, sharing=name if name in SHARING else "fair")
        way = Way(name, shared)
        found = each(simulated, [(way, seed) for seed in range(seeds)], lambda: None)
        sums[name] = [
            math.fsum(
                (1.0 if o.regret is None else o.regret / units[job]) for job, o in one.items()
            )
            for one, _ in found
        ]
    least = min(np.mean(sums[AFTER]), np.mean(sums[APART]))
    return {
        "jobs": [file.stem for file in files],
        "seeds": seeds,
        "sums": {name: round(float(np.mean(one)), 4) for name, one in sums.items()},
        "ratio": {name: round(float(np.mean(sums[name]) / least), 3) for name in SHARING},
    }


def setting_of(files: Sequence[Path], curves: Sequence[Curves], gpus: int) -> Setting:
    """Make a run of one hour that keeps all GPUs busy."""
    limits = Limits(3600 * HOURS, 3600 * HOURS * gpus, gpus)
    profile = assumed(rented=False)
    jobs = tuple(
        JobSetting(
            one,
            profile,
            Goal(metric=file.stem, mode=one.mode),
            file.stem[:32],
            PolicyParams("seer+", t_min_s=30.0),
        )
        for file, one in zip(files, curves, strict=True)
    )
    return Setting(jobs, limits, ClusterFacts("held", gpus, 1))


def spread(curves: Curves) -> float:
    """Return how far the median curve ends from the best one."""
    last = curves.metric[:, -1]
    last = last[np.isfinite(last)]
    return float(abs(np.median(last) - curves.best_final)) or 1.0


if __name__ == "__main__":
    main()
