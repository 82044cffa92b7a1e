"""What a search does where half of the configurations cannot run; prints JSON.

    python bench/failing.py [--seeds 10] [--policies seer+,asha,tpe] [--space memory] [--real 2]

memory  `batch` from 8 to 512 is out of memory above 64, and more is better up to there
error   two of four values of `norm` raise an error
nan     above a learning rate of 0.01 the metric is NaN from the third report on, and more is better
        up to there

A run has 100 s and two GPUs; a trial makes 40 reports, one every 0.25 s, and an attempt takes 0.5 s
to start. `failing` is the share of attempts in the second half of the run that crashed or came to
NaN, restarts counted, with the middle 95% of its mean over draws of seeds; `tried` how many
configurations were started, `trained` those of them that can run; `regret` how far the best metric
is from 1. `tpe` is Optuna's TPE with its Hyperband pruner on the same clock, told that failed
trials are the worst: it is what `beside` divides the regret by. With `--real` so many real runs of
`seer+` on this machine follow, in the space `memory`, with a script that raises torch's error.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import seerd  # noqa: E402
from seerd.core.commands import AnyCommand, StartTrial  # noqa: E402
from seerd.core.events import AnyEvent, RunFacts, TrialExited, TrialReported  # noqa: E402
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem  # noqa: E402
from seerd.planner.space import Config, Parameter, Space  # noqa: E402
from seerd.sim.behaviour import Behaviour, exactly  # noqa: E402
from seerd.sim.world import World  # noqa: E402

DEADLINE_S, GPUS, REPORTS, REPORT_S, START_S = 100.0, 2, 40, 0.25, 0.5
BATCH = Parameter("batch", low=8, high=512, log=True, integer=True)
LR = Parameter("lr", low=1e-4, high=1.0, log=True)
DROPOUT = Parameter("dropout", low=0.0, high=0.6)
NORM = Parameter("norm", choices=("none", "batch", "layer", "group"))
FRAMES = ("Traceback (most recent call last):", '  File "train.py", line 40, in <module>')
MEMORY = (*FRAMES, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
ERROR = (*FRAMES, "ValueError: this norm needs four dimensions")


@dataclass(frozen=True)
class Task:
    """A space, and what comes of its configurations."""

    parameters: tuple[Parameter, ...]
    tail: tuple[str, ...]  # last lines of a configuration that cannot run; empty: it comes to NaN
    runs: Callable[[Config], bool]  # whether a configuration can run
    loss: Callable[[Config], float]  # what is lost at the end

    def fails(self, config: Config, report: int) -> tuple[str, ...]:
        """Return the last lines with which it crashes instead of its first report, if it does."""
        return () if report > 1 or self.runs(config) else self.tail

    def metric(self, config: Config, report: int) -> float | None:
        """Return the metric of a report; None: it is NaN."""
        runs = self.runs(config)
        if not runs and report >= 3:
            return None
        return 1 - (self.loss(config) if runs else 0.0) - 0.5 * math.exp(-report / 10)


def place(parameter: Parameter, config: Config) -> float:
    """Return where a value lies in its range, from 0 to 1."""
    return parameter.share(config[parameter.name])


def apart(config: Config) -> float:
    """Return what is lost by learning rate and dropout."""
    return 0.3 * (place(LR, config) - 0.6) ** 2 + 0.2 * (place(DROPOUT, config) - 0.3) ** 2


TASKS = {
    "memory": Task(
        (BATCH, LR, DROPOUT),
        MEMORY,
        lambda c: int(c["batch"]) <= 64,
        lambda c: 0.4 * (BATCH.share(64) - place(BATCH, c)) + apart(c),
    ),
    "error": Task(
        (NORM, LR, DROPOUT, BATCH),
        ERROR,
        lambda c: c["norm"] in ("none", "batch"),
        lambda c: 0.1 * (c["norm"] == "none") + apart(c) + 0.1 * (place(BATCH, c) - 0.4) ** 2,
    ),
    "nan": Task(
        (LR, DROPOUT),
        (),
        lambda c: float(c["lr"]) <= 0.01,
        lambda c: 0.6 * (0.5 - place(LR, c)) + 0.2 * (place(DROPOUT, c) - 0.3) ** 2,
    ),
}


@dataclass(frozen=True)
class Came:
    """What came of a run."""

    failing: float
    tried: int
    trained: int
    regret: float


class Watched(World):
    """Notes when attempts start, and which of them fail."""

    def __init__(self, facts: RunFacts, behaviour: Behaviour, *, seed: int = 0) -> None:
        super().__init__(facts, behaviour, seed=seed)
        self.started: dict[tuple[str, int], float] = {}
        self.failed: set[tuple[str, int]] = set()

    def decide(self, event: AnyEvent) -> list[AnyCommand]:
        """Decide as the core does."""
        match event:
            case TrialExited(cause="crashed") | TrialReported(metric=None):
                self.failed.add((event.trial, event.attempt))
        decided = super().decide(event)
        starts = (command for command in decided if isinstance(command, StartTrial))
        self.started |= {(start.trial, start.attempt): self.now for start in starts}
        return decided


def played(task: Task, policy: str, seed: int) -> Came:
    """Simulate one run; all policies but `seer+` know how many reports a trial makes."""
    params = PolicyParams(name=policy, seed=seed, t_min_s=5.0)
    if policy != "seer+":
        params = replace(params, max_reports=REPORTS)
    facts = facts_of(task.parameters, params, DEADLINE_S)
    behaviour = Behaviour(
        metric=task.metric,
        unit_s=lambda *_: REPORT_S,
        most_reports=REPORTS,
        start=exactly(START_S),
        stop=exactly(0.1),
        fails=task.fails,
    )
    world = Watched(facts, behaviour, seed=seed)
    trials = [trial for trial in world.run().trials.values() if trial.attempt]
    metrics = [r.metric for t in trials for r in t.history if r.metric is not None]
    late = [key for key, at_s in world.started.items() if at_s >= DEADLINE_S / 2]
    return Came(
        sum(key in world.failed for key in late) / max(1, len(late)),
        len(trials),
        sum(task.runs(trial.config) for trial in trials),
        1 - max(metrics, default=0.0),
    )


def facts_of(
    parameters: tuple[Parameter, ...], params: PolicyParams, deadline_s: float
) -> RunFacts:
    """Make a run's facts: `GPUS` GPUs of one machine, and a budget that is no limit."""
    limits = Limits(deadline_s, 2 * GPUS * deadline_s, GPUS)
    return RunFacts(
        run="failing",
        name="failing",
        metric="accuracy",
        mode="max",
        problem=Problem(limits, Space(parameters), params, gpus_per_instance=GPUS),
        cluster=ClusterFacts("held", GPUS, max_instances=1),
    )


def tpe(task: Task, seed: int) -> Came:
    """Let Optuna's TPE choose for two trials side by side, each pruned by Hyperband."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=f"failing {seed}",  # its hash divides trials among brackets
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=REPORTS),
    )
    heap: list[tuple[float, int, Any, Config, int]] = []
    configs: list[Config] = []
    late: dict[int, bool] = {}  # number of a trial that began in the second half -> it has failed
    best = 0.0

    def begin(now_s: float) -> None:
        trial = study.ask()
        config = {p.name: suggested(trial, p) for p in task.parameters}
        if now_s >= DEADLINE_S / 2:
            late[len(configs)] = False
        heapq.heappush(heap, (now_s + START_S + REPORT_S, len(configs), trial, config, 1))
        configs.append(config)

    for _ in range(GPUS):
        begin(0.0)
    while heap[0][0] <= DEADLINE_S:
        now_s, number, trial, config, report = heapq.heappop(heap)
        metric = None if task.fails(config, report) else task.metric(config, report)
        if metric is None:
            late |= {number: True} if number in late else {}
            study.tell(trial, -1.0)
            begin(now_s)
            continue
        best = max(best, metric)
        trial.report(metric, report)
        if report == REPORTS or trial.should_prune():
            study.tell(trial, metric)
            begin(now_s)
        else:
            heapq.heappush(heap, (now_s + REPORT_S, number, trial, config, report + 1))
    failing = sum(late.values()) / max(1, len(late))
    return Came(failing, len(configs), sum(map(task.runs, configs)), 1 - best)


def suggested(trial: Any, parameter: Parameter) -> Any:
    """Ask for a value."""
    if parameter.choices:
        return trial.suggest_categorical(parameter.name, parameter.choices)
    if parameter.integer:
        low, high = int(parameter.low or 0), int(parameter.high or 0)
        return trial.suggest_int(parameter.name, low, high, log=parameter.log)
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.log)


SCRIPT = """
import math
import time

import seerd

trial = seerd.trial()
batch, lr = trial.config["batch"], trial.config["lr"]
if batch > 64:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
worth = 0.1 * abs(math.log10(lr) + 2) + 0.1 * math.log(64 / batch)
while trial.running() and trial.epoch < 40:
    time.sleep(0.25)
    trial.report(accuracy=1 - worth - 0.5 * math.exp(-trial.epoch / 10))
"""
SPEC = """
name = "failing"
metric = {{ name = "accuracy", mode = "max" }}
train = {{ script = "train.py" }}
limits = {{ deadline = "{deadline_s:.0f}s", budget = "10gpu-min" }}
cluster = {{ provider = "local", gpus = {gpus} }}
policy = {{ seed = {seed} }}

[space]
batch = {{ low = 8, high = 512, log = true, step = 1 }}
lr = {{ low = 1e-4, high = 1.0, log = true }}
"""


def real(seed: int) -> dict[str, Any]:
    """Run the space `memory` with real processes on two slots of this machine."""
    with tempfile.TemporaryDirectory(prefix="seerd-failing-") as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        spec = Path(folder, "spec.toml")
        spec.write_text(SPEC.format(seed=seed, gpus=GPUS, deadline_s=DEADLINE_S))
        run = seerd.run(spec, home=Path(folder, "home"))
        trials = run.trials()
    late = trials[trials["started_s"] >= DEADLINE_S / 2]
    attempts = late["attempts"].sum()
    failing = late[late["config.batch"] > 64]["attempts"].sum() / max(1, attempts)
    return {"real": seed, "tried": len(trials), "late": int(attempts), "failing": round(failing, 3)}


def interval(shares: Sequence[float]) -> list[float]:
    """Return the middle 95% of the mean over draws of seeds."""
    draws = np.random.default_rng(0).choice(np.array(shares), (1000, len(shares)))
    return [round(float(q), 3) for q in np.quantile(draws.mean(axis=1), (0.025, 0.975))]


def main() -> None:
    """Print one JSON object for each space and policy."""
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", default="seer+,asha,tpe")
    parser.add_argument("--space", choices=TASKS)
    parser.add_argument("--real", type=int, default=0)
    asked = parser.parse_args()
    for name in [asked.space] if asked.space else TASKS:
        task, rows = TASKS[name], {}
        for policy in asked.policies.split(","):
            of_seed = [
                tpe(task, seed) if policy == "tpe" else played(task, policy, seed)
                for seed in range(asked.seeds)
            ]
            shares = [came.failing for came in of_seed]
            rows[policy] = {
                "failing": round(float(np.mean(shares)), 3),
                "interval": interval(shares),
                "tried": round(float(np.mean([came.tried for came in of_seed])), 1),
                "trained": round(float(np.mean([came.trained for came in of_seed])), 1),
                "regret": round(float(np.mean([came.regret for came in of_seed])), 4),
            }
        for row in rows.values():
            if "tpe" in rows:
                row["beside"] = round(row["regret"] / rows["tpe"]["regret"], 2)
        print(json.dumps({"space": name, "seeds": asked.seeds, "policies": rows}), flush=True)
    for seed in range(asked.real):
        print(json.dumps(real(seed)), flush=True)


if __name__ == "__main__":
    main()
