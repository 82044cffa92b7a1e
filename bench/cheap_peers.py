"""Trials that do nothing, with Syne Tune and with Ray Tune: wall and CPU for each. Prints one line
of JSON.

It runs where these are installed, without seerd: `python bench/cheap_peers.py 200 2`. Syne Tune
starts a plain Python that prints its reports; Ray Tune calls a function in actors that it uses
again. CPU is that of all processes below this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

SCRIPT = """
import json, time

began = time.time()
for epoch in range(1, 6):
    told = {"accuracy": 0.5, "epoch": epoch, "st_worker_timestamp": time.time()}
    told |= {"st_worker_time": time.time() - began, "st_worker_iter": epoch - 1}
    print("[tune-metric]:", json.dumps(told), flush=True)
"""


def cpu_s() -> float:
    """CPU seconds of this process and of all that it has started, also of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used += sum(process.cpu_times()[:4])
    return used


def each(trials: int, work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds for each trial."""
    began, used = time.perf_counter(), cpu_s()
    work()
    wall_s, spent_s = time.perf_counter() - began, cpu_s() - used
    return {
        "wall_ms": round(wall_s / trials * 1000, 1),
        "cpu_ms": round(spent_s / trials * 1000, 1),
    }


def syne_tune(trials: int, slots: int) -> dict[str, float]:
    """Random search with the local backend."""
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import RandomSearch

    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(SCRIPT)
        os.environ["SYNETUNE_FOLDER"] = name
        tuner = Tuner(
            trial_backend=LocalBackend(entry_point=str(script)),
            scheduler=RandomSearch({"lr": uniform(0.0, 1.0)}, metrics=["accuracy"], random_seed=1),
            stop_criterion=StoppingCriterion(max_num_trials_finished=trials),
            n_workers=slots,
            sleep_time=0.01,
            print_update_interval=1e9,
        )
        return each(trials, tuner.run)


def ray_tune(trials: int, slots: int) -> dict[str, float]:
    """Random search in actors that are used again."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray
    from ray import tune

    def nothing(config: dict[str, float]) -> None:
        for _ in range(5):
            tune.report({"accuracy": 0.5})

    place = tempfile.TemporaryDirectory()
    ray.init(num_cpus=slots, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        nothing,
        param_space={"lr": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=trials, reuse_actors=True
        ),
        run_config=tune.RunConfig(verbose=0, storage_path=place.name),
    )
    with place:
        return each(trials, tuner.fit)


def found(trials: int, slots: int) -> Iterator[tuple[str, object]]:
    """What each takes, or why that is not known."""
    for name, run in (("syne_tune", syne_tune), ("ray_tune", ray_tune)):
        try:
            yield name, run(trials, slots)
        except Exception as error:  # noqa: BLE001 - the other one may still run
            yield name, f"{type(error).__name__}: {error}"[:200]


if __name__ == "__main__":
    told = dict(found(int(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps(told))
