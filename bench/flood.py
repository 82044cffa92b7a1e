"""Real runs on this machine whose trials report as fast as they can, or so often, beside a run that
does not: seconds late, money, and the most memory that daemon and agent took. Prints JSON.
Status 3: the machine was too busy for anything to be started.

`python bench/flood.py [--slots 2 20 200] [--rates 4 3000 1000000] [--deadline 40]`; a rate counts
reports a second that each trial makes at most. 200 slots take 3 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SPEC = """
metric = {{ name = "loss", mode = "min" }}
[train]
script = "train.py"
launcher = "python"
[space]
lr = {{ low = 1e-3, high = 1.0 }}
[policy]
name = "random"
p_max = 1
t_min = "3s"
trials = {trials}
[limits]
deadline = "{deadline_s}s"
budget = "{budget}gpu-min"
[cluster]
gpus = {slots}
"""
SCRIPT = """
import pathlib, random, sys, time
sys.modules["torch"] = None
import seerd
trial, began = seerd.trial(), time.monotonic()
first = trial.epoch
while trial.running():
    for step in range(max(1, min(1000, {rate} // 4))):
        trial.report(loss=trial.config["lr"] + random.random() / (1 + trial.epoch))
    time.sleep(max(0.0, began + (trial.epoch - first) / {rate} - time.monotonic()))
path = pathlib.Path({counts!r}) / f"{{trial.seed}}-{{trial.epoch}}"
path.write_text(str((trial.epoch - first) / (time.monotonic() - began)))
"""


def seen(slots: int, rate: int, deadline_s: int) -> dict[str, float]:
    """Make a run whose trials report so often; return what came of it."""
    with tempfile.TemporaryDirectory() as top:
        home, counts, spec = (Path(top) / name for name in ("home", "counts", "src/spec.toml"))
        counts.mkdir()
        spec.parent.mkdir()
        spec.with_name("train.py").write_text(SCRIPT.format(rate=rate, counts=str(counts)))
        budget = round(slots * deadline_s / 60 * 0.9, 2)
        spec.write_text(
            SPEC.format(trials=slots, deadline_s=deadline_s, budget=budget, slots=slots)
        )
        command = [sys.executable, "-c", "from seerd import cli; cli.main()", "run"]
        with (Path(top) / "out").open("w+") as out:
            began = time.monotonic()
            with subprocess.Popen(
                [*command, str(spec), "--json"],
                env={**os.environ, "SEERD_HOME": str(home)},
                stdout=out,
                stderr=subprocess.DEVNULL,
            ) as run:
                most = _watched(run, home)
            over_s = time.monotonic() - began - deadline_s
            out.seek(0)
            told = json.loads(out.read() or "{}")
        return {
            "slots": slots,
            "reports_a_second": round(sum(float(path.read_text()) for path in counts.iterdir())),
            "over_s": round(over_s, 2),
            "of_budget": round(told.get("gpu_min", 0.0) / budget, 3),
            "status": run.returncode,
            **most,
        }


def _watched(run: subprocess.Popen[bytes], home: Path) -> dict[str, float]:
    """Wait for the end; return the most memory that daemon and agent took, in MB."""
    most = {"daemon_mb": 0.0, "agent_mb": 0.0}
    while run.poll() is None:
        agents = [path.read_text() for path in home.glob("*/instances/*/agent.pid")]
        for name, pids in (("daemon_mb", [str(run.pid)]), ("agent_mb", agents)):
            for pid in pids:
                most[name] = max(most[name], _taken_mb(pid))
        time.sleep(0.1)
    return most


def _taken_mb(pid: str) -> float:
    try:
        return round(psutil.Process(int(pid.split(maxsplit=1)[0])).memory_info().rss / 1e6, 1)
    except (psutil.Error, ValueError, IndexError):
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 20, 200])
    parser.add_argument("--rates", type=int, nargs="+", default=[4, 3000, 1000000])
    parser.add_argument("--deadline", type=int, default=40)
    asked = parser.parse_args()
    runs = [seen(slots, rate, asked.deadline) for slots in asked.slots for rate in asked.rates]
    print(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
