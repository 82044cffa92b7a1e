"""What one decision of a policy costs a CPU, with 50 and with 1,000 trials on as many GPUs; prints
JSON.

`python bench/decisions.py [POLICY ...]` (`seer+`). All trials train at once, report once a minute
and are a little better with every report; windows of `seer+` begin and end meanwhile. `asked` is
how many decisions were timed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.testbed.policy_world import Asked, FakeTrial, World, problem  # noqa: E402
from seerd.planner.model import Plan, View  # noqa: E402
from seerd.planner.policy import policy_of  # noqa: E402

HOUR_S = 3600.0
MINUTES = {50: 60, 1000: 6}
UNIT_S = 60.0


@dataclass
class Timed(Asked):
    """Keeps the CPU seconds of every decision."""

    cpu_s: list[float] = field(default_factory=list)

    def plan(self, view: View) -> Plan:
        """Answer as the policy does."""
        began = time.process_time()
        plan = super().plan(view)
        self.cpu_s.append(time.process_time() - began)
        return plan


def main() -> None:
    """Prints one JSON object."""
    names = sys.argv[1:] or ["seer+"]
    print(json.dumps({name: {gpus: told(name, gpus) for gpus in MINUTES} for name in names}))


def told(name: str, gpus: int) -> dict[str, float]:
    """Run this policy with a trial on each GPU, on a plan for an hour; sum up what its decisions
    cost.
    """
    made = problem(gpus, HOUR_S, name=name)
    asked = Timed(policy_of(made), made)
    draws = Random(gpus)
    unit_s = lambda *_: UNIT_S * (1 + 0.1 * draws.random())  # noqa: E731
    world = World(asked, gpus, metric, unit_s, checks=False)
    world.run(UNIT_S * MINUTES[gpus])
    costs = sorted(asked.cpu_s)
    return {
        "trials": len(world.trials),
        "asked": len(costs),
        "median_ms": round(1000 * median(costs), 2),
        "p99_ms": round(1000 * costs[int(0.99 * (len(costs) - 1))], 1),
        "most_ms": round(1000 * costs[-1], 1),
    }


def metric(trial: FakeTrial, reports: int) -> float:
    """A trial's metric: the better, the nearer its lr is to 0.01, and the longer it trained."""
    lr = trial.config["lr"]
    assert isinstance(lr, float)
    return -abs(math.log10(lr) + 2) - 1 / reports


if __name__ == "__main__":
    main()
