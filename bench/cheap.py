"""What seerd adds to trials that do nothing: wall and CPU for each of 200 on two slots, by process;
and how long after a trial's write its report is committed. Prints JSON.

The floors are measured in the same run: the same script alone, as many at once as there are slots,
and an fsync of a line on the same disk, at the same pace. Where Syne Tune or Ray is installed in
the environment that `PEERS` names, they stand beside it (`bench/cheap_peers.py`).
"""

from __future__ import annotations

import bisect
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from seerd import cli
from seerd.commands.common import orderly
from seerd.core.commands import StartTrial
from seerd.core.events import TrialExited, TrialReported
from seerd.core.state import State
from seerd.shell.daemon import Watcher
from seerd.shell.journal import Entry, Journal
from seerd.telling import plain as view

TRIALS = int(os.environ.get("TRIALS", "200"))
REPORTS = int(os.environ.get("REPORTS", "300"))
SLOTS = 2
PACE_S = 0.05
ROOT = Path(__file__).parent.parent
NOTHING = """
import json, os, time

with open(os.environ["SEERD_DIR"] + "/out.jsonl", "ab", buffering=0) as out:
    def tell(**line):
        out.write(json.dumps({"at": time.time(), **line}).encode() + b"\\n")
    tell(kind="training", epoch=0)
    for epoch in range(1, 6):
        tell(kind="report", epoch=epoch, metrics={"accuracy": 0.5}, unit_s=0.001)
"""
MARKS = {"policy": "policy_main", "agent": "agent.pyz", "warm": "agent/warm"}
REPORTING = f"""
import json, os, time

with open(os.environ["SEERD_DIR"] + "/out.jsonl", "ab", buffering=0) as out:
    def tell(**line):
        out.write(json.dumps({{"at": time.time(), **line}}).encode() + b"\\n")
    tell(kind="training", epoch=0)
    for epoch in range(1, {REPORTS} + 1):
        time.sleep({PACE_S})
        tell(kind="report", epoch=epoch, metrics={{"accuracy": 0.5}}, unit_s=0.001)
"""
SPEC = """
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
launcher = "python"
[space]
lr = {{ low = 0.0, high = 1.0 }}
[policy]
name = "asha"
trials = {trials}
min_reports = {reports}
max_reports = {reports}
t_min = "1s"
p_max = 1
[limits]
deadline = "10m"
budget = "1200gpu-s"
[cluster]
gpus = {slots}
"""


@dataclass
class Cpu:
    """CPU seconds of one process, looked at again and again.

    own       those of its own
    children  those of its children that have ended
    """

    at: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    children: list[float] = field(default_factory=list)

    def look(self, process: psutil.Process) -> None:
        """Note what it has used by now; nothing if it is gone."""
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            self.at.append(time.time())
            self.own.append(used.user + used.system)
            self.children.append(used.children_user + used.children_system)

    def between(self, begin: float, end: float, *, children: bool = False) -> float:
        """Seconds used from the one moment to the other."""
        series = self.children if children else self.own
        first = min(bisect.bisect(self.at, begin), len(series) - 1)
        last = min(bisect.bisect(self.at, end), len(series) - 1)
        return series[last] - series[first]


class Watched:
    """A run's processes: the daemon, the policy's, the agent, and the one that imports beforehand,
    found by their command lines.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._found: dict[str, psutil.Process] = {"daemon": self._root}
        self.cpu = {"daemon": Cpu(), "policy": Cpu(), "agent": Cpu(), "warm": Cpu()}
        threading.Thread(target=self._keep_looking, daemon=True).start()

    def _keep_looking(self) -> None:
        while self._root.is_running():
            if len(self._found) < len(self.cpu):
                self._find()
            for name, process in self._found.items():
                self.cpu[name].look(process)
            time.sleep(0.1)

    def _find(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in self._root.children(recursive=True):
                line = " ".join(child.cmdline())
                for name, mark in MARKS.items():
                    if name not in self._found and mark in line:
                        self._found[name] = child


def asked(folder: Path, script: str, trials: int, reports: int, slots: int) -> list[str]:
    """Write a spec that has this script run as so many trials; the arguments of the command."""
    (folder / "train.py").write_text(script)
    told = SPEC.format(trials=trials, reports=reports, slots=slots)
    (folder / "spec.toml").write_text(told)
    home = tempfile.mkdtemp(dir=folder)
    return ["run", str(folder / "spec.toml"), "--home", home, "--json"]


def doing_nothing(folder: Path) -> dict[str, object]:
    """Milliseconds for each trial that does nothing."""
    arguments = asked(folder, NOTHING, TRIALS, 5, SLOTS)
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-c", "from seerd import cli; cli.main()", *arguments]
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        watched = Watched(process.pid)
    with Journal.open(next(Path(arguments[3]).iterdir()) / "journal.db", read_only=True) as journal:
        entries, origin = list(journal.entries()), journal.origin
    starts = [e.event.at for e in entries if any(isinstance(c, StartTrial) for c in e.commands)]
    ends = [e.event.at for e in entries if isinstance(e.event, TrialExited)]
    begin, end = origin + starts[0], origin + ends[-1]
    cpu_s = {name: cpu.between(begin, end) for name, cpu in watched.cpu.items()}
    cpu_s["warm"] += watched.cpu["warm"].between(begin, end, children=True)
    cpu_s["trials"] = watched.cpu["agent"].between(begin, end, children=True)
    each = {name: ms(seconds / len(ends)) for name, seconds in cpu_s.items()}
    alone = floor(folder)
    return {
        "trials": len(ends),
        "wall_ms": ms((end - begin) / len(ends)),
        "cpu_ms": ms(sum(cpu_s.values()) / len(ends)),
        "cpu_ms_by_process": each,
        "alone": alone,
        "added_cpu_ms": ms(sum(cpu_s.values()) / len(ends) - alone["cpu_ms"] / 1000),
    }


def floor(folder: Path) -> dict[str, float]:
    """The same script without seerd, as many at once as there are slots."""

    def one(number: int) -> float:
        place = folder / f"alone-{number}"
        place.mkdir()
        process = subprocess.Popen(
            [sys.executable, str(folder / "train.py")],
            env={**os.environ, "SEERD_DIR": str(place)},
            start_new_session=True,
        )
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        return usage.ru_utime + usage.ru_stime

    began = time.perf_counter()
    with ThreadPoolExecutor(SLOTS) as pool:
        cpu_s = list(pool.map(one, range(TRIALS)))
    wall_s = (time.perf_counter() - began) / TRIALS
    return {"wall_ms": ms(wall_s), "cpu_ms": ms(statistics.mean(cpu_s))}


def durable(folder: Path) -> dict[str, object]:
    """Milliseconds from a trial's write of a report until the daemon has committed it."""
    took: list[float] = []

    def watch(state: State, now_s: float, entries: list[Entry]) -> None:
        events = [entry.event for entry in entries]
        took.extend(now_s - e.happened for e in events if isinstance(e, TrialReported))

    disk = fsyncs(folder)
    committing(asked(folder, REPORTING, 1, REPORTS, 1), watch)
    disk += fsyncs(folder)
    return {
        "reports": len(took),
        "report_ms": spread(took),
        "fsync_ms": spread(disk),
        "ratio": round(statistics.median(took) / statistics.median(disk), 2),
    }


def committing(arguments: list[str], watch: Watcher) -> None:
    """Run the command in this process, with a watcher of our own."""
    view.lines_to = lambda folder, out: watch
    sys.argv = ["seerd", *arguments]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()), orderly():
        cli.app()


def fsyncs(folder: Path) -> list[float]:
    """Seconds of an fsync after each line that is appended to a file, at the reports' pace."""
    times = []
    with (folder / "lines").open("ab", buffering=0) as file:
        for _ in range(min(REPORTS, 100)):
            time.sleep(PACE_S)
            began = time.perf_counter()
            file.write(b"x" * 150 + b"\n")
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return times


def ms(seconds: float) -> float:
    """Milliseconds, rounded."""
    return round(seconds * 1000, 2)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the 90th percentile, in milliseconds."""
    ordered = sorted(values)
    return {"p50": ms(statistics.median(ordered)), "p90": ms(ordered[len(ordered) * 9 // 10])}


def peers(folder: Path) -> dict[str, object]:
    """What the others take, if they are there."""
    python = os.environ.get("PEERS")
    if not python:
        return {}
    done = subprocess.run(
        [python, str(ROOT / "bench/cheap_peers.py"), str(TRIALS), str(SLOTS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return told


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = {"nothing": doing_nothing(folder), "durable": durable(folder), **peers(folder)}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
