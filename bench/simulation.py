"""How fast the simulation is: a SEER run of 10,000 trials on 1,000 rented eight-GPU instances, and
the cost per event from 100 trials on.

The floor is a heap that only turns: as many events put in and taken out, nothing done with them.
Each size has its own process. Prints JSON.
"""

from __future__ import annotations

import heapq
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from seerd.planner.clouds import EC2, JOB
from seerd.planner.model import ClusterFacts, Limits, PolicyParams
from seerd.planner.profile import Profile
from seerd.planner.seer import Schedule
from seerd.planner.seer_capped import schedule
from seerd.sim.curves import Curves
from seerd.sim.setting import Outcome, Setting, alone, problem_of, run

SIZES = (100, 1_000, 10_000)
GPUS = 8
DEADLINE_S = 1800.0
EPOCHS = 40


def main() -> None:
    """Runs each size in a process of its own, whose memory is then its own too."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(int(sys.argv[1]))))
        return
    found = [
        min((one(size) for _ in range(3)), key=lambda told: told["us_per_event"]) for size in SIZES
    ]
    ratio = found[-1]["us_per_event"] / found[0]["us_per_event"]
    print(json.dumps({"sizes": found, "per_event_ratio": round(ratio, 3)}))


def one(trials: int) -> dict[str, Any]:
    """A process that measures one size."""
    out = subprocess.run(
        [sys.executable, __file__, str(trials)], check=True, capture_output=True, text=True
    ).stdout
    told: dict[str, Any] = json.loads(out)
    return told


def measured(trials: int) -> dict[str, Any]:
    """CPU seconds of one run, beside those of its floor."""
    setting = setting_of(trials)
    problem = problem_of(setting, PolicyParams(p_max=1))
    run(setting_of(20), problem_of(setting_of(20), PolicyParams(p_max=1)), 0)
    began = time.process_time()
    outcome = run(setting, problem, 0)
    took_s = time.process_time() - began
    assert isinstance(outcome, Outcome)
    floor_s = floor(outcome.events)
    return {
        "trials": outcome.trials,
        "instances": setting.cluster.max_instances,
        "events": outcome.events,
        "cpu_s": round(took_s, 3),
        "us_per_event": round(took_s / outcome.events * 1e6, 2),
        "times_the_floor": round(took_s / floor_s, 1),
        "max_rss_mb": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            / (2**20 if sys.platform == "darwin" else 2**10),
            1,
        ),
        "within_limits": outcome.within_deadline and outcome.within_budget,
    }


def setting_of(trials: int) -> Setting:
    """A tenth as many instances as trials, and the budget with which SEER plans so many trials."""
    rng = np.random.default_rng(0)
    metric = 1 - rng.random((200, 1)) * np.arange(1, EPOCHS + 1) ** -0.5
    curves = Curves(metric, np.full(metric.shape, 60.0), 1, "max")
    cluster = ClusterFacts("rented", GPUS, max_instances=max(1, trials // 10), terminate_s=4.0)
    setting = alone(curves, Limits(DEADLINE_S, 3600.0 * trials), cluster, Profile(JOB, EC2))
    planned = schedule(problem_of(setting, PolicyParams(p_max=1)))
    assert isinstance(planned, Schedule)
    budget = setting.limits.budget_gpu_s * trials / sum(planned.trials)
    return replace(setting, limits=Limits(DEADLINE_S, budget))


def floor(events: int) -> float:
    """CPU seconds for as many turns of a heap."""
    began = time.process_time()
    heap = [(float(i * 7919 % 1000), i) for i in range(1000)]
    heapq.heapify(heap)
    for i in range(events):
        when, _ = heapq.heappop(heap)
        heapq.heappush(heap, (when + 1.0, i))
    return time.process_time() - began


if __name__ == "__main__":
    main()
