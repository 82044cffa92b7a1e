"""The machine's clock is set while a run goes on, or while its daemon is dead: limits and ledger are
kept as if nobody had.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from seerd.shell.journal import Journal
from tests.clocks import WallClock

TRAIN = """
import os, sys, time
sys.modules["torch"] = None
import seerd
born_s = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
trial = seerd.trial()
note = os.path.join(os.environ["NOTES"], str(os.getpid()))
while trial.running():
    time.sleep(0.1)
    trial.report(accuracy=0.5)
    with open(note + ".part", "w") as file:
        file.write(str(time.clock_gettime(time.CLOCK_BOOTTIME) - born_s))
    os.replace(note + ".part", note)
"""
"""Without torch, which takes seconds to import."""
SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
launcher = "python"
[space]
lr = { low = 0.0, high = 1.0 }
[policy]
name = "random"
t_min = "2s"
[limits]
deadline = "20s"
budget = "10gpu-min"
[cluster]
provider = "local"
gpus = 1
"""
IN_TIME_S = 20.0 + 15.0
"""The deadline, and what a busy machine needs besides. A step back that counted would take
longer.
"""


@dataclass
class Machine:
    """Runs `seerd` by a wall clock that is set ahead or back; `lines`: what it has printed."""

    folder: Path
    clock: WallClock
    lines: list[str] = field(default_factory=list)

    def begin(self) -> subprocess.Popen[str]:
        (self.folder / "notes").mkdir()
        (self.folder / "train.py").write_text(TRAIN)
        (self.folder / "spec.toml").write_text(SPEC)
        return self.seerd("run", str(self.folder / "spec.toml"), "--plain")

    def seerd(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "seerd"), *words, "--home", str(self.folder / "h")],
            env={**os.environ, **self.clock.environment, "NOTES": str(self.folder / "notes")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # it has its own share of the CPU
        )

    def until(self, text: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError("".join(self.lines))

    def end(self, process: subprocess.Popen[str]) -> int:
        out, _ = process.communicate(timeout=60)
        self.lines.append(out)
        return process.returncode

    def shown(self) -> dict[str, Any]:
        out, _ = self.seerd("show", "last", "--json").communicate(timeout=60)
        shown: dict[str, Any] = json.loads(out)
        return shown

    @property
    def trained_s(self) -> float:
        """How long trials have lived, by a clock that nobody sets."""
        return sum(float(note.read_text()) for note in self.notes)

    @property
    def notes(self) -> list[Path]:
        """One file of each trial's process, by its id."""
        return list((self.folder / "notes").glob("*[0-9]"))


@pytest.fixture
def machine(tmp_path: Path, leases: Path) -> Machine:
    return Machine(tmp_path, WallClock.made(tmp_path))


def killed(machine: Machine) -> None:
    """Its daemon is killed in mid-run; the agent goes on."""
    run = machine.begin()
    machine.until("report 5:", run)
    run.kill()
    run.communicate()


def booted(machine: Machine) -> None:
    """Kill all that still runs, and have what is left be of an earlier boot of this machine."""
    (agent,) = (machine.folder / "h").glob("**/agent.pid")
    for pid in (agent.read_text(), *(note.name for note in machine.notes)):
        os.kill(int(pid), signal.SIGKILL)
    kept = json.loads((agent.parent / "clock.json").read_text())
    (agent.parent / "clock.json").write_text(json.dumps({**kept, "boot": "another"}))
    (path,) = (machine.folder / "h").glob("**/journal.db")
    with Journal.open(path) as journal:
        journal._set("clock", f"another {journal._get('clock').split()[1]}")


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_run_goes_on_as_if_nobody_had_set_the_clock(machine: Machine, step_s: float) -> None:
    began = time.monotonic()
    killed(machine)
    machine.clock.set(step_s)
    assert machine.end(machine.seerd("resume", "last", "--plain")) == 0, "".join(machine.lines)
    assert time.monotonic() - began < IN_TIME_S
    assert machine.shown()["gpu_min"] * 60 == pytest.approx(machine.trained_s, rel=0.05, abs=1.0)
    assert "clock" not in "".join(machine.lines)


@pytest.mark.parametrize(
    ("step_s", "said"),
    [
        (-3600.0, "this machine's clock is 1h behind the store's"),
        (3600.0, "this machine's clock is 1h ahead of the store's"),
    ],
)
def test_after_a_boot_the_latest_clock_counts_for_the_deadline_and_none_for_what_is_known_to_be_dead(
    machine: Machine, step_s: float, said: str
) -> None:
    """Files have this machine's real time, as those of another machine's directory have theirs."""
    began = time.monotonic()
    killed(machine)
    machine.clock.set(step_s)
    booted(machine)
    machine.end(machine.seerd("resume", "last", "--plain"))
    assert said in re.sub(r"(59m5\d|1h0?m?\d?)s", "1h", "".join(machine.lines))
    assert time.monotonic() - began < IN_TIME_S
    assert machine.shown()["gpu_min"] * 60 < machine.trained_s * 1.05 + 1.5


@pytest.mark.parametrize("step_s", [-3600.0, -30.0])
def test_a_clock_that_is_set_in_mid_run_changes_nothing(machine: Machine, step_s: float) -> None:
    began = time.monotonic()
    run = machine.begin()
    machine.until("report 10:", run)
    machine.clock.set(step_s)
    assert machine.end(run) == 0, "".join(machine.lines)
    assert time.monotonic() - began < IN_TIME_S
    # A start, and the end of the last process, are charged and not trained.
    assert machine.shown()["gpu_min"] * 60 == pytest.approx(machine.trained_s, rel=0.05, abs=1.0)
