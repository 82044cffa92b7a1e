"""From an instance that runs to its first training step, eight 4-GPU instances of the rig at once:
prints JSON. Takes root, as the rig does.

The rig is as slow as EC2 is. The figure is what is left when that is taken away (the boot until
users may log in), and the start of the training process itself: as long as eight of them take that
are started at once, by nobody, on the same machine. The program has no torch. The parts are
medians; `spread_s` is the first and the last instance. INSTANCES=1 starts one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from eight import INSTANCES, events, running, trainings

from bench.testbed.ec2_world import PROGRAMS, Coordinator
from bench.testbed.rig.timing import Timing
from seerd.core.events import InstanceReady, TrialStarted

AGENTS = ".cache/seerd/agents"


def bare() -> float:
    """Seconds until the program trains, the median of as many as there are instances, all at
    once.
    """
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(n) for n in range(INSTANCES)]
        about = {"trial": "t0001", "config": {"lr": 0.3}}
        for folder in folders:
            folder.mkdir()
            (folder / "trial.json").write_text(json.dumps({**about, "checkpoints": str(folder)}))
        began = time.time()
        command = [sys.executable, str(PROGRAMS / "trainer.py")]
        processes = [
            subprocess.Popen(
                command, env={**os.environ, "SEERD_DIR": str(f)}, stdout=subprocess.DEVNULL
            )
            for f in folders
        ]
        while not all((folder / "out.jsonl").exists() for folder in folders):
            time.sleep(0.01)
        times = [
            json.loads((f / "out.jsonl").read_text().splitlines()[0])["at"] - began for f in folders
        ]
        for folder, process in zip(folders, processes, strict=True):
            (folder / "stop").touch()
            process.wait()
        return statistics.median(times)


def moments(coordinator: Coordinator) -> list[dict[str, float]]:
    """Of each instance, in wall clock: what had happened by when."""
    found, origin = events(coordinator)
    training = trainings(found)
    ready = {event.instance: event for event in found if isinstance(event, InstanceReady)}
    started = {event.instance: event for event in found if isinstance(event, TrialStarted)}
    rows = []
    for one in coordinator.live():
        root = Path(f"/proc/{one.pid}/root")
        home = root / "home/seerd"
        own = home / ".seerd" / coordinator.run_folder.name
        rows.append(
            {
                "running": one.since or 0.0,
                "sshd": (root / "var/lib/cloud/instance/boot-finished").stat().st_mtime,
                "logged in, agent's zip there": max(
                    path.stat().st_mtime for path in (home / AGENTS).iterdir()
                ),
                "source there": (own / "source.json").stat().st_mtime,
                "agent": (own / "agent.pid").stat().st_mtime,
                "prepared": origin + ready[one.id].at,
                "process": origin + started[one.id].happened,
                "training": origin + training[one.id].happened,
            }
        )
    return rows


def parts(rows: list[dict[str, float]]) -> dict[str, float]:
    """Seconds from each moment to the next, the median of all instances."""
    names = list(rows[0])
    return {
        f"{before} -> {after}": round(
            statistics.median(row[after] - row[before] for row in rows), 3
        )
        for before, after in pairwise(names)
    }


def main() -> None:
    floor_s = bare()
    with running() as coordinator:
        rows = moments(coordinator)
    took = sorted(row["training"] - row["running"] for row in rows)
    slow = Timing()
    aws_s = slow.boot_s + slow.nologin_s
    told = {
        "instances": len(rows),
        "running_to_training_s": round(statistics.median(took), 3),
        "spread_s": [round(took[0], 3), round(took[-1], 3)],
        "bare_process_s": round(floor_s, 3),
        "ec2_s": aws_s,
        "beyond_both_s": round(statistics.median(took) - aws_s - floor_s, 3),
        "worst_beyond_both_s": round(took[-1] - aws_s - floor_s, 3),
        "parts_s": parts(rows),
        "load": [round(load, 2) for load in os.getloadavg()],
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
