"""What an earlier run is worth: `seer+` with `--like` beside itself without; prints JSON.

`python bench/earlier_run.py [FOLDER] [SEEDS]`: the files, machines and regrets of
`bench/search_quality.py --where fixed`. The earlier run has another seed and half of the time.
`beside` divides the regret with it by the regret without; its interval is the middle 95% of 1,000
draws of families.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.search.figures import Floats, by_family, ratio  # noqa: E402
from bench.search.play import came_of, play, problem_for, setting_of  # noqa: E402
from bench.search.tasks import Bench, Case, Task  # noqa: E402
from bench.testbed.checked_world import world_of  # noqa: E402
from seerd.planner.model import PolicyParams  # noqa: E402
from seerd.planning.planned import plan_for  # noqa: E402
from seerd.runs.earlier import learned, taken_up  # noqa: E402
from seerd.sim.setting import Outcome, Setting, run  # noqa: E402

FOLDER = ROOT / "examples" / "curves"
OTHER_SEED = 1000
SHORTER = 0.5


def main() -> None:
    """Prints one JSON object."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    bench = Bench(tuple(sorted(folder.glob("*.npz"))), "fixed", ("seer+",), seeds, None, 3600.0)
    tasks = [replace(task, timed=False) for task in bench.tasks()]
    with ProcessPoolExecutor() as pool:
        without = regrets(bench, [c.regret for c in pool.map(play, tasks, chunksize=8)])
        with_it = regrets(bench, list(pool.map(after_another, tasks, chunksize=8)))
    told = {
        "files": [file.stem for file in bench.files],
        "seeds": seeds,
        "without": round(float(without.mean()), 4),
        "with": round(float(with_it.mean()), 4),
        "beside": ratio(with_it, without),
    }
    print(json.dumps(told))


def regrets(bench: Bench, found: Sequence[float]) -> Floats:
    """Means over seeds, by (family, cell)."""
    by_file = np.reshape(found, (1, len(bench.files), len(bench.cells), bench.seeds))
    averaged: Floats = by_family(by_file, list(bench.families.values()))[0].mean(axis=2)
    return averaged


def after_another(task: Task) -> float:
    """Simulates a run before this one, then this one, which knows it; returns its regret."""
    cell = task.case.cell
    earlier = replace(task.case, cell=replace(cell, deadline_s=SHORTER * cell.deadline_s))
    params = knowing(earlier, setting_of(earlier), OTHER_SEED + task.seed)
    setting = setting_of(task.case)
    problem = replace(problem_for(task.case, setting), params=params)
    planned = plan_for(problem, setting.cluster, setting.job.profile)
    outcome = run(setting, planned.problem, task.seed)
    assert isinstance(outcome, Outcome)
    return came_of(task.case, setting, outcome).regret


def knowing(case: Case, setting: Setting, seed: int) -> PolicyParams:
    """The parameters of a policy that knows a run of this case."""
    problem = problem_for(case, setting)
    planned = plan_for(problem, setting.cluster, setting.job.profile)
    world = world_of(setting, planned.problem, seed)
    trials = learned(setting.job.curves.space(), world.run())
    return taken_up(problem.params, [trials], setting.job.curves.mode)


if __name__ == "__main__":
    main()
