"""What spot instances with on-demand ones behind them save, and what they cost in quality: recorded
curves, simulated, beside the same runs on demand. Prints JSON.

`python bench/spot.py [--seeds 8] [--deadline 60]` (minutes) has each spot instance taken away after
ten minutes on average, with two minutes' notice nine times in ten. A pool (a type in a zone) that
has taken one back rests for 30 minutes, as `seerd.backends.ec2.rests` has it. `bill` is the money
beside the runs on demand (`must`: 0.6), `regret` the mean distance from the best final value, where
1 is that of the median configuration after 5% of its curve; `more` is how much larger it is than on
demand (`must`: 0.01).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.search.play import WORST, planned, setting_of, unit_of  # noqa: E402
from bench.search.tasks import Case, Cell  # noqa: E402
from seerd.backends.ec2.rests import REST_S  # noqa: E402
from seerd.core.commands import Launch  # noqa: E402
from seerd.core.events import AnyEvent  # noqa: E402
from seerd.planner.model import Problem  # noqa: E402
from seerd.sim.fleet import SimulatedFleet, SimulatedMachine  # noqa: E402
from seerd.sim.setting import Faults, Setting, behaviour_of, facts_of, outcome_of  # noqa: E402
from seerd.sim.world import World  # noqa: E402

CURVES = ROOT / "examples" / "curves"
LIFE_S = 600.0
SPOT = 0.35
"""The price of spot beside on-demand: that of `bench/testbed/rig`."""
FULL_CURVE_S, GPUS = 1800.0, 16


class Pools(SimulatedFleet):
    """A cloud with so many spot pools, and on-demand instances behind them; none: on demand."""

    count = 0
    falls_back = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pool_of: dict[str, int] = {}  # spot instances; others are on demand
        self._rests = dict.fromkeys(range(self.count), float("-inf"))

    def launch(self, command: Launch) -> None:
        """Take the first pool that does not rest."""
        now, name = self._heap.now, f"m{command.id}"
        awake = [pool for pool, until in self._rests.items() if until <= now]
        if not self.falls_back:
            awake = awake or [min(self._rests, key=lambda pool: self._rests[pool])]
        if awake and name not in self.machines:
            self.pool_of[name] = awake[0]
        super().launch(command)

    def _booted(self, machine: SimulatedMachine, command: str, at: float) -> AnyEvent:
        as_spot = self.behaviour
        if machine.id not in self.pool_of:
            self.behaviour = replace(as_spot, lifetime_s=None)
        try:
            return super()._booted(machine, command, at)
        finally:
            self.behaviour = as_spot

    def notice(self, name: str, *args: Any, **more: Any) -> None:
        """Let its pool rest from then on."""
        self._rests[self.pool_of[name]] = self._heap.now + REST_S
        super().notice(name, *args, **more)

    def lose(self, name: str, why: str = "power failure") -> None:
        """Let its pool rest from then on."""
        if self.machines[name].alive:
            self._rests[self.pool_of[name]] = self._heap.now + REST_S
        super().lose(name, why)

    def bill(self, minimum_s: float) -> float:
        """What it costs, in GPU-seconds on demand."""
        return sum(
            machine.gpus
            * max(minimum_s, machine.ended - machine.running_since)
            * (SPOT if machine.id in self.pool_of else 1.0)
            for machine in self.machines.values()
            if machine.ended is not None and machine.ran
        )


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a run: its regret, and its bill in GPU-seconds on demand."""

    regret: float
    bill: float
    taken: int  # how many instances were spot
    kept: bool  # whether it kept its limits


def play(setting: Setting, problem: Problem, seed: int, pools: int, *, falls_back: bool) -> Came:
    """Simulate one run."""
    kind = type("Pools", (Pools,), {"count": pools, "falls_back": falls_back})
    facts = facts_of(setting, problem, seed)
    world_type = type("PoolWorld", (World,), {"fleet_type": kind})
    world = world_type(facts, behaviour_of(setting), seed=seed)
    outcome = outcome_of(setting, world, world.run())
    fleet: Pools = world.fleet
    regret = WORST
    if outcome.regret is not None:
        regret = min(WORST, outcome.regret / unit_of(setting.job.curves))
    kept = outcome.within_deadline and outcome.within_budget
    bill = fleet.bill(setting.cluster.minimum_s)
    return Came(regret, bill, len(fleet.pool_of), kept)


def measured(seeds: int, deadline_s: float) -> list[dict[str, Any]]:
    """A row for each kind of cloud."""
    kinds: dict[str, tuple[int, bool]] = {
        "on demand": (0, True),
        "spot, one pool": (1, False),
        **{f"fallback, {count} pools": (count, True) for count in (1, 3, 6, 12)},
    }
    came: dict[str, list[Came]] = {name: [] for name in kinds}
    for file in sorted(CURVES.glob("*.npz")):
        case = Case(file, "rented", Cell(deadline_s, GPUS), "seer+", None, FULL_CURVE_S)
        problem, calm = planned(case), setting_of(case)
        assert problem is not None
        spot = replace(calm, faults=Faults(lifetime_s=LIFE_S))
        for name, (pools, falls_back) in kinds.items():
            setting = spot if pools else calm
            for seed in range(seeds):
                came[name].append(play(setting, problem, seed, pools, falls_back=falls_back))
    return [row(name, runs, came["on demand"]) for name, runs in came.items()]


def row(name: str, runs: list[Came], floor: list[Came]) -> dict[str, Any]:
    """Compare with the same runs on demand."""
    mean: Callable[[list[float]], float] = statistics.fmean
    regret, before = mean([run.regret for run in runs]), mean([run.regret for run in floor])
    return {
        "cloud": name,
        "runs": len(runs),
        "regret": round(regret, 4),
        "more": round(regret - before, 4),
        "bill": round(sum(run.bill for run in runs) / sum(run.bill for run in floor), 3),
        "spot_instances": round(mean([float(run.taken) for run in runs]), 1),
        "limits_passed": sum(not run.kept for run in runs),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8, help="runs on each file of curves")
    parser.add_argument("--deadline", type=float, default=60.0, help="minutes")
    given = parser.parse_args()
    found = measured(given.seeds, given.deadline * 60)
    must = {"bill": 0.6, "more": 0.01}
    print(json.dumps({"life_s": LIFE_S, "spot": SPOT, "must": must, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
