"""How much of its budget a short run uses, on this machine; prints JSON.

`python bench/short.py [--times 1] [--only NAME...]` makes real runs of a script whose save takes
0.03 s and whose reports take 0.5 s: 100 s on two CPU slots (`must`: 0.96 of the budget), and 20 s
on one slot, which was refused while `t_min` was a minute. `share` is the GPU time that trials held
of what deadline and budget allow, `begins_s` when the first trial began, `asked_s` when trials were
asked to end, `ended_s` when the last had, `past_s` how long the command took beyond its deadline
(less than 0: it ended before).
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

from seerd.core.events import TrialExited, TrialStarted
from seerd.core.verdicts import Closing
from seerd.shell.journal import Journal

SEERD = str(Path(sys.executable).parent / "seerd")
SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
launcher = "python"
args = ["--lr", "{lr}"]
report = "accuracy {number}"
checkpoint = "last.txt"
resume = ["--resume", "{checkpoint}"]
[space]
lr = { low = 1e-3, high = 1.0, log = true }
"""
SCRIPT = """
import os, signal, sys, time

def save():
    time.sleep(0.03)
    with open("part.txt", "w") as file:
        file.write(str(epoch))
    os.replace("part.txt", "last.txt")

def stop(*_):
    save()
    sys.exit(0)

lr, epoch = float(sys.argv[sys.argv.index("--lr") + 1]), 0
if "--resume" in sys.argv:
    epoch = int(open(sys.argv[sys.argv.index("--resume") + 1]).read())
signal.signal(signal.SIGTERM, stop)
while True:
    time.sleep(0.5)
    epoch += 1
    print(f"accuracy {(1 - 0.9 ** epoch) * (1 - abs(lr - 0.1)):.6f}", flush=True)
    save()
"""
RUNS = {"100s-2": (100, 2), "20s-1": (20, 1)}  # name -> seconds, slots


def run(seconds: int, slots: int) -> dict[str, object]:
    """Make one run with a budget of all slots until the deadline."""
    with tempfile.TemporaryDirectory(prefix="seerd-short-") as top:
        folder, home = Path(top) / "project", Path(top) / "home"
        folder.mkdir()
        (folder / "spec.toml").write_text(SPEC)
        (folder / "train.py").write_text(SCRIPT)
        limits = ["--deadline", f"{seconds}s", "--budget", f"{seconds * slots}gpu-s"]
        command = [SEERD, "run", "spec.toml", "--json", *limits, "--set", f"cluster.gpus={slots}"]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "SEERD_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        took_s = time.monotonic() - began
        if done.returncode:
            return {"status": done.returncode, "why": done.stderr[-1000:]}
        result = json.loads(done.stdout.splitlines()[-1])
        with Journal.open(next(home.glob("*/journal.db")), read_only=True) as journal:
            entries = list(journal.entries())
    closing = next(d for entry in entries for d in entry.decided if isinstance(d, Closing))
    asked_s = next(entry.event.at for entry in entries if closing in entry.decided)
    events = [entry.event for entry in entries]
    return {
        "status": done.returncode,
        "share": round(result["gpu_min"] * 60 / (seconds * slots), 4),
        "trials": result["trials"],
        "begins_s": round(next(e.happened for e in events if isinstance(e, TrialStarted)), 2),
        "asked_s": round(asked_s, 2),
        "release_s": closing.release_s,
        "ended_s": round(max(e.happened for e in events if isinstance(e, TrialExited)), 2),
        "past_s": round(took_s - seconds, 2),
    }


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    asked = parser.parse_args()
    runs = {name: [run(*RUNS[name]) for _ in range(asked.times)] for name in asked.only}
    print(json.dumps({"must": {"100s-2": 0.96}, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
