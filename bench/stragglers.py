"""How many configurations SHA and ASHA train to the end when trials straggle and drop out (Li et
al., MLSys '20, appendix A.1); prints JSON.

A unit of time is 60 s. A job takes as long as the resource of its rung, times (1 + |z|) with z ~
N(0, sd) drawn for each job, and is dropped with probability p in each unit; a configuration whose
job is dropped is out. 25 workers, eta 4, r 1, R 256, n 256; SHA begins another bracket when no job
is left in those that there are.

The paper's ordering is that ASHA trains more to the end, and has its first one earlier, the more so
the more trials straggle and drop. `asha_finishes_more` says where it holds here. Where dropping
decides, it need not: SHA lets the next best take the place of a dropped job, while ASHA's rungs,
and with them who may go on, become smaller.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.testbed.policy_world import Asked, World, problem  # noqa: E402
from seerd.planner.asha import ASHA, asha  # noqa: E402
from seerd.planner.memory import Memory  # noqa: E402
from seerd.planner.model import (  # noqa: E402
    Allocation,
    NewTrial,
    Plan,
    Policy,
    Problem,
    View,
)
from seerd.planner.ranking import rank  # noqa: E402
from seerd.planner.rungs import rung_reports  # noqa: E402

WORKERS, N, R, ETA = 25, 256, 256, 4
UNIT_S = 60.0
LIMIT_UNITS = 2000
SDS = (0.1, 0.56, 1.33)
DROPS = (0.0, 0.001, 0.005)
REPEATS = 5


@dataclass
class Cohort:
    """One bracket of SHA: whoever has yet to run in the present rung, is running, or has come to
    it.
    """

    rung: int
    waiting: deque[str]
    running: set[str] = field(default_factory=set)
    arrived: list[str] = field(default_factory=list)


class Synchronous:
    """SHA as section 3.1 of the paper runs it in parallel: a rung ends when all its jobs have
    ended, dropped ones too.

    As many go on as Algorithm 1 says, however many were dropped: the next best take their places.
    """

    def __init__(self, made: Problem) -> None:
        self._rungs = rung_reports(made.params)
        self._problem = made
        self._rng = random.Random(made.params.seed)
        self._drawn = 0
        self._cohorts: list[Cohort] = []

    def plan(self, view: View) -> Plan:
        """Every worker has a job at any time."""
        if view.now_s >= self._problem.limits.deadline_s:
            return Plan(done=True)
        new: list[NewTrial] = []
        for cohort in self._cohorts:
            self._settle(cohort, view)
        self._cohorts = [cohort for cohort in self._cohorts if cohort.waiting or cohort.running]
        for _ in range(WORKERS - sum(len(cohort.running) for cohort in self._cohorts)):
            cohort = next(
                (cohort for cohort in self._cohorts if cohort.waiting), None
            ) or self._begin(new)
            cohort.running.add(cohort.waiting.popleft())
        return Plan(
            tuple(self._allocations()), tuple(new), ask_at_s=self._problem.limits.deadline_s
        )

    def _begin(self, new: list[NewTrial]) -> Cohort:
        names = [f"t{self._drawn + i:06}" for i in range(1, N + 1)]
        self._drawn += N
        new += [NewTrial(name, self._problem.space.sample(self._rng)) for name in names]
        self._cohorts.append(Cohort(0, deque(names)))
        return self._cohorts[-1]

    def _settle(self, cohort: Cohort, view: View) -> None:
        until = self._rungs[cohort.rung]
        for trial in [view.trials[name] for name in sorted(cohort.running)]:
            if trial.status == "failed" or trial.reports >= until:
                cohort.running.remove(trial.id)
                cohort.arrived += [trial.id] * (trial.status != "failed")
        if not cohort.waiting and not cohort.running and cohort.rung + 1 < len(self._rungs):
            best = rank((view.trials[name] for name in cohort.arrived), view.mode)
            cohort.rung += 1
            cohort.waiting = deque(trial.id for trial in best[: N // ETA**cohort.rung])
            cohort.arrived = []

    def _allocations(self) -> list[Allocation]:
        return [
            Allocation(name, 1, until=self._rungs[cohort.rung])
            for cohort in self._cohorts
            for name in sorted(cohort.running)
        ]


def synchronous(made: Problem) -> Policy:
    """It keeps what it knows to itself: nobody takes this run up."""
    running = Synchronous(made)

    def plan(_: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        return running.plan(view), memory

    return Policy(ASHA.outline, plan)


METHODS: dict[str, Callable[[Problem], Policy]] = {
    "sha": synchronous,
    "asha": lambda _: asha(most_brackets=1),
}


def study(
    method: str, sd: float, drop: float, seed: int, limit_units: int = LIMIT_UNITS
) -> tuple[int, float]:
    """How many were trained to R, and after how many units the first one was; infinite if none."""
    rng = random.Random(f"{sd}/{drop}/{seed}")
    made = problem(WORKERS, limit_units * UNIT_S, eta=ETA, min_reports=1, max_reports=R, seed=seed)

    def unit_s(trial: str, until: int, gpus: int) -> float:
        """A job costs its rung's whole resource, though the trial trains only what it has not
        yet.
        """
        whole = until / (until - world.trials[trial].reports)
        return UNIT_S * whole * (1 + abs(rng.gauss(0.0, sd)))

    world = World(
        Asked(METHODS[method](made), made),
        WORKERS,
        lambda trial, epoch: float(trial.config["lr"]),
        unit_s=unit_s,
        lives_s=lambda: UNIT_S * rng.expovariate(-math.log1p(-drop)) if drop else math.inf,
        leaps=True,
        checks=False,
    )
    world.run()
    ends = [trial.history[-1].at_s for trial in world.trials.values() if trial.reports >= R]
    return len(ends), min(ends, default=math.inf) / UNIT_S


def main() -> None:
    rows = []
    for sd in SDS:
        for drop in DROPS:
            row: dict[str, Any] = {"sd": sd, "drop": drop}
            for method in METHODS:
                found = [study(method, sd, drop, seed) for seed in range(REPEATS)]
                row[f"{method}_trained_to_R"] = round(mean(n for n, _ in found), 1)
                first = mean(at for _, at in found)
                row[f"{method}_first_after_units"] = (
                    round(first, 1) if math.isfinite(first) else None
                )
            row["asha_finishes_more"] = row["asha_trained_to_R"] > row["sha_trained_to_R"]
            rows.append(row)
    print(
        json.dumps(
            {"workers": WORKERS, "units": LIMIT_UNITS, "repeats": REPEATS, "rows": rows}, indent=2
        )
    )


if __name__ == "__main__":
    main()
