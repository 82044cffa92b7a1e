"""A whole run of examples/digits: the daemon's CPU and memory, and what a stage boundary costs. Prints JSON.

An unmoved trial's cost is the longest pause between its reports around the boundary, beside the longest elsewhere. A moved trial's
is the time from the boundary to its next training step, beside its own save, process start and restore alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil

from seerd.core.commands import StopTrial
from seerd.core.events import AgentFact, TrialCheckpointed, TrialReported, TrialStarted, TrialTraining
from seerd.shell.journal import Entry, Journal

ROOT = Path(__file__).parent.parent
LIMITS = ["--deadline", os.environ.get("DEADLINE", "3m"), "--budget", os.environ.get("BUDGET", "16gpu-min")]


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        command = [
            sys.executable,
            "-c",
            "import cli; cli.main()",
            "run",
            str(ROOT / "examples/digits/spec.toml"),
            *LIMITS,
        ]
        began = time.monotonic()
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            [*command, "--home", home, "--json"], stdout=subprocess.PIPE, stderr=quiet, text=True
        ) as process:
            seen = watch(process.pid)
            out = process.stdout.read() if process.stdout else ""
        wall_s = time.monotonic() - began
        with Journal.open(next(Path(home).iterdir()) / "journal.db", read_only=True) as journal:
            entries = list(journal.entries())
    result = json.loads(out.splitlines()[-1])
    told = {
        "daemon_cpu_share": round(seen["cpu_s"] / wall_s, 4),
        "daemon_cpu_s": round(seen["cpu_s"], 2),
        "daemon_peak_mb": round(seen["rss"] / 2**20, 1),
        "events": len(entries),
        "elapsed_s": result["elapsed_s"],
        "budget_used": round(result["gpu_min"] / result["budget_gpu_min"], 3),
        "metric": result["best"]["metric"],
        **boundary(entries),
    }
    print(json.dumps(told, indent=1))


def watch(pid: int) -> dict[str, float]:
    """CPU seconds and the most resident bytes of a process without its children, updated while it lives."""
    seen = {"cpu_s": 0.0, "rss": 0.0}

    def look() -> None:
        with contextlib.suppress(psutil.Error):
            while True:
                process = psutil.Process(pid)
                times = process.cpu_times()
                seen["cpu_s"] = max(seen["cpu_s"], times.user + times.system)
                seen["rss"] = max(seen["rss"], process.memory_info().rss)
                time.sleep(0.2)

    threading.Thread(target=look, daemon=True).start()
    return seen


def boundary(entries: list[Entry]) -> dict[str, object]:
    """Costs at the first stage boundary, by trial."""
    facts = [e.event for e in entries if isinstance(e.event, AgentFact)]
    stops = {c.trial: e.event.at for e in entries for c in e.commands if isinstance(c, StopTrial)}
    again = {f.trial: f.happened for f in facts if isinstance(f, TrialTraining) and f.attempt == 2}
    first = min((at for trial, at in stops.items() if trial in again), default=None)
    at = next((e.event.at for e in entries for c in e.commands if isinstance(c, StopTrial)), None)
    moved, unmoved = {}, {}
    for trial, trained_at in again.items():
        floor = start_s(facts, trial, 2) + save_s(facts, trial)
        cost = trained_at - next(
            e.event.at for e in entries for c in e.commands if isinstance(c, StopTrial) and c.trial == trial
        )
        moved[trial] = {
            "cost_s": round(cost, 2),
            "save_start_restore_s": round(floor, 2),
            "ratio": round(cost / floor, 3),
        }
    for trial in {f.trial for f in facts if isinstance(f, TrialReported)} - set(again):
        times = [f.happened for f in facts if isinstance(f, TrialReported) and f.trial == trial]
        gaps = [(b - a, a <= (at or 0) <= b) for a, b in pairwise(times)]
        around = [gap for gap, there in gaps if there]
        if around and at is not None and times[-1] > at + 5:
            unmoved[trial] = {
                "gap_at_boundary_s": round(max(around), 3),
                "longest_other_gap_s": round(max(g for g, t in gaps if not t), 3),
            }
    return {"moved": moved, "unmoved": unmoved, "boundary_at_s": first and round(first, 2)}


def start_s(facts: list[AgentFact], trial: str, attempt: int) -> float:
    """From the processes' start to the first training step, restore included."""
    started = next(
        f.happened for f in facts if isinstance(f, TrialStarted) and f.trial == trial and f.attempt == attempt
    )
    return (
        next(f.happened for f in facts if isinstance(f, TrialTraining) and f.trial == trial and f.attempt == attempt)
        - started
    )


def save_s(facts: list[AgentFact], trial: str) -> float:
    return next(
        (f.save_s for f in reversed(facts) if isinstance(f, TrialCheckpointed) and f.trial == trial and f.attempt == 1),
        0.0,
    )


if __name__ == "__main__":
    main()
