"""Two Unix users lease GPUs of one machine: neither is root for the other."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seerd.agent.gpu_leases import ELSEWHERE, LeaseFolder, report

FIRST, SECOND = 65533, 65534
PROGRAM = """
import json, os, sys
from seerd.agent.gpu_leases import *
import pwd, encodings.idna
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
os.umask(0o077)
folder = LeaseFolder(sys.argv[1])
print("true", flush=True)
for line in sys.stdin:
    do, name = line.split()
    if do == "lease":
        lease = folder.lease(name)
        print(json.dumps(lease is not None), flush=True)
    elif do == "register":
        own = folder.register(name)
        own.write(RunHere(name, 1.0, 2, 1, 1, ["gpu-0", "gpu-1"], 5.0, {"gpu-0": Use("t/1", 6.0)}))
        print("true", flush=True)
    elif do == "spoil":
        done = []
        for what in (lambda p: open(p, "r+"), os.unlink, lambda p: os.rename(p, p + "x")):
            try:
                what(os.path.join(sys.argv[1], name))
                done.append(True)
            except OSError:
                done.append(False)
        print(json.dumps(any(done)), flush=True)
"""


class User:
    """A process of another user, who has come to the folder: the first one has made it."""

    def __init__(self, folder: Path, uid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())

    def does(self, what: str, name: str) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {name}\n")
        self._process.stdin.flush()
        return bool(json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="seerd-users-"))
    top.chmod(0o1777)
    monkeypatch.setenv(ELSEWHERE, str(top / "gpus"))
    yield top / "gpus"
    shutil.rmtree(top)


@pytest.fixture
def users(folder: Path) -> Iterator[tuple[User, User]]:
    made = User(folder, FIRST), User(folder, SECOND)
    yield made
    for one in made:
        one.end()


def test_neither_gets_what_the_other_has(folder: Path, users: tuple[User, User]) -> None:
    first, second = users
    assert first.does("lease", "gpu-0")
    assert second.does("lease", "gpu-1")
    assert not second.does("lease", "gpu-0")
    assert not first.does("lease", "gpu-1")
    assert LeaseFolder(str(folder)).lease("gpu-0") is None
    first.end()
    assert second.does("lease", "gpu-0")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_who_has_what_is_told_by_the_owner_of_the_file(
    folder: Path, users: tuple[User, User]
) -> None:
    first, second = users
    assert first.does("lease", "gpu-0")
    assert first.does("register", "theirs")
    (name,) = [path.name for path in folder.iterdir() if path.name.startswith("run-")]
    assert not second.does("spoil", name)
    told = report()
    ((run, gpus),) = [(run["user"], run["gpus"]) for run in told["runs"]]
    assert (run, gpus) in {(str(FIRST), 1), ("nobody", 1)}
    assert [(gpu["gpu"], gpu["held"], gpu["trial"]) for gpu in told["gpus"]] == [
        ("gpu-0", True, "t"),
        ("gpu-1", False, None),
    ]


def test_what_a_dead_user_left_is_removed_by_its_owner_alone(
    folder: Path, users: tuple[User, User]
) -> None:
    first, second = users
    assert first.does("register", "theirs")
    first.end()
    other = LeaseFolder(str(folder))
    assert other.runs() == []
    assert second.does("lease", "gpu-0")
    other.tidy()
    left = [path for path in folder.iterdir() if path.name.startswith("run-")]
    assert [path.stat().st_uid for path in left] == [FIRST]
    os.setegid(FIRST)
    os.seteuid(FIRST)
    try:
        other.tidy()
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert not [path for path in folder.iterdir() if path.name.startswith("run-")]
