"""What each part of `bench/gpu.py` measures: facts, which `checks.py` judges.

Each function returns an object that JSON has words for. What cannot be measured raises.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench import saves as save_bench
from bench.on_gpu.ground import Ground, PartError, Run, mark_in
from seerd.core.events import (
    InstanceComputed,
    InstanceNoticed,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialTraining,
)

Facts = dict[str, Any]
PARTS_OF_GPU = 4
GREEDY = "t0001"
MPS = "nvidia-cuda-mps-control"
FREE_S = 10.0  # seconds after which memory that is still held is not freed any more
HELD, SEEN_S = 0.6, 2.0
SHORT = 'policy.t_min="2s"'  # `seer+` needs none
ALONE = ('policy.name="random"', "policy.trials=1", SHORT)


def start(ground: Ground) -> Facts:
    """A run of 20 s, whose later trials are forks; bare torchrun of the same script before it."""
    spec = ground.project("starts.py")
    torchrun = ("-m", "torch.distributed.run", "--standalone")
    env = {**ground.env, "SEERD_SPEC": str(spec)}
    before = time.time()
    subprocess.run(
        [sys.executable, *ground.sized(torchrun, ()), "train.py"],
        env=env,
        cwd=spec.parent,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=ground.left_s,
    )
    ((began, imported, context),) = _rows(ground)
    bare = {
        "import_s": imported - began,
        "context_s": context - imported,
        "all_s": context - before,
    }
    ground.out.unlink()
    preload = f"train.preload={json.dumps(ground.sized(['torch'], ['torch', 'numpy']))}"
    few = ('policy.name="asha"', "policy.trials=4", SHORT)
    rungs = ("policy.max_reports=3", "policy.min_reports=3")
    run = ground.run(spec, ground.sized(20, 60), ground.launcher(), preload, *few, *rungs)
    warm = [
        {"import_s": imported - began, "context_s": context - imported}
        for began, imported, context in _rows(ground)
    ]
    return {**_outcome(run), "bare": bare, "warm": warm}


def saves(ground: Ground) -> Facts:
    """A state of 1 GiB on the device: the pause of its saves, and when they are published."""
    mib, rounds = ground.sized((1024, 5), (8, 2))
    device = ground.sized("cuda", "cpu")
    return {"rounds": rounds, **save_bench.saving(ground.folder, mib, rounds, device)}


def memory(ground: Ground) -> Facts:
    """A state of 4 GiB on the device: host memory that saving and reading it take."""
    mib, device = ground.sized(4096, 32), ground.sized("cuda", "cpu")
    return save_bench.memory(ground.folder, mib, device)


def best(ground: Ground) -> Facts:
    """Random reports: whether the model that is handed back is that of the best of them."""
    spec = ground.project("best.py")
    few = ground.sized((), ("policy.trials=2", "policy.max_reports=12"))
    run = ground.run(spec, ground.sized(20, 60), ground.launcher(), *few)
    reports = run.each(TrialReported)
    top = max(reports, key=lambda report: report.metric or 0.0)
    handed = run.result["best"]
    return {
        **_outcome(run),
        "reports": len(reports),
        "best_report": {"trial": top.trial, "accuracy": top.metric, "mark": top.others["mark"]},
        "handed_back": {
            "trial": handed["trial"],
            "accuracy": handed["metric"],
            "mark": mark_in(handed["checkpoint"]),
        },
    }


def share(ground: Ground) -> Facts:
    """100 s of the network: the share of the budget that trials trained, and of the GPU's time."""
    spec = ground.project("network.py")
    few = ground.sized((), ("policy.trials=2", "policy.max_reports=10"))
    run = ground.run(spec, ground.sized(100, 60), ground.launcher(), *few)
    computed = [share for event in run.each(InstanceComputed) for share in event.shares]
    return {
        **_outcome(run),
        "reports": len(run.each(TrialReported)),
        "budget_s": run.result["budget_gpu_min"] * 60,
        "used_s": run.result["gpu_min"] * 60,
        "share": run.result["gpu_min"] / run.result["budget_gpu_min"],
        "computed": computed,
    }


def move(ground: Ground) -> Facts:
    """Turns on one GPU: each trial leaves with a state of 1 GiB, and the better one comes back."""
    ground.env["BENCH_MIB"] = ground.sized("1024", "64")
    rungs = ('policy.name="sha"', "policy.trials=2", "policy.eta=2", SHORT)
    reports = ("policy.min_reports=3", "policy.max_reports=30")
    first = "policy.start=[{ lr = 0.1 }, { lr = 0.01 }]"
    spec = ground.project("moves.py")
    run = ground.run(spec, ground.sized(40, 60), ground.launcher(), *rungs, *reports, first)
    made: dict[str, int] = {}
    left, back = [], []
    for event in run.events:
        match event:
            case TrialReported():
                made[event.trial] = event.reports
            case TrialExited():
                row = {"trial": event.trial, "attempt": event.attempt, "at_s": event.happened}
                left.append({**row, "cause": event.cause, "reports": made.get(event.trial, 0)})
            case TrialTraining() if event.attempt > 1:
                row = {"trial": event.trial, "attempt": event.attempt, "at_s": event.happened}
                back.append({**row, "reports": event.reports})
    written = run.each(TrialCheckpointed)
    return {
        **_outcome(run),
        "state_mib": int(ground.env["BENCH_MIB"]),
        "least_bytes": min(event.size for event in written),
        "save_s": [event.save_s for event in written],
        "left": left,
        "back": back,
    }


def killed(ground: Ground) -> Facts:
    """A rank that holds more than half of the memory is killed: its trial can only go on, and hold
    as much again, once that is free. `freed_s`: when it was seen to be; None: the trial was faster.
    """
    mib = int(HELD * ground.memory_mib())
    ground.env["BENCH_MIB"] = str(mib)
    before, spec = ground.used_mib(), ground.project("killed.py")
    ground.env["BENCH_REPORTS"] = ground.sized("60", "20")
    with ground.beside(spec, ground.sized(30, 60), ground.launcher(), *ALONE) as running:
        pid = _pid_after(ground, reports=10)
        held = ground.used_mib() - before
        os.kill(pid, signal.SIGKILL)
        freed_s = ground.waited_s(lambda: ground.used_mib() - before < held / 2, SEEN_S)
    run = running.result()
    return {
        **_outcome(run),
        "wanted_mib": mib,
        "held_mib": held,
        "freed_s": freed_s,
        "exits": _exits(run),
        "went_on_from": [event.reports for event in run.each(TrialTraining)][1:],
    }


def hang(ground: Ground) -> Facts:
    """A rank hangs in a kernel until its half of the time is over: when its attempt has ended and
    its memory is free, and whether the other trial trains then.
    """
    mib = ground.sized(1024, 256)
    ground.env["BENCH_MIB"] = str(mib)
    before, spec = ground.used_mib(), ground.project("hangs.py")
    halves = ('policy.name="grid"', "space.lr=[0.1, 0.01]", SHORT)
    run = ground.run(spec, ground.sized(36, 60), ground.launcher(), *halves)
    hung = [row for row in _exits(run) if (row["trial"], row["attempt"]) == ("t0001", 1)]
    began = [event for event in run.each(TrialReported) if event.trial == "t0001"]
    freed_s = ground.waited_s(lambda: ground.used_mib() - before < mib / 2, FREE_S)
    return {
        **_outcome(run),
        "hung": [[int(pid), at] for pid, at in _rows(ground)] if ground.out.exists() else [],
        "exits": hung,
        "hung_at_s": max((event.happened for event in began), default=None),
        "reports_since": sum(
            bool(hung) and event.happened > hung[0]["at_s"] for event in run.each(TrialReported)
        ),
        "freed_s": freed_s,
    }


def parts(ground: Ground) -> Facts:
    """Four trials share the GPU, in turns and by MPS where that is installed, beside a run with one
    at a time: reports per second.
    """
    spec = ground.project("network.py")
    few = ground.sized((), ("policy.trials=4", "policy.max_reports=10"))
    sides = {"whole": 1, "parts": PARTS_OF_GPU}
    if shutil.which(MPS, path=ground.env["PATH"]):
        sides["mps"] = PARTS_OF_GPU
    runs: Facts = {}
    for side, count in sides.items():
        ground.env["SEERD_MPS"] = str(int(side == "mps"))
        words = (ground.launcher(), *few, f"cluster.parts={count}")
        runs[side] = _shared(ground.run(spec, ground.sized(20, 60), *words))
    alone = max(runs["whole"]["per_s"], 1e-9)
    ratios = {side: runs[side]["per_s"] / alone for side in runs}
    return {**runs, "ratios": ratios, "ratio": max(ratios.values())}


def appetite(ground: Ground) -> Facts:
    """Four trials share the GPU, and one needs more memory than its share: who fails, and how many
    parts it has then.
    """
    whole = ground.memory_mib()
    ground.env["BENCH_MIB"] = str(int(0.4 * whole))
    spec = ground.project("appetite.py")
    configs = ", ".join(f"{{ lr = {lr} }}" for lr in (0.1, 0.001, 0.002, 0.003))
    four = (f"policy.start=[{configs}]", "policy.trials=4", "policy.max_reports=10")
    share = f"cluster.parts={PARTS_OF_GPU}"
    run = ground.run(spec, ground.sized(20, 60), ground.launcher(), *four, share)
    failed_s = min((e.happened for e in run.each(TrialExited) if e.trial == GREEDY), default=0.0)
    last_s = max((e.happened for e in run.each(TrialReported) if e.trial != GREEDY), default=0.0)
    return {
        **_shared(run),
        "greedy": GREEDY,
        "exits": _exits(run),
        "slots_later": max(len(start.gpus) for start in run.starts if start.trial == GREEDY),
        "neighbours_s": last_s - failed_s,
    }


def profile(ground: Ground) -> Facts:
    """`seerd profile` of the network."""
    spec = ground.project("network.py")
    words = ("--deadline", ground.sized("25s", "60s"), "--set", ground.launcher(), "--json")
    body: Facts = json.loads(ground.seerd("profile", str(spec), *words))
    return body


def command(ground: Ground) -> Facts:
    """A program that is not Python's: whether it has the GPU that the machine has."""
    spec = ground.project("program.sh")
    (spec.parent / "train.py").rename(spec.parent / "program.sh")
    program = ('train.script="program.sh"', 'train.launcher="command"', 'train.args=["{lr}"]')
    run = ground.run(
        spec, ground.sized(10, 60), *program, *ALONE, 'train.report="accuracy {number}"'
    )
    return {
        **_outcome(run),
        "reports": len(run.each(TrialReported)),
        "devices": ground.devices(),
        "seen": ground.out.read_text().split(),
    }


def nccl(ground: Ground) -> Facts:
    """One rank with a process group on the GPU."""
    spec = ground.project("one_rank.py")
    run = ground.run(spec, ground.sized(20, 40), *ALONE)
    body: Facts = json.loads(ground.out.read_text())
    wanted = {"backend": ground.sized("nccl", "gloo"), "device": ground.sized("cuda", "cpu")}
    return {**_outcome(run), "reports": len(run.each(TrialReported)), "wanted": wanted, **body}


def _outcome(run: Run) -> Facts:
    """What of a run's result says how it went."""
    kept = ("status", "best", "trials", "elapsed_s", "deadline_s")
    return {"took_s": run.took_s, **{name: run.result[name] for name in kept}}


def _shared(run: Run) -> Facts:
    """What says whether trials shared a GPU, and how fast they were together."""
    began = {(e.trial, e.attempt): e.happened for e in run.each(TrialTraining)}
    ended = {(e.trial, e.attempt): e.happened for e in run.each(TrialExited)}
    spans = [(at, ended.get(attempt, at)) for attempt, at in began.items()]
    reports = [event.happened for event in run.each(TrialReported)]
    made: dict[str, int] = {}
    for event in run.each(TrialReported):
        made[event.trial] = event.reports
    seconds = max(reports, default=0.0) - min(began.values(), default=0.0)
    return {
        **_outcome(run),
        "at_once": max((sum(a <= at < b for a, b in spans) for at, _ in spans), default=0),
        "reports": sum(made.values()),
        "per_s": sum(made.values()) / seconds if seconds > 0 else 0.0,
        "crashed": sorted({e.trial for e in run.each(TrialExited) if e.cause == "crashed"}),
        "notices": [event.why for event in run.each(InstanceNoticed)],
    }


def _exits(run: Run) -> list[Facts]:
    return [
        {
            "trial": event.trial,
            "attempt": event.attempt,
            "at_s": event.happened,
            "cause": event.cause,
            "code": event.code,
            "signal": event.signal,
        }
        for event in run.each(TrialExited)
    ]


def _rows(ground: Ground) -> list[list[float]]:
    """Return what scripts have written, a row of numbers for each line."""
    return [[float(word) for word in line.split()] for line in _lines(ground)]


def _lines(ground: Ground) -> Iterator[str]:
    yield from ground.out.read_text().splitlines() if ground.out.exists() else ()


def _pid_after(ground: Ground, reports: int) -> int:
    """Return the pid of the trial, once it has made so many reports."""
    ground.waited_s(lambda: len(list(_lines(ground))) >= reports, ground.left_s)
    pids = [int(line) for line in _lines(ground)]
    if len(pids) < reports:
        raise PartError("no trial has made reports")
    return pids[-1]
