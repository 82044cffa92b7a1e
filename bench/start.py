"""From the decision to start a trial to its first training step, against bare `torchrun` of the
same script: prints JSON.

`python bench/start.py [transformers | lightning]`: the second script makes a small model of
transformers from a configuration; it needs `pip install transformers`. The third imports Lightning,
which cannot be imported beforehand: its first trial with `preload = false`, and with torch imported
beforehand. All is measured in turn on the same machine: the
ratio is the figure, the seconds depend on the machine. The first trial of a run waits until all is
imported (`first`); later ones are forks (`warm`). Also where the time of a start goes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TRIALS = 4
PLAIN = """
import os, time
import seerd, torch
"""
TRANSFORMERS = """
import os, time
import seerd, torch
from transformers import BertConfig, BertForMaskedLM
BertForMaskedLM(BertConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
))
"""
LIGHTNING = """
import os, time
import seerd, torch
from lightning.pytorch import LightningModule, Trainer
"""
TRAINS = """
trial = seerd.trial()
trial.running()
if trial.rank == 0:
    with open(os.environ["BENCH_OUT"], "a") as out:
        name = os.environ.get("SEERD_ATTEMPT", "/bare/").split("/")[1]
        out.write(f"{name} {time.time()}\\n")
for _ in range(5):
    trial.report(accuracy=0.5)
    if not trial.running():
        break
"""
SPEC = """
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
{more}
env = {{ BENCH_OUT = "{out}" }}
[space]
lr = {{ low = 0.1, high = 0.9 }}
[policy]
name = "asha"
trials = {trials}
min_reports = 5
max_reports = 5
p_min = {gpus}
p_max = {gpus}
[limits]
deadline = "100s"
budget = "{budget}gpu-s"
[cluster]
gpus = {gpus}
"""


def tuned(folder: Path, gpus: int, more: str = "") -> list[float]:
    """Seconds from the events that made the core start trials to their first steps, in their
    order. `more` are lines of [train].
    """
    out = folder / "tuned"
    out.unlink(missing_ok=True)
    (folder / "spec.toml").write_text(
        SPEC.format(out=out, gpus=gpus, budget=100 * gpus, trials=TRIALS, more=more)
    )
    home = Path(tempfile.mkdtemp(dir=folder.parent, prefix="seerd-bench-"))
    command = [
        *(sys.executable, "-c", "from seerd import cli; cli.main()", "run"),
        *(str(folder / "spec.toml"), "--home", str(home), "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        sys.exit(done.stderr)
    began = dict(line.split() for line in out.read_text().splitlines())
    return [
        float(began[trial]) - at for trial, at in decided(next(home.iterdir())) if trial in began
    ]


def decided(run: Path) -> Iterator[tuple[str, float]]:
    """Yield each trial with the moment in which its start was decided, seconds since 1970."""
    from seerd.core.commands import StartTrial
    from seerd.shell.journal import Journal

    with Journal.open(run / "journal.db", read_only=True) as journal:
        for entry in journal.entries():
            for command in entry.commands:
                if isinstance(command, StartTrial):
                    yield command.trial, journal.origin + entry.event.at


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
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    began = time.time()
    subprocess.run(
        [*torchrun, "--nproc-per-node", str(gpus), str(folder / "train.py")],
        env=env,
        capture_output=True,
        check=True,
    )
    return float(out.read_text().split()[1]) - began


def took(*code: str) -> float:
    """Seconds of a python process, the median of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, *code], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times), 3)


def row(folder: Path, gpus: int) -> dict[str, float]:
    """Measure starts on so many GPUs."""
    runs, floors = [], []
    for _ in range(ROUNDS):
        runs.append(tuned(folder, gpus))
        floors.append(bare(folder, gpus))
    first = statistics.median(run[0] for run in runs)
    warm = statistics.median(one for run in runs for one in run[1:])
    floor = statistics.median(floors)
    seconds = {"first_s": first, "warm_s": warm, "torchrun_s": floor}
    ratios = {"first_ratio": first / floor, "ratio": warm / floor}
    return {name: round(value, 3) for name, value in (seconds | ratios).items()}


def left_to_trials(folder: Path) -> dict[str, float]:
    """Measure the first start where a package cannot be imported beforehand."""
    runs = [(tuned(folder, 1, "preload = false")[0], tuned(folder, 1)[0]) for _ in range(ROUNDS)]
    cold, warm = (round(statistics.median(each), 3) for each in zip(*runs, strict=True))
    return {"cold_s": cold, "warm_s": warm}


def main() -> None:
    chosen = {"transformers": TRANSFORMERS, "lightning": LIGHTNING}
    script = chosen.get(sys.argv[-1], PLAIN) + TRAINS
    if sys.argv[-1] == "lightning":
        with tempfile.TemporaryDirectory() as name:
            Path(name, "train.py").write_text(script)
            print(json.dumps({"lightning": left_to_trials(Path(name)), "rounds": ROUNDS}))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(script)
        rows = {gpus: row(folder, gpus) for gpus in (1, 2)}
    parts = {
        "python": took("-c", "pass"),
        "import torch (each worker)": took("-c", "import torch, torch.distributed"),
        "import torch.distributed.run (torchrun itself)": took(
            "-c", "import torch.distributed.run"
        ),
    }
    print(json.dumps({"gpus": rows, "parts_s": parts, "rounds": ROUNDS}, indent=1))


if __name__ == "__main__":
    main()
