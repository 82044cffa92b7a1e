"""Remote tasks, each in a fork of this process as on a machine each is in a process of its own; the
agents that they start are forks, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import host, remote_tasks
from seerd.agent.launch import LIBRARY
from seerd.agent.protocol import VERSION, Hello, Welcome
from seerd.agent.wire import decode, encode
from seerd.backends.bundle import build_agent
from tests.agent.forks import Say, in_a_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

RUN = f"afar-{os.getpid()}"
OPTIONS = ("--run", RUN, "--lease-s", "600", "--grace-s", "5")
SHAPE = ["--slots", "--gpus", "3"]


class Machine:
    """A machine with a home folder, on which tasks are carried out."""

    def __init__(self, home: Path, program: Path) -> None:
        self.home = home
        self.folder = home / ".seerd" / RUN
        self.program = home / ".cache" / "seerd" / "agents" / "sum.pyz"
        self.program.parent.mkdir(parents=True)
        shutil.copy(program, self.program)

    def does(self, task: dict[str, Any], sent: bytes = b"") -> list[Any]:
        """The answers to a task, with what is sent behind it."""

        def carry_out(say: Say) -> None:
            os.environ["HOME"] = str(self.home)
            stream = io.BytesIO(sent)
            remote_tasks.carry_out({"run": RUN, **task}, str(self.program), stream, say)
            say({"left": stream.read().decode()})

        *answers, left = in_a_fork(carry_out)
        assert left == {"left": ""}
        return answers

    def begins(self, files: dict[str, str], lacks: tuple[str, ...] = (), **task: Any) -> list[Any]:
        """Begin with a source of these files, of which those that it `lacks` are sent."""
        entries = [
            [name, hashlib.sha256(text.encode()).hexdigest(), len(text), name.endswith(".sh")]
            for name, text in files.items()
        ]
        sent = json.dumps(entries) + "\n" + "".join(files[name] for name in lacks)
        tree = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
        asked = {"do": "begin", "tree": tree, "shape": SHAPE, "usual_shape": ["--slots"]}
        asked |= {"options": list(OPTIONS), "scratch": ""}
        return self.does({**asked, **task}, sent.encode() if lacks else b"")

    def agent(self) -> int:
        return int((self.folder / "agent.pid").read_text())

    def hello(self) -> Any:
        """The agent's first word."""
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(str(self.folder / "agent.sock"))
            wire.sendall(encode(Hello(VERSION, RUN, 0)))
            with wire.makefile("rb") as lines:
                return decode(lines.readline())

    def end(self) -> None:
        if (self.folder / "agent.pid").exists() and self.is_locked():
            os.kill(self.agent(), signal.SIGKILL)
        host.kill(lambda: host.each_of_run(RUN), set())

    def is_locked(self) -> bool:
        with (self.folder / "agent.lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "agent.pyz"
    build_agent(path)
    return path


@pytest.fixture
def machine(program: Path) -> Iterator[Machine]:
    home = Path(tempfile.mkdtemp(prefix="home-"))
    made = Machine(home, program)
    yield made
    made.end()
    shutil.rmtree(home)


FILES = {"train.py": "print(1)", "part/run.sh": "echo", "part/data": "x" * 1000}


def sums(*names: str) -> list[str]:
    return [hashlib.sha256(FILES[name].encode()).hexdigest() for name in names]


def test_an_agent_begins_once_beside_its_source_and_ends_with_all_but_its_logs(
    machine: Machine,
) -> None:
    answers = machine.begins(FILES, tuple(FILES))
    done = {"socket": str(machine.folder / "agent.sock"), "started": True}
    assert answers == [
        {"manifest": True},
        {"missing": sums(*FILES)},
        {"done": {**done, "received": sum(map(len, FILES.values()))}},
    ]
    source = machine.folder / "source"
    assert {name: (source / name).read_text() for name in FILES} == FILES
    assert os.access(source / "part/run.sh", os.X_OK)
    assert not os.access(source / "train.py", os.X_OK)
    assert machine.folder.stat().st_mode & 0o777 == 0o700
    assert (machine.folder / "agent.out").stat().st_mode & 0o777 == 0o600
    assert (machine.folder / "agent.pyz").read_bytes() == machine.program.read_bytes()
    assert not (machine.folder / "agent.pyz.part").exists()
    assert (machine.folder / LIBRARY / "seerd/training/trial.py").exists()
    assert json.loads((machine.folder / "shape.json").read_text()) == SHAPE
    welcome = machine.hello()
    assert isinstance(welcome, Welcome)
    assert welcome.gpus == 3
    agent = machine.agent()
    assert os.getsid(agent) == agent
    assert Path(f"/proc/{agent}/cwd").readlink() == machine.folder
    assert [Path(f"/proc/{agent}/fd/{fd}").readlink() for fd in (0, 1, 2)] == [
        *(Path(os.devnull), machine.folder / "agent.out", machine.folder / "agent.out"),
    ]

    again = machine.begins(FILES, shape=None)
    assert again == [
        {"missing": [], "manifest": False},
        {"done": {**done, "started": False, "received": 0}},
    ]
    assert machine.agent() == agent

    more = {**FILES, "other/model.py": "new"}
    assert machine.begins(more, ("other/model.py",))[1:] == [
        {"missing": [hashlib.sha256(b"new").hexdigest()]},
        {"done": {**done, "started": False, "received": 3}},
    ]
    assert machine.does({"do": "left"}) == [
        {"done": [f"agent {agent} of {RUN} in {machine.folder}"]}
    ]

    logs = machine.folder / "trials/t1/1/logs"
    logs.mkdir(parents=True)
    for path in (logs / "launcher.log", logs.parent / "out.jsonl", machine.folder / "setup.log"):
        path.write_text("words")
    (machine.folder / "link").symlink_to(machine.home, target_is_directory=True)
    (source / "agent.log").write_text("not the agent's")
    child = subprocess.Popen(
        ["sleep", "600"], env={host.MARKER: f"{RUN}/t1/1"}, start_new_session=True
    )
    assert machine.does({"do": "left"}) == [
        {
            "done": [
                f"process {child.pid} of {RUN}: sleep 600",
                f"agent {agent} of {RUN} in {machine.folder}",
            ]
        }
    ]
    assert machine.does({"do": "end", "patience_s": 20.0}) == [{"done": {}}]
    assert child.wait() == -9
    assert not host.is_there(agent)
    assert "letting go" not in (machine.folder / "agent.log").read_text()
    left = {str(path.relative_to(machine.folder)) for path in machine.folder.rglob("*")}
    assert left == {
        *("agent.log", "agent.out", "setup.log", "trials", "trials/t1", "trials/t1/1"),
        *("trials/t1/1/logs", "trials/t1/1/logs/launcher.log"),
    }
    assert machine.home.exists()
    assert machine.does({"do": "left"}) == [{"done": []}]
    assert machine.does({"do": "end", "patience_s": 0.0}) == [{"done": {}}]


def test_an_agent_lives_on_a_disk_once_that_is_mounted(machine: Machine) -> None:
    place = machine.home / "nvme"
    place.mkdir()
    assert machine.begins(FILES, scratch=str(place)) == [
        {"later": f"no disk is mounted at {place} (cluster.scratch)"}
    ]
    assert not machine.folder.exists()
    disk = Path("/dev/shm/seerd")
    place.rmdir()
    place.symlink_to("/dev/shm")
    try:
        answers = machine.begins(FILES, tuple(FILES), scratch=str(place))
        assert answers[-1]["done"]["socket"] == str(machine.folder / "agent.sock")
        assert isinstance(machine.hello(), Welcome)
        agent = Path(f"/proc/{machine.agent()}")
        assert (agent / "cwd").readlink() == disk / ".seerd" / RUN
        assert f"HOME={place}/seerd".encode() in (agent / "environ").read_bytes().split(b"\0")
        assert (disk.stat().st_mode & 0o777, machine.folder.is_symlink()) == (0o700, True)
        assert machine.begins(FILES, scratch=str(place))[-1]["done"]["started"] is False
        assert machine.does({"do": "end", "patience_s": 20.0}) == [{"done": {}}]
        assert {path.name for path in machine.folder.iterdir()} == {"agent.log", "agent.out"}
    finally:
        machine.end()
        shutil.rmtree(disk)


def test_an_agent_that_hears_nothing_is_killed_after_some_patience(machine: Machine) -> None:
    machine.begins(FILES, tuple(FILES))
    agent = machine.agent()
    os.kill(agent, signal.SIGSTOP)
    began = time.monotonic()
    assert machine.does({"do": "end", "patience_s": 0.3}) == [{"done": {}}]
    assert 0.3 <= time.monotonic() - began < 20
    assert not host.is_there(agent)


def test_an_agent_of_another_version_is_terminated_and_keeps_its_journal(machine: Machine) -> None:
    machine.begins(FILES, tuple(FILES))
    agent, journal = machine.agent(), machine.folder / "journal.jsonl"
    assert machine.does({"do": "end-agent", "grace_s": 10.0}) == [{"done": {}}]
    assert not host.is_there(agent)
    assert journal.exists()
    assert (machine.folder / "source" / "train.py").exists()
    assert machine.does({"do": "end-agent", "grace_s": 0.0}) == [{"done": {}}]
    shape = json.loads((machine.folder / "shape.json").read_text())
    assert machine.begins(FILES, shape=None, usual_shape=["--cuda"])[-1]["done"]["started"] is True
    assert shape == SHAPE
    assert machine.hello().gpus == 3, "as the agent before"


def test_one_that_does_not_start_is_told_with_its_last_words(machine: Machine) -> None:
    answers = machine.begins(FILES, tuple(FILES), options=["--no-such-option"])
    (failed,) = answers[-1].values()
    begins = f"the agent in {machine.folder} does not start; its last lines:\nusage: "
    assert failed.startswith(begins)
    assert failed.endswith("required: --run, --lease-s, --grace-s")


def test_what_has_no_agent_may_be_ended_and_looked_at(machine: Machine) -> None:
    for task in ({"do": "end", "patience_s": 0.0}, {"do": "end-agent", "grace_s": 0.0}):
        assert machine.does(task) == [{"done": {}}]
    assert machine.does({"do": "left"}) == [{"done": []}]
    assert machine.does({"do": "printed", "after": 0.0}) == [
        {"done": {"logs": {}, "until": 0.0, "more": False}}
    ]
    (answer,) = machine.does({"do": "gpus"})
    assert {"gpus", "runs", "now"} == set(answer["done"])


def test_what_cannot_be_received_is_told(machine: Machine) -> None:
    (asked, failed) = machine.does(
        {"do": "begin", "tree": "t", "shape": SHAPE, "options": []},
        b'[["../x", "' + b"0" * 64 + b'", 1, false]]\n',
    )
    assert asked == {"manifest": True}
    assert failed == {"failed": "the path '../x' leads out of the folder"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_shape_is_the_tasks_or_what_was_here_or_what_is_usual(here: Path) -> None:
    usual = {"shape": None, "usual_shape": ["--slots"]}
    assert remote_tasks._shape(usual) == ["--slots"]
    assert not (here / "shape.json").exists()
    assert remote_tasks._shape({**usual, "shape": SHAPE}) == SHAPE
    assert remote_tasks._shape(usual) == SHAPE
    assert remote_tasks._shape({**usual, "shape": ["--cuda"]}) == ["--cuda"]


def test_an_agent_lives_where_the_lock_is_held_and_is_named_by_its_file(here: Path) -> None:
    assert not remote_tasks._locked()
    assert remote_tasks._agent() == set()
    (here / "agent.pid").write_text("1234")
    with (here / "agent.lock").open("w") as lock:
        assert not remote_tasks._locked()
        assert remote_tasks._agent() == set()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remote_tasks._locked()
        assert remote_tasks._agent() == {1234}
        assert not remote_tasks._answers()
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind("agent.sock")
            assert not remote_tasks._answers()
            taken.listen()
            assert remote_tasks._answers()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert not remote_tasks._answers()
            fcntl.flock(lock, fcntl.LOCK_EX)
        (here / "agent.pid").write_text("")
        assert remote_tasks._agent() == set()
        (here / "agent.pid").unlink()
        assert remote_tasks._agent() == set()


def test_the_zip_is_copied_unless_it_is_there(here: Path) -> None:
    (here / "cache").mkdir()
    (here / "cache" / "a.pyz").write_bytes(b"zip")
    remote_tasks._place(here / "cache" / "a.pyz")
    first = (here / "agent.pyz").stat().st_ino
    remote_tasks._place(here / "cache" / "a.pyz")
    assert (here / "agent.pyz").stat().st_ino == first
    (here / "cache" / "b.pyz").write_bytes(b"other")
    remote_tasks._place(here / "cache" / "b.pyz")
    assert (here / "agent.pyz").read_bytes() == b"other"
    assert (here / "agent.pyz").stat().st_ino != first


def test_a_folder_with_a_long_path_gets_a_short_link(here: Path) -> None:
    for size in (89, 90):
        folder = here / ("x" * (size - len(str(here)) - 1))
        assert len(os.fsencode(folder)) == size
        short = remote_tasks._short(folder)
        assert (short == folder) is (size == 89)
    assert short == here / f".{'x' * 8}"
    assert short.readlink() == folder
    assert remote_tasks._short(folder) == short


def test_the_last_lines_are_those_of_its_output(here: Path) -> None:
    assert remote_tasks._tail() == "it has written nothing"
    (here / "agent.out").touch()
    assert remote_tasks._tail() == "it has written nothing"
    (here / "agent.out").write_bytes(b"\xff\n" + b"".join(b"%d\n" % n for n in range(20)))
    assert remote_tasks._tail() == "its last lines:\n" + "\n".join(map(str, range(20)))


def test_what_comes_true_in_time_does(here: Path) -> None:
    looks: list[int] = []
    assert remote_tasks._comes_true(lambda: True, 0.0)
    assert remote_tasks._comes_true(lambda: len(looks) == 3 or bool(looks.append(1)), 30.0)
    assert not remote_tasks._comes_true(lambda: False, 0.05)
    assert here.exists()


def test_processes_are_there_until_they_have_ended_and_are_shown_by_their_command() -> None:
    child = subprocess.Popen(["sh", "-c", "read line", "x" * 100], stdin=subprocess.PIPE)
    assert host.is_there(child.pid)
    while not remote_tasks._command(child.pid):  # in the middle of exec(2) it has none
        time.sleep(0.01)
    assert remote_tasks._command(child.pid) == f"sh -c read line {'x' * 100}"[:80]
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not host.is_there(child.pid)
    child.wait()
    assert remote_tasks._command(child.pid) == "(ended)"
