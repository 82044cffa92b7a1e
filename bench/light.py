"""What commands and a run's own processes take on this machine, beside a bare `python -c pass`:
prints JSON.

`python bench/light.py [PART ...]`, all parts but the last without one:

commands   CPU and wall seconds of commands, and of mistakes that are told
first      from `seerd run` until the agent is ordered to start the first trial
trials     resident memory in a run of 200 trials on two slots, and CPU per trial
reports    CPU of a run with 64 trials that report once a second, and 1,000 times a second together
rented     resident memory of a run of 200 trials on the rig's EC2; needs root

Runs show the live view on a terminal of their own. A run's processes are told apart: `daemon` is
the process of `seerd run` with what it has forked and waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
SEERD = (sys.executable, "-c", "from seerd import cli; cli.main()")
ROUNDS = int(os.environ.get("ROUNDS", "9"))
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
"""As people have it: what was compiled is kept."""
LASTS_S = float(os.environ.get("LASTS_S", "30"))
SPEC = """
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
launcher = "python"
args = ["{reports}", "{every_s}"]
[space]
lr = {{ low = 1e-4, high = 1.0, log = true }}
[policy]
name = "{policy}"
trials = {trials}
max_reports = {reports}
[limits]
deadline = "10m"
budget = "{slots}0gpu-min"
[cluster]
gpus = {slots}
"""
SCRIPT = """
import json, os, sys, time
from pathlib import Path
folder = Path(os.environ["SEERD_DIR"])
reports, every_s = int(sys.argv[1]), float(sys.argv[2])
def tell(**line):
    with open(folder / "out.jsonl", "a") as out:
        out.write(json.dumps({"at": time.time(), **line}) + "\\n")
tell(kind="training", epoch=0)
due = time.monotonic() + every_s * (os.getpid() % 64) / 64
for epoch in range(1, reports + 1):
    time.sleep(max(0.0, due - time.monotonic()))
    due += every_s
    if (folder / "stop").exists():
        break
    tell(kind="report", epoch=epoch, metrics={"accuracy": 0.5}, unit_s=0.0)
"""


def main() -> None:
    """Prints one JSON object with the parts that were asked for."""
    parts = {"commands": commands, "first": first, "trials": trials, "reports": reports}
    asked = sys.argv[1:] or list(parts)
    told = {name: {**parts, "rented": rented}[name]() for name in asked}
    print(json.dumps({"python": took(sys.executable, "-c", "pass"), **told}, indent=1))


# ------------------------------------------------------------ commands


def took(*command: str) -> dict[str, float]:
    """CPU and wall seconds of a command, medians."""
    cpu, wall = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=ENVIRONMENT)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        wall.append(time.perf_counter() - began)
        cpu.append(usage.ru_utime + usage.ru_stime)
    median = statistics.median
    return {"cpu_s": round(median(cpu), 3), "wall_s": round(median(wall), 3)}


def commands() -> dict[str, dict[str, float]]:
    """Commands that everybody waits for."""
    with tempfile.TemporaryDirectory() as name:
        home = ("--home", name)
        spec = str(ROOT / "examples/digits/spec.toml")
        asked = {
            "help": ("--help",),
            "a mistake in the spec": ("run", spec, *home, "--set", "policy.eta=none"),
            "a mistake on the command line": ("run", spec, *home, "--dedline", "3m"),
            "list": ("list", *home),
            "plan": ("plan", spec, *home),
        }
        return {what: took(*SEERD, *words) for what, words in asked.items()}


# ------------------------------------------------------------ runs


@contextlib.contextmanager
def running(*shown: str, **keys: object) -> Iterator[tuple[psutil.Process, Path]]:
    """A run of the script with these keys, on a terminal that somebody reads; its process and its
    home. It is ended on leaving.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "home"
        (folder / "train.py").write_text(SCRIPT)
        (folder / "spec.toml").write_text(SPEC.format(**keys))
        command = [*SEERD, "run", str(folder / "spec.toml"), "--home", str(home), *shown]
        ours, theirs = pty.openpty()
        process = psutil.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT)
        os.close(theirs)
        threading.Thread(target=_read, args=(ours,), daemon=True).start()
        try:
            yield process, home
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
            process.wait()


def _read(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def parts_of(daemon: psutil.Process) -> dict[str, psutil.Process]:
    """The processes of a run by what they do, as far as they are there."""
    found = {"daemon": daemon}
    with contextlib.suppress(psutil.Error):
        for child in daemon.children():
            words = " ".join(child.cmdline())
            if "policy_main" in words:
                found["policy"] = child
            elif ".pyz" in words:
                found["agent"] = child
    return found


def cpu_of(process: psutil.Process) -> float:
    """CPU seconds of a process, and of the children that a daemon has waited for."""
    times = process.cpu_times()
    return float(times.user + times.system)


def waited_for(condition: Callable[[], bool], daemon: psutil.Process) -> bool:
    """Wait until it is so; False if the daemon has ended before."""
    while not condition():
        if daemon.poll() is not None:
            return False
        time.sleep(0.001)
    return True


def has_ordered(home: Path, what: str, times: int = 1) -> bool:
    """Whether an agent's journal has so many messages of this kind."""
    journals = home.glob("*/instances/*/journal.jsonl")
    mark = f'"kind":"{what}"'.encode()
    return sum(journal.read_bytes().count(mark) for journal in journals) >= times


def first() -> dict[str, object]:
    """CPU seconds by process when the first order to start a trial has reached the agent."""
    rounds = [_first() for _ in range(ROUNDS)]
    return {
        key: round(statistics.median(one[key] for one in rounds), 3)
        for key in ("daemon_cpu_s", "policy_cpu_s", "agent_cpu_s", "wall_s")
    }


def _first() -> dict[str, float]:
    began = time.perf_counter()
    with running(policy="seer+", trials=2, reports=1, every_s=0.0, slots=2) as (daemon, home):
        assert waited_for(lambda: has_ordered(home, "start"), daemon)
        wall_s = time.perf_counter() - began
        there = parts_of(daemon)
        times = daemon.cpu_times()
        planned_s = times.children_user + times.children_system
        return {
            "daemon_cpu_s": cpu_of(daemon) + planned_s,
            "policy_cpu_s": cpu_of(there["policy"]),
            "agent_cpu_s": cpu_of(there["agent"]),
            "wall_s": wall_s,
        }


def trials() -> dict[str, object]:
    """The most resident memory of each process, MB, and CPU and wall per trial, ms."""
    many = 200
    most: dict[str, float] = {}
    cpu: dict[str, float] = {}
    with running(policy="asha", trials=many, reports=5, every_s=0.0, slots=2) as (daemon, home):
        assert waited_for(lambda: has_ordered(home, "start"), daemon)
        began = time.perf_counter()
        while daemon.poll() is None and not has_ordered(home, "exited", many):
            for name, process in parts_of(daemon).items():
                with contextlib.suppress(psutil.Error):
                    most[name] = max(most.get(name, 0.0), process.memory_info().rss / 1e6)
                    cpu[name] = cpu_of(process)
            time.sleep(0.1)
        wall_s = time.perf_counter() - began
    return {
        "trials": many,
        "most_resident_mb": {name: round(mb, 1) for name, mb in most.items()},
        "cpu_ms_per_trial": {name: round(1e3 * s / many, 1) for name, s in cpu.items()},
        "wall_ms_per_trial": round(1e3 * wall_s / many, 1),
    }


def rented() -> dict[str, float]:
    """The most resident memory of a run's daemon and policy on EC2, MB."""
    sys.path.insert(0, str(ROOT))
    from bench.testbed.ec2_world import MEASURED, Coordinator, Job
    from bench.testbed.rig import Rig

    job = Job(
        deadline="10m",
        budget="40gpu-min",
        script="quick.py",
        policy='name = "asha"\ntrials = 200\nmax_reports = 5',
        limits="max_gpus = 4",
    )
    most: dict[str, float] = {}
    with (
        Rig.start() as rig,
        tempfile.TemporaryDirectory() as folder,
        Coordinator(rig, Path(folder)) as coordinator,
    ):
        script = coordinator.project / "quick.py"
        words = SCRIPT.replace("int(sys.argv[1]), float(sys.argv[2])", "5, 0.0")
        script.write_text(f"#!/usr/bin/env python3\n{words}")
        script.chmod(0o755)
        coordinator.write(job, MEASURED)
        started = coordinator.start("run", str(coordinator.spec), "--plain")
        daemon = psutil.Process(started.pid)
        while started.poll() is None:
            for name, process in parts_of(daemon).items():
                with contextlib.suppress(psutil.Error):
                    most[name] = max(most.get(name, 0.0), process.memory_info().rss / 1e6)
            time.sleep(0.1)
    return {name: round(mb, 1) for name, mb in most.items()}


def reports() -> dict[str, object]:
    """Shares of a core while 64 trials report."""
    return {
        "64 a second": _reporting(every_s=1.0),
        "64 a second, as lines": _reporting("--json", every_s=1.0),
        "1000 a second": _reporting(every_s=64 / 1000),
    }


def _reporting(*shown: str, every_s: float) -> dict[str, float]:
    slots = 64
    many = int(600 / every_s)
    asked = {"policy": "random", "trials": slots, "reports": many, "every_s": every_s}
    with running(*shown, **asked, slots=slots) as (daemon, home):
        assert waited_for(lambda: has_ordered(home, "training", slots), daemon)
        time.sleep(5)
        there = parts_of(daemon)
        before, began = {n: cpu_of(p) for n, p in there.items()}, time.perf_counter()
        heard = _heard(home)
        time.sleep(LASTS_S)
        lasted_s = time.perf_counter() - began
        shares = {n: (cpu_of(p) - before[n]) / lasted_s for n, p in there.items()}
        return {
            "reports_per_s": round((_heard(home) - heard) / lasted_s, 1),
            **{f"{name}_share": round(share, 4) for name, share in shares.items()},
        }


def _heard(home: Path) -> int:
    """How many events the journal has."""
    from seerd.shell.journal import Journal

    (path,) = home.glob("*/journal.db")
    with Journal.open(path, read_only=True) as journal:
        return sum(1 for _ in journal.entries())


if __name__ == "__main__":
    main()
