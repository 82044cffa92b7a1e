"""Whose processes are whose: whatever an attempt has started ends with it, however it hides, and
nothing of another attempt does.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.testbed.agents import RUN, Client, Rig
from seerd.agent import host
from seerd.agent.family import Ancestor, Family, Reaper
from seerd.agent.protocol import Reported

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

SLEEPS = "import time; time.sleep(600)"
STARTS = """
import os, subprocess, sys, json, time

def tells():
    line = {"kind": "report", "at": time.time(), "epoch": 1, "unit_s": 0.1}
    line["metrics"] = {"accuracy": 0.5}
    with open(os.environ["SEERD_DIR"] + "/out.jsonl", "a") as out:
        out.write(json.dumps(line) + chr(10))

def daemon(*command, **options):
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
        os.write(writing, str(process.pid).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    with open("left", "a") as left:
        left.write(os.read(reading, 20).decode() + chr(10))

"""
"""A middle process, in a session of its own, starts each daemon and ends; `left` has their ids."""
SLEEP = "sys.executable, '-c', 'import time; time.sleep(600)'"
EXECS = '"sh", "-c", "exec sh -c \\"$0\\" \\"$0\\"", "exec sh -c \\"$0\\" \\"$0\\""'
"""A shell that does nothing but exec(2): a good part of the time it has no environment."""


def left(rig: Rig) -> list[int]:
    """The ids of the daemons that the trials have started."""
    files = rig.folder.glob("trials/*/*/work/left")
    return [int(line) for path in files for line in path.read_text().split()]


def lives(pid: int) -> bool:
    """Tell whether a process runs."""
    return host.is_there(pid)


def started(rig: Rig, does: str) -> Client:
    """An agent that was told to start a trial which does this."""
    client = rig.ready(rig.job(STARTS + does))
    client.start()
    return client


@pytest.mark.parametrize(
    "does",
    [
        f"daemon({SLEEP})",
        f"daemon({SLEEP}, env={{}})",
        f"daemon({SLEEP}, env={{'PATH': os.environ['PATH']}})",
        f"daemon({SLEEP}, start_new_session=True)",
        f"daemon({SLEEP}, start_new_session=True, env={{}})",
        f"daemon({SLEEP}, process_group=0, env={{}})",
        f"for _ in range(4): daemon({EXECS})",
        f"for _ in range(4): daemon({EXECS}, env={{'PATH': os.environ['PATH']}})",
    ],
    ids=[
        "a daemon",
        "with a cleared environment",
        "with another environment",
        "in its own session",
        "in its own session, with a cleared environment",
        "in its own group, with a cleared environment",
        "in the middle of exec",
        "in the middle of exec, with another environment",
    ],
)
@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"], ids=["finished", "killed"])
def test_nothing_survives_an_attempt(rig, does, end):
    client = started(rig, f"{does}\n{end}")
    assert client.exit_of().code == (-9 if end else 0)
    assert left(rig)
    assert not any(map(lives, left(rig)))


def test_nothing_survives_an_attempt_that_is_stopped(rig):
    client = started(
        rig, f"daemon({SLEEP}, start_new_session=True, env={{}})\ntells()\ntime.sleep(600)"
    )
    client.until(Reported)
    client.stop()
    assert client.exit_of().cause == "asked"
    assert not any(map(lives, left(rig)))


RESPAWNS = """
import os, time
while True:
    time.sleep(0.002)
    if os.fork():
        os._exit(0)
"""


@pytest.mark.parametrize("environment", ["os.environ", "{}"], ids=["named", "nameless"])
def test_what_keeps_starting_itself_anew_is_ended(rig, environment):
    token = f"{RUN}-again"
    does = f"daemon(sys.executable, '-c', {RESPAWNS!r}, {token!r}, env={environment})"
    client = started(rig, does)
    client.exit_of()
    assert not [process for process in psutil.process_iter() if token in command_of(process)]


MANY_RENEWED = """
until = time.monotonic() + 20
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < until:
            time.sleep(0.02)
            if os.fork():
                os._exit(0)
            EACH
        os._exit(0)
tells()
time.sleep(600)
"""


@pytest.mark.parametrize("each", ["pass", "os.setsid()"], ids=["one group", "many groups"])
def test_many_that_keep_starting_themselves_anew_are_ended(rig: Rig, each: str) -> None:
    """On a busy machine each of them lives for less than a look at all of them takes."""
    client = started(rig, MANY_RENEWED.replace("EACH", each))
    client.until(Reported)
    client.stop()
    assert client.exit_of().cause == "asked"
    assert not rig.processes_of()


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; empty if it is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


WHOSE = f"""
if json.load(open(os.environ["SEERD_DIR"] + "/trial.json"))["trial"] == "t1":
    daemon({SLEEP}, env={{}}, cwd="/")
    tells()
    while not os.path.exists("go"): time.sleep(0.01)
else:
    tells()
    time.sleep(600)
"""


@pytest.mark.parametrize("before", [True, False], ids=["begun before", "begun after"])
def test_a_nameless_orphan_ends_with_the_last_attempt_that_may_have_started_it(rig, before):
    """Ended with the first, it might be missed by an attempt that goes on."""
    client = rig.ready(rig.job(STARTS + WHOSE))
    order = ["t2", "t1"] if before else ["t1", "t2"]
    for gpu, trial in enumerate(order):
        client.start(trial, gpus=(gpu,))
        client.until(Reported, lambda fact, trial=trial: fact.trial == trial)
        reported_at = host.ticks()
        while host.ticks() == reported_at:  # what began in one tick may be of either
            time.sleep(0.001)
    (rig.attempt() / "work" / "go").touch()
    client.exit_of("t1")
    (orphan,) = left(rig)
    assert lives(orphan) is before
    assert rig.processes_of("t2")
    client.stop("t2")
    client.exit_of("t2")
    assert not lives(orphan)


def test_what_setup_commands_have_started_is_left_alone(rig):
    serves = f"{sys.executable} -c 'import time; time.sleep(600)' & echo $! >serves"
    client = rig.ready(rig.job("", setup=[serves]))
    client.start()
    client.exit_of()
    server = int((rig.source / "serves").read_text())
    assert lives(server)
    rig.processes[0].terminate()
    rig.processes[0].wait()
    assert not lives(server)


def test_an_agent_that_ends_leaves_nothing_of_a_trial_that_hides(rig):
    client = started(
        rig, f"daemon({SLEEP}, start_new_session=True, env={{}})\ntells()\ntime.sleep(600)"
    )
    client.until(Reported)
    rig.processes[0].terminate()
    rig.processes[0].wait()
    assert not any(map(lives, left(rig)))


def test_after_the_death_of_an_agent_the_next_one_ends_what_leftovers_have_started(rig):
    """Even what they have started without a name."""
    does = f"""
with open("left", "a") as left:
    left.write(str(subprocess.Popen([{SLEEP}], env={{}}, start_new_session=True).pid))
tells()
time.sleep(600)
"""
    started(rig, does).until(Reported)
    rig.lose_agent()
    assert all(map(lives, left(rig)))
    rig.launch()
    assert rig.processes_of() == []
    assert not any(map(lives, left(rig)))


# ---------------------------------------------------------------- as /proc shows it

ORPHAN, LAUNCHER = 4711, 4242
NAME = f"{RUN}/t1/1"
BORN = 1000
FOLDER = Path("/run/t1/1")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Has /proc show one child of ours, as it is said to be."""

    def show(
        environ: bytes,
        env_start: int,
        env_end: int,
        cmdline: bytes = b"sleep\0",
        group: int = 1,
        session: int = 1,
    ) -> None:
        us, it = tmp_path / f"{os.getpid()}", tmp_path / f"{ORPHAN}"
        for folder in (us / f"task/{os.getpid()}", it / f"task/{ORPHAN}"):
            folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "self").unlink(missing_ok=True)
        (tmp_path / "self").symlink_to(us)
        (us / f"task/{os.getpid()}/children").write_text(f"{ORPHAN} ")
        (us / "cmdline").write_bytes(b"agent\0")
        (it / f"task/{ORPHAN}/children").write_text("")
        (it / "environ").write_bytes(environ)
        (it / "cmdline").write_bytes(cmdline)
        fields = ["S", str(os.getpid()), str(group), str(session), *["0"] * 45]
        fields[19], fields[47], fields[48] = str(BORN), str(env_start), str(env_end)
        (it / "stat").write_text(f"{ORPHAN} (a b) {' '.join(fields)}\n")

    monkeypatch.setattr(host, "PROC", tmp_path)
    host.adopt_orphans()
    yield show
    ctypes.CDLL(None).prctl(host.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def ended(*rivals: int, since: int = BORN - 1) -> Family:
    """An attempt whose launcher has ended, among others that were ordered at these ticks."""
    others = [Family("", FOLDER, at, lambda: Ancestor(0, ended=False), list) for at in rivals]
    over = Ancestor(LAUNCHER, ended=True)
    return Family(NAME, FOLDER, since, lambda: over, lambda: others, settle_s=0.05)


@pytest.mark.parametrize(
    ("environ", "env_start", "env_end", "is_gone"),
    [
        (f"SEERD_ATTEMPT={NAME}\0".encode(), 10, 50, False),
        (f"A=1\0SEERD_ATTEMPT={NAME}1\0".encode(), 10, 50, True),
        (f"SEERD_ATTEMPT={RUN}//health\0".encode(), 10, 50, True),
        (b"PATH=/bin\0", 10, 50, False),
        (b"", 10, 10, False),
        (b"", 0, 0, False),
    ],
    ids=["named", "of another", "our own", "another environment", "cleared", "in exec"],
)
def test_nothing_is_left_only_if_no_child_may_be_of_the_attempt(
    shown, environ, env_start, env_end, is_gone
):
    shown(environ, env_start, env_end)
    assert ended().is_gone() is is_gone


def test_what_is_in_the_middle_of_exec_is_of_nobody_yet_and_is_looked_at_again(shown):
    shown(b"", 0, 0)
    assert ended().members() == set()
    assert not ended(BORN - 1).is_gone()
    assert list(ended().each()) == [ORPHAN]
    assert list(ended(BORN - 1).each()) == []


def test_our_own_child_that_is_about_to_become_something_is_no_orphan(shown):
    shown(b"PATH=/bin\0", 10, 50, cmdline=b"agent\0")
    assert ended().is_gone()


def test_what_is_in_our_own_session_is_ours(shown):
    shown(b"PATH=/bin\0", 10, 50, session=os.getsid(0))
    assert ended().is_gone()


def test_what_was_there_before_the_attempt_is_not_of_it(shown):
    shown(b"", 10, 10)
    assert ended(since=BORN + 1).is_gone()
    assert not ended(since=BORN).is_gone()


def test_who_is_in_the_launchers_group_is_of_the_attempt(shown):
    shown(b"", 0, 0, group=LAUNCHER)
    assert ended(BORN - 1).members() == {ORPHAN}


@pytest.mark.parametrize(("folder", "is_mine"), [(FOLDER, True), (FOLDER.parent, False)])
def test_who_works_in_its_folder_is_of_the_attempt(
    shown: Callable[..., Any], tmp_path: Path, folder: Path, *, is_mine: bool
) -> None:
    """To read an environment takes a lock that a process which forks has all the while."""
    shown(f"SEERD_ATTEMPT={RUN}//health\0".encode(), 10, 50)
    (tmp_path / str(ORPHAN) / "cwd").symlink_to(folder / "work")
    assert (ended().members() == {ORPHAN}) is is_mine


def test_an_attempt_whose_launcher_lives_is_not_gone():
    alive = Family(NAME, FOLDER, 0, lambda: Ancestor(os.getpid(), ended=False), list)
    assert not alive.is_gone()


def test_all_descendants_are_found_whichever_thread_has_started_them():
    code = (
        "import subprocess, sys, threading\n"
        f"sleep = [sys.executable, '-c', {SLEEPS!r}]\n"
        "def start():\n    print(subprocess.Popen(sleep).pid, flush=True)\n    event.wait()\n"
        "event = threading.Event()\n"
        "threading.Thread(target=start).start()\n"
    )
    process = psutil.Popen([sys.executable, "-c", code], stdout=-1, text=True)
    child = int(process.stdout.readline())
    try:
        assert host.below([process.pid]) == [process.pid, child]
    finally:
        host.kill(lambda: filter(host.is_there, (child, process.pid)), {process.pid}, looks=1)
        process.wait()
        process.stdout.close()


SHOWS = """
left = os.environ["SEERD_DIR"] + "/sockets"
fds = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
with open(left, "w") as file:
    file.write(" ".join(os.readlink(fd) for fd in fds if os.path.exists(fd)))
"""


def test_what_an_agent_starts_has_nothing_open_of_it(rig):
    lists = "ls -l /proc/self/fd > ../setup-open"
    client = rig.ready(rig.job(STARTS + SHOWS, setup=[lists], preload=["json"]))
    shown = [(rig.folder.parent / "setup-open").read_text()]
    for number in range(1, 4):
        client.start(f"t{number}")
        assert client.exit_of(f"t{number}").code == 0
        shown.append((rig.attempt(f"t{number}") / "sockets").read_text())
    assert not [text for text in shown if "socket:" in text]


ORPHANS = """
for _ in range(40):
    os.system("true &")
for _ in range(40):
    os.system("setsid true &")
tells()
while not os.path.exists("go"): time.sleep(0.01)
sys.exit(3)
"""


def test_an_orphan_that_ends_is_reaped_while_its_attempt_goes_on(rig: Rig) -> None:
    client = started(rig, ORPHANS)
    client.until(Reported)
    agent = psutil.Process(rig.processes[-1].pid)
    end = time.monotonic() + 30
    while any(not host.is_there(child.pid) for child in agent.children() if child.is_running()):
        assert time.monotonic() < end
    (rig.attempt() / "work" / "go").touch()
    assert client.exit_of().code == 3


def test_the_exit_status_of_a_child_stays_for_those_who_wait_for_it() -> None:
    process = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    reaper = Reaper()
    reaper.look()
    reaper.look()
    assert process.wait() == 7
