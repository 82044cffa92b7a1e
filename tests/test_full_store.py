"""Real runs whose checkpoint store takes no more: what is better is kept, said, and handed back by
`seerd resume` once there is room. The store is a small disk in a mount namespace of the run's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seerd.agent.gpu_leases import ELSEWHERE

ROOT = Path(__file__).parent.parent
SPEC = """
name = "full"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "./growing.py"
launcher = "command"
[space]
lr = {{ low = 0.0, high = 0.1 }}
[policy]
name = "random"
trials = 1
t_min = "2s"
[limits]
deadline = "12s"
budget = "60gpu-s"
[cluster]
gpus = 1
store = "{store}"
"""
STEPS = """
import os, subprocess, sys
from tests.commands import Command

options, store, spec = sys.argv[1:]

def seerd(*words):
    with Command(words, os.getcwd(), dict(os.environ), merged=True) as command:
        print(command.stdout.read(), end="")
    print("exit", command.returncode)

def step(*words):
    seerd(*words)
    print("==")

subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", store], check=True)
step("run", spec, "--plain")
step("best", "last")
subprocess.run(["find", store, "-name", ".*.pt"], check=True)
print("==")
step("show", "last")
step("resume", "last", "--plain")
subprocess.run(["mount", "-o", "remount,rw,size=50m", "none", store], check=True)
step("resume", "last", "--plain")
step("best", "last")
step("show", "last")
seerd("resume", "last", "--plain")
"""


@pytest.mark.parametrize(
    ("options", "why", "first"),
    [
        ("size=2m", "No space left on device", r"t0001\s+0\.[1-5]\n"),
        ("size=2m,ro", "Read-only file system", "exit 4"),
    ],
    ids=["full", "read-only"],
)
def test_what_a_store_has_no_room_for_is_handed_back_later(
    tmp_path: Path, options: str, why: str, first: str
) -> None:
    shutil.copy(ROOT / "tests" / "programs" / "growing.py", tmp_path)
    store, spec = tmp_path / "store", tmp_path / "spec.toml"
    store.mkdir()
    spec.write_text(SPEC.format(store=store))
    own = {name: value for name, value in os.environ.items() if not name.startswith("SEERD_")}
    own |= {"SEERD_HOME": str(tmp_path / "h"), ELSEWHERE: str(tmp_path / "gpus")}
    python = [sys.executable, "-uc", STEPS, options, str(store), str(spec)]
    ran = subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-rm", *python],
        env={**own, "COLUMNS": "300", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in ran.stdout + ran.stderr
    end, best, parts, shown, full, resumed, better, shown_later, again = ran.stdout.split("==\n")
    lost = "accuracy 0.6, 6 reports) is better, and was not stored"
    assert lost in end
    assert why in end
    assert "then: seerd resume full-" in end
    assert lost in shown
    assert re.search(first, best)
    assert not parts
    assert why in full
    assert "make room, then: seerd resume full-" in full
    assert full.endswith("exit 1\n")
    assert "accuracy 0.6" in resumed
    assert resumed.endswith("exit 0\n")
    assert better.splitlines()[0].split() == ["t0001", "0.6"]
    assert lost not in shown_later
    assert "is over" in again
    assert again.endswith("exit 2\n")
