"""The machine's clock is set while a run goes on, or while its daemon is dead: limits and ledger are
kept as if nobody had.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import WallClock

TRAIN = """
import os, time, seerd
trial = seerd.trial()
began = time.monotonic()
note = os.path.join(os.environ["NOTES"], str(os.getpid()))
while trial.running():
    time.sleep(0.05)
    trial.report(accuracy=0.5)
    with open(note + ".part", "w") as file:
        file.write(str(time.monotonic() - began))
    os.replace(note + ".part", note)
"""
SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
[space]
lr = { low = 0.0, high = 1.0 }
[policy]
name = "random"
t_min = "2s"
[limits]
deadline = "DEADLINE"
budget = "10gpu-min"
[cluster]
provider = "local"
gpus = 2
"""


@dataclass
class Machine:
    """Runs `seerd` by a wall clock that is set ahead or back; `lines`: what it has printed."""

    folder: Path
    clock: WallClock
    lines: list[str] = field(default_factory=list)

    def begin(self, deadline: str) -> subprocess.Popen[str]:
        (self.folder / "notes").mkdir()
        (self.folder / "train.py").write_text(TRAIN)
        (self.folder / "spec.toml").write_text(SPEC.replace("DEADLINE", deadline))
        return self.seerd("run", str(self.folder / "spec.toml"), "--plain")

    def seerd(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "seerd"), *words, "--home", str(self.folder / "h")],
            env={**os.environ, **self.clock.environment, "NOTES": str(self.folder / "notes")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
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
        """What all ranks have trained together, by a clock that nobody sets."""
        return sum(float(note.read_text()) for note in (self.folder / "notes").glob("*[0-9]"))


@pytest.fixture
def machine(tmp_path: Path, leases: Path) -> Machine:
    return Machine(tmp_path, WallClock.made(tmp_path))


@pytest.mark.parametrize("step_s", [-3600.0, -30.0, 3600.0])
def test_a_clock_that_is_set_in_mid_run_changes_nothing(machine: Machine, step_s: float) -> None:
    began = time.monotonic()
    run = machine.begin("10s")
    machine.until("report 20:", run)
    machine.clock.set(step_s)
    assert machine.end(run) == 0, "".join(machine.lines)
    assert time.monotonic() - began < 10.0
    # A start, and the end of the last process, are charged and not trained.
    assert machine.shown()["gpu_min"] * 60 == pytest.approx(machine.trained_s, rel=0.05, abs=1.0)
