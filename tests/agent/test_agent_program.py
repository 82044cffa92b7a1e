"""The agent's program and what brings it to a machine, in forks: locks, options, exit statuses, and
when the machine is powered off.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import __main__ as program_of
from seerd.agent import bootstrap, host
from seerd.agent.timings import Timings
from tests.agent.forks import forked, status_of
from tests.agent.test_remote_tasks import program

__all__ = ["program"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

RUN = f"program-{os.getpid()}"
OFF = '#!/bin/sh\necho "$0 $*" >>"$OFF"\n'


class Machine:
    """A machine that notes whether it was powered off."""

    def __init__(self, top: Path, program: Path) -> None:
        self.folder = top / "agent"
        self.off = top / "off"
        self.errors = top / "errors"
        self.program = program
        self.tools = top / "bin"
        self.tools.mkdir()
        ways = dict.fromkeys(("shutdown", "poweroff", "systemctl"), OFF)
        for name, text in {**ways, "sudo": '#!/bin/sh\nshift; exec "$@"\n'}.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o700)

    def begins(self, *options: str, lease_s: float = 600.0, lock_s: float = 2.0) -> int:
        """Start an agent with these options; return its process id."""

        def runs() -> None:
            os.dup2(os.open(self.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            os.environ.update(PATH=f"{self.tools}:{os.environ['PATH']}", OFF=str(self.off))
            sys.argv[:] = [str(self.program), "--folder", str(self.folder), "--run", RUN]
            sys.argv += ["--gpus", "2", "--lease-s", str(lease_s), "--grace-s", "5", *options]
            sys.exit(program_of.main(Timings(lock_s=lock_s)))

        return forked(runs)

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def machine(tmp_path: Path, program: Path) -> Machine:
    return Machine(tmp_path, program)


def test_an_agent_has_its_folder_its_name_and_the_training_side_out_of_its_zip(
    machine: Machine,
) -> None:
    agent = machine.begins("--slots", "--power-off")
    machine.until((machine.folder / "agent.sock").exists)
    assert machine.folder.stat().st_mode & 0o777 == 0o700
    assert (machine.folder / "agent.pid").read_text() == str(agent)
    assert Path(f"/proc/{agent}/comm").read_text() == "seerd-agent\n"
    assert (machine.folder / "lib" / "seerd" / "training" / "trial.py").exists()
    assert (machine.folder / "clock.json").exists()
    assert (machine.folder / "agent.lock").stat().st_mode & 0o777 == 0o600
    assert status_of(machine.begins("--slots", lock_s=0.05)) == 1
    assert machine.errors.read_text() == f"another agent lives in {machine.folder}\n"
    os.kill(agent, signal.SIGTERM)
    assert status_of(agent) == 0
    assert not machine.off.exists(), "somebody else sees to this machine"


@pytest.mark.parametrize("powers_off", [True, False])
def test_an_agent_that_nobody_renews_powers_its_machine_off_if_that_was_asked_for(
    machine: Machine, *, powers_off: bool
) -> None:
    options = ["--power-off"] if powers_off else []
    library = machine.tools
    agent = machine.begins("--slots", "--library", str(library), *options, lease_s=0.0)
    assert status_of(agent) == 0
    assert machine.off.exists() is powers_off
    if powers_off:
        assert machine.off.read_text() == f"{machine.tools}/shutdown -h now\n"
        log = (machine.folder / "agent.log").read_text()
        assert "powering off: " in log
    assert not (machine.folder / "lib").exists()


@pytest.mark.parametrize("powers_off", [True, False])
def test_the_machine_of_an_agent_that_fails_is_of_no_use(
    machine: Machine, *, powers_off: bool
) -> None:
    (machine.folder / "journal.jsonl").mkdir(parents=True)
    left = subprocess.Popen(
        ["sleep", "600"], env={host.MARKER: f"{RUN}/t1/1"}, start_new_session=True
    )
    try:
        options = ["--power-off"] if powers_off else []
        assert status_of(machine.begins("--slots", *options)) == 1
        assert machine.off.exists() is powers_off
        assert (left.poll() is None) is not powers_off
        assert "the agent has to end" in (machine.folder / "agent.log").read_text()
        assert "IsADirectoryError" in machine.errors.read_text()
    finally:
        left.kill()
        left.wait()


def test_the_lock_is_waited_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        began = time.monotonic()
        assert not program_of._lock(0.2)
        assert time.monotonic() - began >= 0.2
        child = forked(lambda: sys.exit(0 if program_of._lock(20.0) else 3))
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert status_of(child) == 0


@pytest.mark.parametrize(
    "options", [[], ["--slots", "--cuda"], ["--slots", "--share", "x"], ["--slots", "--gpus", "x"]]
)
def test_wrong_options_are_refused(machine: Machine, options: list[str]) -> None:
    assert status_of(machine.begins(*options)) == 2
    assert not machine.folder.exists()


def test_options_say_what_they_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ["agent", "--folder", "f", "--run", "r", "--gpus", "3", "--cuda"]
    monkeypatch.setattr(sys, "argv", [*usual, "--lease-s", "1.5", "--grace-s", "2.5"])
    options = vars(program_of._options())
    assert options == {
        "folder": "f",
        "run": "r",
        "gpus": 3,
        "cuda": True,
        "slots": False,
        "lease_s": 1.5,
        "grace_s": 2.5,
        "spot": False,
        "power_off": False,
        "share": None,
        "library": None,
    }
    more = ["--spot", "--power-off", "--share", "2.5", "--library", "l"]
    monkeypatch.setattr(sys, "argv", [*sys.argv, *more])
    options.update(spot=True, power_off=True, share=2.5, library="l")
    assert vars(program_of._options()) == options


class Bootstrapped:
    """What a machine has said to a task."""

    def __init__(self, home: Path, zipped: bytes, task: dict[str, Any], sent: bytes = b"") -> None:
        said = home / "said"
        self.sum = hashlib.sha256(zipped).hexdigest()
        self.path = home / ".cache" / "seerd" / "agents" / f"{self.sum}.pyz"
        asked = {"run": RUN, "zip": self.sum, "size": len(zipped), **task}

        def brought() -> None:
            os.environ["HOME"] = str(home)
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
            stream = io.BytesIO(json.dumps(asked).encode() + b"\n" + sent)
            bootstrap.bootstrap(stream)
            assert sys.path[0] == str(self.path) or "old" in task

        self.status = status_of(forked(brought))
        lines = said.read_bytes().splitlines()
        assert all(line.startswith(b"seerd ") for line in lines)
        self.answers = [json.loads(line[6:]) for line in lines]


def test_the_zip_is_asked_for_once_and_goes_on_with_the_task(tmp_path: Path) -> None:
    zipped = b"the agent's zip"
    first = Bootstrapped(tmp_path, zipped, {"do": "left"}, zipped)
    assert (first.status, first.answers) == (0, [{"need": True}, {"done": []}])
    assert first.path.read_bytes() == zipped
    assert first.path.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in first.path.parent.iterdir()] == [f"{first.sum}.pyz"]
    os.utime(first.path, (0, 0))
    again = Bootstrapped(tmp_path, zipped, {"do": "left"})
    assert (again.status, again.answers) == (0, [{"need": False}, {"done": []}])
    assert time.time() - first.path.stat().st_mtime < 60, "it is not old"
    first.path.write_bytes(b"damaged")
    damaged = Bootstrapped(tmp_path, zipped, {"do": "left"}, zipped)
    assert (damaged.status, damaged.answers[0]) == (0, {"need": True})
    assert first.path.read_bytes() == zipped


def test_a_zip_that_does_not_arrive_whole_is_not_kept(tmp_path: Path) -> None:
    cut = Bootstrapped(tmp_path, b"the agent's zip", {"do": "left"}, b"the agent")
    assert (cut.status, cut.answers) == (1, [{"need": True}])
    assert list(cut.path.parent.iterdir()) == []


@pytest.mark.parametrize(("version", "is_old"), [((3, 8, 18), True), ((3, 9, 0), False)])
def test_a_python_that_is_too_old_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, ...],
    *,
    is_old: bool,
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    told = Bootstrapped(tmp_path, b"zip", {"do": "left", "old": is_old}, b"zip")
    assert told.status == 0
    why = f"its Python, {sys.executable}, is version 3.8.18; seerd's agent needs 3.9 or newer"
    assert (told.answers[0] == {"failed": why}) is is_old
    assert told.path.exists() is not is_old
