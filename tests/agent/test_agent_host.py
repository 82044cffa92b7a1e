"""Ending processes: every one of an attempt, wherever it has hidden, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seerd.agent import host

SLEEP = "import time; time.sleep(600)"
RUN = f"run-{os.getpid()}"
"""Other runs of these tests go on beside this one."""
MARK = f"{RUN}/t1/1"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are found through /proc")


def spawn(code: str, *args: str, mark: str = MARK) -> subprocess.Popen[str]:
    """A process of its own session that says when it is ready."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env={**os.environ, host.MARKER: mark},
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )


def ready(process: subprocess.Popen[str]) -> list[int]:
    """The process ids on its first line."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


@pytest.fixture
def attempt() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are gone after the test, with all that they started, whatever happens."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        host.kill(lambda launcher=process.pid: host.each_member(MARK, launcher), {process.pid})
        process.kill()
        process.wait()
        process.stdout.close()


DOUBLE_FORK = f"""
import os, subprocess, sys
alone = dict(start_new_session=True)
code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}],"
code += "start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)"
command = [sys.executable, "-c", code]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **alone)
print(child.communicate()[0].strip(), flush=True)
{SLEEP}
"""
WITHOUT_MARK = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env={{}}).pid, flush=True)
{SLEEP}
"""


@pytest.mark.parametrize(
    "code", [DOUBLE_FORK, WITHOUT_MARK], ids=["in another session", "without the mark"]
)
def test_what_a_launcher_started_belongs_to_its_attempt_however_it_was_started(attempt, code):
    attempt.append(spawn(code))
    hidden = ready(attempt[0])
    assert host.members(MARK, attempt[0].pid) == {attempt[0].pid, *hidden}


@pytest.mark.parametrize(
    "code", [DOUBLE_FORK, WITHOUT_MARK], ids=["in another session", "without the mark"]
)
def test_it_is_found_after_the_launcher_has_died(attempt, code):
    attempt.append(spawn(code))
    hidden = ready(attempt[0])
    attempt[0].kill()
    attempt[0].wait()
    assert host.members(MARK, attempt[0].pid) == set(hidden)
    assert host.kill(lambda: host.each_member(MARK, attempt[0].pid), set()) == set()
    assert host.members(MARK, attempt[0].pid) == set()


def test_another_attempt_is_left_alone(attempt):
    attempt += [
        spawn(f"print(flush=True)\n{SLEEP}", mark=mark)
        for mark in (MARK, MARK + "1", f"{RUN}/t11/1")
    ]
    for process in attempt:
        ready(process)
    assert host.members(MARK, 0) == {attempt[0].pid}
    assert host.kill(lambda: host.each_member(MARK, attempt[0].pid), {attempt[0].pid}) == set()
    assert [process.poll() for process in attempt[1:]] == [None, None]
    assert host.marked_with(f"{RUN}/") == {process.pid for process in attempt[1:]}


def test_the_exit_status_of_those_that_somebody_waits_for_is_left_to_him(attempt):
    attempt.append(spawn(f"print(flush=True)\n{SLEEP}"))
    ready(attempt[0])
    host.kill(lambda: host.each_member(MARK, attempt[0].pid), {attempt[0].pid})
    assert attempt[0].wait() == -signal.SIGKILL


def test_what_cannot_be_killed_is_named():
    assert host.kill(lambda: {2**22 + 1}, set(), spare_s=0.05) == {2**22 + 1}


def test_what_is_found_is_killed_before_anything_else_is_looked_for(attempt):
    attempt += [spawn(f"print(flush=True)\n{SLEEP}") for _ in range(2)]
    for process in attempt:
        ready(process)
    seen = []

    def find():
        for process in [] if seen else attempt:
            yield process.pid
            seen.append(process.wait(timeout=10))

    assert host.kill(find, set()) == set()
    assert seen == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize("is_spared", [False, True])
def test_a_group_is_killed_whole_unless_one_of_it_is_spared(
    attempt: list[subprocess.Popen[str]], *, is_spared: bool
) -> None:
    """What starts itself anew may not be seen in time, but stays in its group."""
    attempt.append(spawn(WITHOUT_MARK))
    (child,) = ready(attempt[0])
    found = filter(host.is_there, [child])
    host.kill(lambda: found, {attempt[0].pid}, spared=[attempt[0].pid] if is_spared else ())
    gone = time.monotonic() + 20  # whoever is killed last is not waited for
    while host.is_there(child) and time.monotonic() < gone:
        time.sleep(0.01)
    assert not host.is_there(child)
    assert host.is_there(attempt[0].pid) is is_spared


HELPER = f"""
import os, subprocess, sys
rank = os.fork()
if rank == 0:
    os.setsid()
    helper = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env={{}}, start_new_session=True)
    print(helper.pid, flush=True)
{SLEEP}
"""


def test_what_a_rank_in_its_own_session_has_started_without_the_mark_is_killed_with_it(attempt):
    attempt.append(spawn(HELPER))
    helpers = ready(attempt[0])
    assert host.kill(lambda: host.each_member(MARK, attempt[0].pid), set()) == set()
    assert not any(map(host.is_there, helpers))


@pytest.mark.parametrize("each", ["pass", "os.setsid()"], ids=["in one session", "each in its own"])
def test_a_process_that_keeps_starting_others_is_ended(attempt, each):
    respawns = (
        "import os, sys, time\nprint(flush=True)\nwhile True:\n    "
        f"time.sleep(0.002)\n    if os.fork(): os._exit(0)\n    {each}"
    )
    attempt.append(spawn(respawns))
    ready(attempt[0])
    assert host.kill(lambda: host.each_member(MARK, attempt[0].pid), set()) == set()
    assert host.marked_with(MARK) == set()


ADOPTS = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from seerd.agent import host
host.adopt_orphans()
middle = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, env={**os.environ, host.MARKER: sys.argv[2]})
orphan = int(middle.stdout.readline())
middle.wait()
print(os.getpid() == int(open(f"/proc/{orphan}/stat").read().split()[3]))
print(host.kill(lambda: host.each_member(sys.argv[2], middle.pid), {middle.pid}))
print(os.path.exists(f"/proc/{orphan}"))
"""


def test_orphans_become_ours_and_leave_no_zombie():
    told = subprocess.run(
        [sys.executable, "-c", ADOPTS, str(Path(host.__file__).parents[1]), MARK],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split("\n") == ["True", "set()", "False", ""]


def test_elsewhere_descendants_and_groups_come_from_ps(attempt, monkeypatch):
    attempt.append(spawn(WITHOUT_MARK))
    hidden = ready(attempt[0])
    monkeypatch.setattr(host.sys, "platform", "darwin")
    assert host.members(MARK, attempt[0].pid) == {attempt[0].pid, *hidden}
