"""What a save costs a trial: its training thread, the time until the checkpoint is published, and
host memory; what reading one costs; and whether the best report is always saved. Prints JSON.

Each figure stands beside a floor of the same round: a copy of the state in memory (`clone`), and
`cp` with `fsync` of the checkpoint's own bytes, while the trial trains as it did when it saved, on
one core of the machine. Memory is that of the trial's process: while it
saves its peak resident size (VmHWM), while it reads its anonymous and shared memory, since pages of
the mapped file can be dropped at any time; both above what it had before, as parts of the state.

`SAVE_MB`, `MEMORY_MB`: sizes of the states; `ROUNDS`: saves that are measured; `DEVICE`: where the
states are and training computes (`cpu`, `cuda`); `RUNS`: trials with random reports, of which none
may end with a best report that is in no checkpoint.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SAVE_MB = int(os.environ.get("SAVE_MB", "200"))
MEMORY_MB = int(os.environ.get("MEMORY_MB", "1024"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
RUNS = int(os.environ.get("RUNS", "200"))
DEVICE = os.environ.get("DEVICE", "cpu")
TENSORS = 16
STATE = f"""
import json, os, select, sys, time
import seerd, torch
torch.set_num_threads(1)
class State:
    def __init__(self, mb):
        size = mb * 2**20 // 4 // {TENSORS}
        names = [f"w{{n}}" for n in range({TENSORS})]
        self.tensors = {{name: torch.rand(size, device=os.environ["DEVICE"]) for name in names}}
    def state_dict(self):
        return dict(self.tensors)
    def load_state_dict(self, state):
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])
"""
SAVES = """
trial = seerd.trial()
state = State(int(sys.argv[1]))
trial.track(state=state)
out, save = (os.path.join(os.environ["SEERD_DIR"], name) for name in ("out.jsonl", "save"))
def steps(until):
    done, x = 0, torch.rand(64, 64, device=os.environ["DEVICE"])
    began = time.monotonic()
    while not until():
        for _ in range(100):
            x = torch.tanh(x @ x)
        x.sum().item()
        done += 1
    return done / (time.monotonic() - began)
def saved():
    return open(out).read().count('"checkpoint"')
trial.running()
ends_at = time.monotonic() + 2
alone = steps(lambda: time.monotonic() > ends_at and saved() == 0)
for number in range(int(sys.argv[2]) + 1):
    trial.report(accuracy=1.0)
    open(save, "w").close()
    os.sync()
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert trial.running()
    pause_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    beside = steps(lambda: saved() > number)
    line = json.loads(open(out).read().splitlines()[-1])
    published_s = line["since_boot"] - began
    began = time.monotonic()
    copy = {name: tensor.to("cpu", copy=True) for name, tensor in state.tensors.items()}
    copy_s = time.monotonic() - began
    del copy
    row = {"pause_s": pause_s, "published_s": published_s, "copy_s": copy_s}
    print(json.dumps({**row, "training": beside / alone, "name": line["name"]}), flush=True)
    steps(lambda: select.select([sys.stdin], [], [], 0)[0])  # as while it was written
    sys.stdin.readline()
os._exit(0)
"""
PEAK = """
trial = seerd.trial()
state = State(int(sys.argv[1]))
trial.track(state=state)
out = os.path.join(os.environ["SEERD_DIR"], "out.jsonl")
def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
trial.running()
trial.report(accuracy=1.0)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
assert trial.running()
while '"checkpoint"' not in open(out).read():
    time.sleep(0.01)
print(json.dumps({"above": status("VmHWM") - before}), flush=True)
os._exit(0)
"""
READS = """
state = State(int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
trial = seerd.trial()
trial.track(state=state)
assert trial.epoch > 0
print(json.dumps({"read_s": time.monotonic() - began}), flush=True)
sys.stdin.readline()
os._exit(0)
"""
REPORTS = """
import os, random, time, seerd, torch
torch.set_num_threads(1)
draw = random.Random(int(os.environ["DRAW"]))
trial = seerd.trial()
class Counter:
    at = torch.zeros(1)
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state): self.at.copy_(state["at"])
counter = Counter()
trial.track(counter=counter)
stops = draw.random() < 0.5
units, ends = draw.choice([0.0, 0.001, 0.02]), draw.randint(1, 60)
while trial.running():
    if trial.epoch == ends and not stops:
        break
    if trial.epoch == ends:
        open(os.path.join(os.environ["SEERD_DIR"], "stop"), "w").close()
    time.sleep(draw.random() * units)
    counter.at += 1
    if draw.random() < 0.7:
        trial.report(accuracy=draw.random(), at=float(counter.at))
"""


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("WHERE")) as folder:
        where = Path(folder)
        told = {**saving(where, SAVE_MB, ROUNDS), **memory(where, MEMORY_MB), **best(where)}
    print(json.dumps(told, indent=1))


def attempt(folder: Path, device: str = DEVICE, **more: Any) -> dict[str, str]:
    """The folder of an attempt; the environment of its script."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"version": 1, "run": "r", "trial": "t1", "attempt": 1, "config": {}, "gpus": 1}
    about |= {"allocations": [1], "metric": "accuracy", "mode": "max", "seed": 0}
    about |= {"checkpoints": str(folder / "checkpoints"), "checkpoint_every_s": 1e6}
    (folder / "trial.json").write_text(json.dumps({**about, **more}))
    path = ":".join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    paths = {"SEERD_DIR": str(folder), "PYTHONPATH": path}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1", "DEVICE": device}


@contextlib.contextmanager
def started(script: str, env: dict[str, str], *args: object) -> Iterator[subprocess.Popen[str]]:
    """Start a script; it is killed at the end of `with`."""
    command = [sys.executable, "-c", STATE + script, *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def saving(folder: Path, state_mb: int, rounds: int, device: str = DEVICE) -> dict[str, Any]:
    """Pause and publication, the first apart: it takes the memory that is kept."""
    rows = []
    with started(SAVES, attempt(folder / "saves", device), state_mb, rounds) as process:
        for _ in range(rounds + 1):
            row = told(process)
            row["cp_s"] = copied_s(folder / "saves" / "checkpoints" / f"{row['name']}.pt")
            rows.append(row)
            go_on(process)

    def ratio(over: str, below: str) -> float:
        return round(statistics.median(row[over] / row[below] for row in rows[1:]), 2)

    seconds = {
        name: round(statistics.median(row[name] for row in rows[1:]), 3)
        for name in ("pause_s", "copy_s", "published_s", "cp_s")
    }
    return {
        "state_mb": state_mb,
        "names": [row["name"] for row in rows],
        **seconds,
        "pause_to_copy": ratio("pause_s", "copy_s"),
        "first_pause_to_copy": round(rows[0]["pause_s"] / rows[0]["copy_s"], 2),
        "published_to_cp": ratio("published_s", "cp_s"),
        "training_while_written": round(statistics.median(row["training"] for row in rows[1:]), 2),
    }


def copied_s(path: Path) -> float:
    """Seconds of cp and fsync."""
    to = path.with_suffix(".copy")
    os.sync()
    began = time.monotonic()
    subprocess.run(["cp", path, to], check=True)
    descriptor = os.open(to, os.O_RDONLY)
    os.fsync(descriptor)
    took_s = time.monotonic() - began
    os.close(descriptor)
    to.unlink()
    return took_s


def memory(folder: Path, state_mb: int, device: str = DEVICE) -> dict[str, Any]:
    """The most that saving and reading take, as parts of the state."""
    env, size = attempt(folder / "memory", device), state_mb * 2**20
    with started(PEAK, env, state_mb) as process:
        saved = told(process)["above"]
    with started(READS, env, state_mb) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before, peak = anonymous(process.pid), 0
        go_on(process)
        while not select.select([process.stdout], [], [], 0.001)[0]:
            peak = max(peak, anonymous(process.pid))
        read_s = told(process)["read_s"]
    return {
        "memory_mb": state_mb,
        "saving_takes": round(saved / size, 3),
        "reading_takes": round(max(0, peak - before) / size, 3),
        "read_s": round(read_s, 2),
    }


def anonymous(pid: int) -> int:
    """Bytes of a process that belong to no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(
        int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem"))
    )


def best(folder: Path) -> dict[str, Any]:
    """Trials with random reports: how many end without a checkpoint of the best of them."""
    import torch

    missing = 0
    for number in range(RUNS):
        home = folder / f"best-{number}"
        env = attempt(home, checkpoint_every_s=random.Random(number).choice([0.0, 0.05, 10.0]))
        pid = os.fork()
        if pid == 0:
            become(env, number)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"run {number} failed"
        lines = map(json.loads, (home / "out.jsonl").read_text().splitlines())
        reports = [line["metrics"] for line in lines if line["kind"] == "report"]
        wanted = max(reports, key=lambda metrics: metrics["accuracy"], default=None)
        kept = {
            manifest["metrics"]["accuracy"]: path
            for path in (home / "checkpoints").glob("*.json")
            if (manifest := json.loads(path.read_text()))
        }
        if wanted is not None:
            path = kept.get(wanted["accuracy"])
            state = path and torch.load(path.with_suffix(".pt"), weights_only=True)["state"]
            missing += not state or float(state["counter"]["at"]) != wanted["at"]
    return {"runs": RUNS, "best_in_no_checkpoint": missing}


def become(env: dict[str, str], number: int) -> None:
    """Be the process of a trial; does not return."""
    from seerd.agent.warm.script import Script

    atexit._clear()  # noqa: SLF001 - else this process removes the folder when it ends
    try:
        os.environ.update({**env, "DRAW": str(number)})
        sys.path.insert(0, str(ROOT))
        script = Path(env["SEERD_DIR"]) / "train.py"
        script.write_text(REPORTS)
        Script([sys.executable, str(script)]).run()
    finally:  # only where it has failed
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
