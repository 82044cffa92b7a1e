"""From the decision to start a trial to its first training step, against bare `torchrun` of the
same script: prints JSON.

Both are measured in turn on the same machine: the ratio is the figure, the seconds depend on the
machine. Also where the time of a start goes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SCRIPT = """
import os, time
import seerd
trial = seerd.trial()
trial.running()
if trial.rank == 0:
    open(os.environ["BENCH_OUT"], "a").write(f"{time.time()}\\n")
for _ in range(50):
    trial.report(accuracy=0.5)
    time.sleep(0.1)
    if not trial.running():
        break
"""
SPEC = """
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
env = {{ BENCH_OUT = "{out}" }}
[space]
lr = [0.1]
[policy]
p_min = {gpus}
p_max = {gpus}
t_min = "20s"
[limits]
deadline = "30s"
budget = "{budget}gpu-s"
[cluster]
gpus = {gpus}
"""


def tuned(folder: Path, gpus: int) -> float:
    """Seconds from the event that made the core start the trial to the first step."""
    from seerd.core.commands import StartTrial
    from seerd.shell.journal import Journal

    out = folder / "tuned"
    out.unlink(missing_ok=True)
    (folder / "spec.toml").write_text(SPEC.format(out=out, gpus=gpus, budget=30 * gpus))
    home = Path(tempfile.mkdtemp(dir=folder.parent, prefix="seerd-bench-"))
    command = [
        sys.executable,
        "-c",
        "from seerd import cli; cli.main()",
        "run",
        str(folder / "spec.toml"),
        "--home",
        str(home),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        sys.exit(done.stderr)
    with Journal.open(next(home.iterdir()) / "journal.db", read_only=True) as journal:
        decided = next(
            e.event.at
            for e in journal.entries()
            if any(isinstance(c, StartTrial) for c in e.commands)
        )
        return float(out.read_text().split()[0]) - journal.origin - decided


def bare(folder: Path, gpus: int) -> float:
    """Seconds from starting torchrun to the first step."""
    out = folder / "bare"
    out.unlink(missing_ok=True)
    env = {
        **os.environ,
        "BENCH_OUT": str(out),
        "OMP_NUM_THREADS": "1",
        "SEERD_SPEC": str(folder / "spec.toml"),
    }
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(gpus),
    ]
    began = time.time()
    subprocess.run([*launcher, str(folder / "train.py")], env=env, capture_output=True, check=True)
    return float(out.read_text().split()[0]) - began


def took(*code: str) -> float:
    """Seconds of a python process, the median of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, *code], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        rows = {}
        for gpus in (1, 2):
            pairs = [(tuned(folder, gpus), bare(folder, gpus)) for _ in range(ROUNDS)]
            ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
            rows[gpus] = {
                "seerd_s": round(ours, 3),
                "torchrun_s": round(floor, 3),
                "ratio": round(ours / floor, 3),
            }
    parts = {
        "python": took("-c", "pass"),
        "import torch (each worker)": took("-c", "import torch, torch.distributed"),
        "import torch.distributed.run (torchrun itself)": took(
            "-c", "import torch.distributed.run"
        ),
    }
    print(
        json.dumps(
            {
                "gpus": rows,
                "parts_s": {part: round(s, 3) for part, s in parts.items()},
                "rounds": ROUNDS,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
