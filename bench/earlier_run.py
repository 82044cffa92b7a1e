"""What an earlier run is worth: `seer+` with `--like` beside itself without.

`python bench/earlier_run.py [FOLDER] [SEEDS]`: the files, machines and regrets of
`bench/fixed_machines.py`. The earlier run has another seed and half of the time. `beside` divides
the regret with it by the regret without; its interval is the middle 95% of 1,000 draws of families.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.fixed_machines import (
    DEADLINES_S,
    FOLDER,
    GPUS,
    Came,
    Task,
    beside,
    came_of,
    regrets,
    setting_of,
)
from seerd.planner.model import Impossible, PolicyParams, Problem
from seerd.planning.earlier import learned, taken_up
from seerd.planning.planned import plan_for
from seerd.sim.setting import Setting, run, world_of

WITHOUT, WITH = "seer+", "seer+ --like"
OTHER_SEED = 1000
SHORTER = 0.5


def main() -> None:
    """Prints one JSON object."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    files = sorted(folder.glob("*.npz"))
    tasks = [
        Task(file, policy, gpus, deadline_s, seed, 1.0)
        for file in files
        for gpus in GPUS
        for deadline_s in DEADLINES_S
        for seed in range(seeds)
        for policy in (WITHOUT, WITH)
    ]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(play, tasks, chunksize=8))
    without, with_it = (regrets(found, files, name) for name in (WITHOUT, WITH))
    print(
        json.dumps(
            {
                "files": [file.stem for file in files],
                "seeds": seeds,
                "without": round(float(without.mean()), 4),
                "with": round(float(with_it.mean()), 4),
                "beside": beside(with_it, without),
            }
        )
    )


def play(task: Task) -> Came:
    """Simulates one run, and the one before it."""
    setting = setting_of(task)
    params = PolicyParams("seer+")
    if task.policy == WITH:
        earlier = replace(task, deadline_s=SHORTER * task.deadline_s)
        params = after(setting_of(earlier), params, OTHER_SEED + task.seed)
    return came_of(task, setting, run(setting, _problem(setting, params), task.seed))


def after(setting: Setting, params: PolicyParams, seed: int) -> PolicyParams:
    """The parameters of a policy that knows a run of this setting."""
    world = world_of(setting, _problem(setting, params), seed)
    if isinstance(world, Impossible):
        return params
    trials = learned(setting.curves.space(), world.run())
    return taken_up(params, [trials], setting.curves.mode)


def _problem(setting: Setting, params: PolicyParams) -> Problem:
    gpus = setting.cluster.gpus_per_instance
    made = Problem(setting.limits, setting.curves.space(), params, setting.scaling, gpus)
    return plan_for(made, setting.cluster, setting.profile).problem


if __name__ == "__main__":
    main()
