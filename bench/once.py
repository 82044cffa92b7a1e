"""How well a search tunes a script that makes one report, at its end; prints JSON.

    python bench/once.py [--seeds 10] [--policies seer+,asha,bohb,gp-ucb,tpe] [--deadline 600]

A space of four hyperparameters, two GPUs, trainings of 10 s whose attempts take 2 s to start. There
are no curves: `asha` is random search here. `regret` is how far the best metric is from 1, `tried`
how many configurations were trained to their end. `tpe` is Optuna's TPE on the same clock: it is
what `beside` divides the regret by.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.failing import (  # noqa: E402
    BATCH,
    DROPOUT,
    GPUS,
    LR,
    NORM,
    apart,
    facts_of,
    place,
    suggested,
)
from seerd.planner.model import PolicyParams  # noqa: E402
from seerd.planner.space import Config  # noqa: E402
from seerd.sim.behaviour import Behaviour, exactly  # noqa: E402
from seerd.sim.world import World  # noqa: E402

TRAINING_S, START_S = 10.0, 2.0
PARAMETERS = (NORM, LR, DROPOUT, BATCH)
LOST_BY_NORM = {"none": 0.1, "batch": 0.0, "layer": 0.15, "group": 0.05}


def loss(config: Config) -> float:
    """Return what is lost by a configuration."""
    narrow = 0.3 * abs(place(LR, config) - 0.6) + 0.2 * (place(BATCH, config) - 0.4) ** 2
    return LOST_BY_NORM[str(config["norm"])] + apart(config) + narrow


def played(policy: str, seed: int, deadline_s: float) -> tuple[float, int]:
    """Simulate one run; return its regret, and how many configurations it has trained."""
    params = PolicyParams(name=policy, seed=seed, t_min_s=5.0)
    facts = facts_of(PARAMETERS, params, deadline_s)
    behaviour = Behaviour(
        metric=lambda config, _: 1 - loss(config),
        unit_s=lambda *_: TRAINING_S,
        most_reports=1,
        start=exactly(START_S),
        stop=exactly(0.1),
    )
    trials = World(facts, behaviour, seed=seed).run().trials.values()
    metrics = [report.metric or 0.0 for trial in trials for report in trial.history]
    return 1 - max(metrics, default=0.0), len(metrics)


def tpe(seed: int, deadline_s: float) -> tuple[float, int]:
    """Let Optuna's TPE choose for two trainings side by side; return the same."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    heap: list[tuple[float, int, Any, float]] = []
    metrics: list[float] = []

    def begin(now_s: float) -> None:
        trial = study.ask()
        metric = 1 - loss({p.name: suggested(trial, p) for p in PARAMETERS})
        heapq.heappush(heap, (now_s + START_S + TRAINING_S, trial.number, trial, metric))

    for _ in range(GPUS):
        begin(0.0)
    while heap[0][0] <= deadline_s:
        now_s, _, trial, metric = heapq.heappop(heap)
        metrics.append(metric)
        study.tell(trial, metric)
        begin(now_s)
    return 1 - max(metrics, default=0.0), len(metrics)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", default="seer+,asha,bohb,gp-ucb,tpe")
    parser.add_argument("--deadline", type=float, default=600.0)
    asked = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    for policy in asked.policies.split(","):
        of_seed = [
            tpe(seed, asked.deadline) if policy == "tpe" else played(policy, seed, asked.deadline)
            for seed in range(asked.seeds)
        ]
        regret, tried = np.mean(of_seed, axis=0)
        rows[policy] = {"regret": round(float(regret), 4), "tried": round(float(tried), 1)}
    for row in rows.values():
        if "tpe" in rows:
            row["beside"] = round(row["regret"] / rows["tpe"]["regret"], 2)
    print(json.dumps({"deadline_s": asked.deadline, "seeds": asked.seeds, "policies": rows}))


if __name__ == "__main__":
    main()
