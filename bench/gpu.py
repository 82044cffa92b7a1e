"""What can only be seen where there is a GPU: prints JSON. `make gpu`, or `python bench/gpu.py
[PART ...]`; all parts take less than ten minutes on one GPU, and more GPUs are not needed.

    demo      the example on CUDA under the default policy: share of the GPU time that was trained
    resnet    the same with a ResNet on images that are drawn
    start     a start: by torchrun, and warm; torch and CUDA's context apart
    move      a state of 1 GB: its save, move and restore
    killed    an attempt that is killed: how long its memory stays taken, and what is told of it
    hang      a rank that hangs inside a CUDA kernel: how long until its attempt has ended
    profile   `seerd profile` on one GPU
    command   a CUDA program that is not Python's (`launcher = "command"`)

A part that fails says so in its place, and the exit status is 1. Where there is no GPU nothing is
run, and the exit status is 2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SEERD = [sys.executable, "-c", "from seerd import cli; cli.main()"]
LONGEST_S = 200.0
HEAD = """
name = "gpu"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "{script}"
launcher = "{launcher}"
[space]
lr = {{ low = 0.001, high = 0.1, log = true }}
[limits]
deadline = "{deadline}"
budget = "{deadline_gpu}"
[cluster]
gpus = 1
"""
RESNET = """
import torch, seerd
from torch import nn
trial = seerd.trial()

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
    def forward(self, x):
        return torch.relu(x + self.body(x))

torch.manual_seed(0)
images, labels = torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,))
images += labels[:, None, None, None] / 10
images, labels = images.to(trial.device), labels.to(trial.device)
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *(Block(64) for _ in range(8)),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(trial.device)
optimizer = torch.optim.SGD(model.parameters(), lr=trial.config["lr"], momentum=0.9)
trial.track(model=model, optimizer=optimizer)
while trial.running():
    for at in range(0, 3584, 256):
        loss = nn.functional.cross_entropy(model(images[at:at + 256]), labels[at:at + 256])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        right = (model(images[3584:]).argmax(1) == labels[3584:]).float().mean()
    trial.report(accuracy=right.item())
"""
STARTS = """
import os, time
began = time.time()
import torch, seerd
imported = time.time()
trial = seerd.trial()
torch.zeros(1, device="cuda").item()
context = time.time()
trial.running()
with open(os.environ["BENCH_OUT"], "a") as out:
    out.write(f"{began} {imported} {context}\\n")
for _ in range(3):
    trial.report(accuracy=0.5)
    if not trial.running():
        break
"""
LARGE = """
import os, time, torch, seerd
trial = seerd.trial()
model = torch.nn.Linear(16384, 16384, bias=False).to(trial.device)  # 1 GiB
trial.track(model=model)
while trial.running():
    time.sleep(0.2)
    trial.report(accuracy=trial.config["lr"])
"""
HOLDS = """
import time, torch, seerd
trial = seerd.trial()
memory = torch.zeros(4 << 30, dtype=torch.uint8, device="cuda")
while trial.running():
    print("up", flush=True)
    time.sleep(0.1)
    trial.report(accuracy=0.5)
"""
KERNEL = """
import torch, seerd
trial = seerd.trial()
n = 0
while trial.running():
    if n == 40 and trial.epoch >= 40 and not trial.config.get("again"):
        torch.cuda._sleep(1 << 62)
        torch.cuda.synchronize()
    torch.zeros(1, device="cuda").item()
    trial.report(accuracy=0.5)
    n += 1
"""
PROGRAM = """#!/bin/sh
exec nvidia-smi --query-gpu=uuid --format=csv,noheader -i "$CUDA_VISIBLE_DEVICES"
"""


def spec(folder: Path, script: str, deadline_s: int, launcher: str = "torchrun") -> Path:
    """Write a spec for this script into the folder."""
    name = "train.py" if launcher != "command" else "program"
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    path = folder / "spec.toml"
    limits = {"deadline": f"{deadline_s}s", "deadline_gpu": f"{deadline_s}gpu-s"}
    path.write_text(HEAD.format(script=name, launcher=launcher, **limits))
    return path


def run(path: Path, folder: Path, *words: str) -> dict[str, Any]:
    """Run a spec; return what `seerd run --json` tells in the end."""
    home = {"SEERD_HOME": str(folder / "home"), "BENCH_OUT": str(folder / "out")}
    done = subprocess.run(
        [*SEERD, "run", str(path), "--json", *words],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-800:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def entries(folder: Path) -> list[Any]:
    """Read the journal of the run in this folder."""
    from seerd.shell.journal import Journal

    path = next((folder / "home").glob("*/journal.db"))
    with Journal.open(path, read_only=True) as journal:
        return list(journal.entries())


def trained(told: dict[str, Any]) -> dict[str, Any]:
    """What of a run's result tells how well the GPU was used."""
    share = told["gpu_min"] / told["budget_gpu_min"]
    return {"best": told["best"], "trials": told["trials"], "share of the budget": share}


def demo(folder: Path) -> dict[str, Any]:
    example = folder / "digits"
    shutil.copytree(ROOT / "examples" / "digits", example)
    words = ("--set", "cluster.gpus=1", "--set", "limits.deadline=90s")
    return trained(run(example / "spec.toml", folder, *words, "--set", "limits.budget=90gpu-s"))


def resnet(folder: Path) -> dict[str, Any]:
    return trained(run(spec(folder, RESNET, 90), folder))


def start(folder: Path) -> dict[str, Any]:
    """Attempts of a run, and bare torchrun beside them."""
    run(spec(folder, STARTS, 40), folder)
    ours = [list(map(float, line.split())) for line in (folder / "out").read_text().splitlines()]
    from seerd.core.commands import StartTrial

    decided = [e.event.at for e in entries(folder) for c in e.commands if isinstance(c, StartTrial)]
    out = folder / "bare"
    env = {**os.environ, "BENCH_OUT": str(out), "SEERD_SPEC": str(folder / "spec.toml")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "train.py"]
    before = time.time()
    subprocess.run(torchrun, env=env, cwd=folder, capture_output=True, check=True)
    began, imported, context = map(float, out.read_text().split())
    return {
        "torchrun_s": {
            "until the script": began - before,
            "torch": imported - began,
            "CUDA": context - imported,
            "all": context - before,
        },
        "warm_s": [
            {"torch": imported - began, "CUDA": context - imported}
            for began, imported, context in ours[1:]
        ],
        "starts": len(decided),
    }


def move(folder: Path) -> dict[str, Any]:
    """Turns on one GPU: trials leave it to others, and come back."""
    from seerd.core.events import TrialCheckpointed, TrialExited, TrialTraining

    run(spec(folder, LARGE, 100), folder)
    events = [e.event for e in entries(folder)]
    saves = [e.save_s for e in events if isinstance(e, TrialCheckpointed)]
    left = {e.trial: e.happened for e in events if isinstance(e, TrialExited)}
    back = [
        (e.trial, e.attempt, e.happened)
        for e in events
        if isinstance(e, TrialTraining) and e.attempt > 1
    ]
    return {"save_s": saves, "left": left, "came back": back}


def killed(folder: Path) -> dict[str, Any]:
    """Kill the rank that holds 4 GiB, and watch `nvidia-smi` and the run's notes."""
    watched: dict[str, float] = {}

    def kill() -> None:
        rank = _rank(folder)
        os.kill(rank, 9)
        at = time.time()
        while any(pid == rank for pid in _pids_on_gpu()):
            time.sleep(0.05)
        watched["memory_free_after_s"] = time.time() - at

    told = _beside(spec(folder, HOLDS, 60), folder, kill)
    return {**watched, **trained(told)}


def hang(folder: Path) -> dict[str, Any]:
    from seerd.core.events import TrialExited

    told = run(spec(folder, KERNEL, 90), folder)
    ends = [e.event for e in entries(folder) if isinstance(e.event, TrialExited)]
    crashed = [(e.trial, e.happened, e.cause) for e in ends if e.cause == "crashed"]
    return {"crashed": crashed, **trained(told)}


def profile(folder: Path) -> dict[str, Any]:
    path = spec(folder, RESNET, 60)
    words = ["profile", str(path), "--json"]
    home = {"SEERD_HOME": str(folder / "home")}
    done = subprocess.run(
        [*SEERD, *words],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_S,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def command(folder: Path) -> dict[str, Any]:
    return trained(run(spec(folder, PROGRAM, 30, "command"), folder))


def _beside(path: Path, folder: Path, work: Callable[[], None]) -> dict[str, Any]:
    """Run a spec, and do this beside it."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, path, folder)
        work()
        return running.result()


def _rank(folder: Path) -> int:
    """Wait for the process of a trial that is on the GPU."""
    end = time.time() + LONGEST_S
    while time.time() < end:
        for pid in _pids_on_gpu():
            shown = Path(f"/proc/{pid}/environ")
            if shown.exists() and str(folder).encode() in shown.read_bytes():
                return pid
        time.sleep(0.2)
    raise RuntimeError("no trial has come to the GPU")


def _pids_on_gpu() -> Iterator[int]:
    listed = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    yield from (int(line) for line in listed.stdout.split() if line.isdecimal())


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    part.__name__: part for part in (demo, resnet, start, move, killed, hang, profile, command)
}


def tried(part: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Do one part in a folder of its own; what fails is told in its place."""
    began = time.time()
    with tempfile.TemporaryDirectory() as name:
        try:
            told = part(Path(name))
        except Exception as error:  # noqa: BLE001
            told = {"failed": f"{error!r:.2000}"}
    print(f"{part.__name__}: {time.time() - began:.0f}s", file=sys.stderr, flush=True)
    return {**told, "seconds": round(time.time() - began, 1)}


def main() -> int:
    if shutil.which("nvidia-smi") is None:
        print("there is no GPU here: nothing was run", file=sys.stderr)
        return 2
    cards = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    wanted = sys.argv[1:] or list(PARTS)
    told = {name: tried(PARTS[name]) for name in wanted}
    print(json.dumps({"cards": cards.splitlines(), **told}, indent=1))
    return int(any("failed" in one for one in told.values()))


if __name__ == "__main__":
    sys.exit(main())
