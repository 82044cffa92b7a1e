"""What a stage boundary costs an unmoved trial (nothing) and a moved one (its own save and restore,
and what seerd adds). Prints JSON.

Six trials whose metric is their configuration, so that the best start on one GPU and move to two;
between reports they sleep. Once with a state of 4 MB, once with one of 200 MB. The floors of a move
are measured in the same run: bare `torchrun` of the same script from the same checkpoints, as many
at once as have moved; and what of that is not the start of processes and their imports.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

from seerd.core.commands import StopTrial
from seerd.core.events import (
    AgentFact,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialTraining,
)
from seerd.shell.journal import Entry, Journal

ROUNDS = 3
SIDES = {4: 1000, 200: 7000}
SCRIPT = """
import os, time
import seerd, torch
with open(os.path.join(os.environ["SEERD_DIR"], "imported"), "w") as file:
    file.write(str(time.time()))
trial = seerd.trial()
model = torch.nn.Linear(SIDE, SIDE)
trial.track(model=model)
while trial.running():
    time.sleep(0.05)
    trial.report(accuracy=trial.config["x"])
"""
SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
[space]
x = { low = 0.0, high = 1.0 }
[policy]
name = "seer"
eta = 2
p_max = 2
t_min = "27s"
seed = 3
[limits]
deadline = "90s"
budget = "480gpu-s"
[cluster]
gpus = 8
"""


def main() -> None:
    print(json.dumps({f"{mb} MB": measured(side) for mb, side in SIDES.items()}, indent=1))


def measured(side: int) -> dict[str, object]:
    """One run, with so many inputs and outputs of the trials' one layer."""
    with tempfile.TemporaryDirectory() as project, tempfile.TemporaryDirectory() as home:
        (Path(project) / "train.py").write_text(SCRIPT.replace("SIDE", str(side)))
        (Path(project) / "spec.toml").write_text(SPEC)
        command = [
            sys.executable,
            "-c",
            "from seerd import cli; cli.main()",
            "run",
            f"{project}/spec.toml",
            "--home",
            home,
            "--json",
        ]
        subprocess.run(command, capture_output=True, check=True)
        run = next(Path(home).iterdir())
        with Journal.open(run / "journal.db", read_only=True) as journal:
            entries = list(journal.entries())
        moved = costs_of_moving(entries)
        with ThreadPoolExecutor(len(moved)) as pool:
            bare = [max(pool.map(partial(bare_start_s, run), moved)) for _ in range(ROUNDS)]
    starts, restores = zip(*bare, strict=True)
    save = save_s(entries, next(iter(moved)))
    floor_s, least_s = statistics.median(starts) + save, statistics.median(restores) + save
    left = leaving(entries)
    rows = {
        name: {
            "cost_s": round(cost, 3),
            "of_it_save_and_exit_s": round(left[name], 3),
            "ratio": round(cost / floor_s, 3),
            "ratio_to_save_and_restore": round(cost / least_s, 3),
        }
        for name, cost in moved.items()
    }
    return {
        "moved": rows,
        "floor_save_start_restore_s": round(floor_s, 3),
        "floor_save_restore_s": round(least_s, 3),
        "unmoved": pauses(entries),
    }


def stops(entries: list[Entry]) -> dict[str, float]:
    """When each trial's first attempt was asked to stop."""
    asked = [
        (c.trial, e.event.at)
        for e in entries
        for c in e.commands
        if isinstance(c, StopTrial) and c.attempt == 1
    ]
    return dict(reversed(asked))


def costs_of_moving(entries: list[Entry]) -> dict[str, float]:
    """From the boundary to the next training step."""
    at = stops(entries)
    events = [e.event for e in entries]
    return {
        e.trial: e.happened - at[e.trial]
        for e in events
        if isinstance(e, TrialTraining) and e.attempt == 2
    }


def leaving(entries: list[Entry]) -> dict[str, float]:
    """From the boundary until the processes of the first attempt are gone."""
    at = stops(entries)
    return {
        e.event.trial: e.event.happened - at[e.event.trial]
        for e in entries
        if isinstance(e.event, TrialExited) and e.event.attempt == 1
    }


def save_s(entries: list[Entry], trial: str) -> float:
    """The last save of its first attempt."""
    saves = [
        e.event for e in entries if isinstance(e.event, TrialCheckpointed) and e.event.attempt == 1
    ]
    return next(save.save_s for save in reversed(saves) if save.trial == trial)


def bare_start_s(run: Path, trial: str) -> tuple[float, float]:
    """Bare torchrun with two ranks from this trial's checkpoint to its first training step, and the
    part of it after imports.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = next(run.glob(f"instances/*/trials/{trial}/2"))
        about = {**json.loads((folder / "trial.json").read_text()), "checkpoint_every_s": 1000.0}
        (Path(name) / "trial.json").write_text(json.dumps(about))
        (Path(name) / "stop").touch()
        env = {**os.environ, "SEERD_DIR": name, "OMP_NUM_THREADS": "1"}
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
        ]
        began = time.time()
        subprocess.run(
            [*launcher, str(run / "source" / "train.py")], env=env, capture_output=True, check=True
        )
        trains = json.loads((Path(name) / "out.jsonl").read_text().splitlines()[0])["at"]
        return trains - began, trains - float((Path(name) / "imported").read_text())


def pauses(entries: list[Entry]) -> dict[str, dict[str, float]]:
    """Between two reports: the longest pause around the boundary, and the longest at any other
    time.
    """
    boundary = min(stops(entries).values())
    reports = [
        e.event
        for e in entries
        if isinstance(e.event, AgentFact) and isinstance(e.event, TrialReported)
    ]
    moved, rows = costs_of_moving(entries), {}
    for trial in sorted({report.trial for report in reports} - set(moved)):
        times = [report.happened for report in reports if report.trial == trial]
        around = [b - a for a, b in pairwise(times) if boundary - 1 <= b <= boundary + 5]
        others = [b - a for a, b in pairwise(times) if not boundary - 1 <= b <= boundary + 5]
        if times[-1] > boundary + 10 and around:
            rows[trial] = {
                "at_boundary_s": round(max(around), 3),
                "elsewhere_s": round(max(others), 3),
            }
    return rows


if __name__ == "__main__":
    main()
