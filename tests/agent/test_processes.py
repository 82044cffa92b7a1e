"""What the agent reads out of /proc of processes and makes of it: from a /proc of our own, so that
every number is known.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seerd.agent import host
from seerd.agent.host import Life, Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

TICK = os.sysconf("SC_CLK_TCK")
US = os.getpid()


class Proc:
    """A /proc in which processes are as they are said to be."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "not-a-process").mkdir()
        self.add(US, command=b"agent\0")
        (root / "self").symlink_to(root / str(US))

    def add(
        self,
        pid: int,
        parent: int = 2,
        *,
        group: int = 7,
        session: int = 8,
        state: str = "S",
        born: int = 100,
        cpu: tuple[int, int, int, int] = (0, 0, 0, 0),
        threads: int = 1,
        env: bytes = b"A=1\0",
        env_at: tuple[int, int] = (10, 50),
        command: bytes = b"sleep\0",
        io: str | None = None,
        threads_of: tuple[int, ...] = (),
    ) -> None:
        """A process, and its entry among its parent's children (of the parent's first thread)."""
        folder = self.root / str(pid)
        for thread in (pid, *threads_of):
            (folder / "task" / str(thread)).mkdir(parents=True, exist_ok=True)
            (folder / "task" / str(thread) / "children").touch()
        fields = [state, str(parent), str(group), str(session), *["0"] * 45]
        fields[11:15] = map(str, cpu)
        fields[17], fields[19] = str(threads), str(born)
        fields[47], fields[48] = map(str, env_at)
        (folder / "stat").write_text(f"{pid} (a) S 9 (b) {' '.join(fields)}\n")
        (folder / "environ").write_bytes(env)
        (folder / "cmdline").write_bytes(command)
        if io is not None:
            (folder / "io").write_text(io)
        self.child(parent, pid)

    def child(self, parent: int, pid: int, thread: int | None = None) -> None:
        path = self.root / f"{parent}/task/{parent if thread is None else thread}/children"
        if path.exists():
            with path.open("a") as children:
                children.write(f"{pid} ")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(host, "PROC", tmp_path)
    return Proc(tmp_path)


def test_ticks_are_the_kernels_and_count_on() -> None:
    before, child = host.ticks(), subprocess.Popen(["sleep", "60"])
    try:
        shown = host.seen(child.pid)
        assert shown is not None
        assert before <= shown.born <= host.ticks()
        assert not shown.zombie
        assert (shown.session, shown.group) == (os.getsid(0), os.getpgid(0))
        assert host.group(child.pid) == 0, "it is in our own session"
    finally:
        child.kill()
        child.wait()
    assert host.seen(child.pid) is None
    assert host.group(child.pid) == 0


def test_the_id_of_this_boot_is_what_the_kernel_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    monkeypatch.setattr(host, "PROC", tmp_path)
    assert host.boot_id() == ""


def test_a_name_that_ps_shows_and_orphans_that_are_ours(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from seerd.agent import host;"
        "before = host.finds_all_below(); host.show_as('a name that is too long');"
        "host.adopt_orphans(); print(before, host.finds_all_below(), open('/proc/self/comm').read())"
    )
    root = str(Path(host.__file__).resolve().parents[2])
    command = [sys.executable, "-c", script, str(Path(host.__file__).parents[1])]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": root}
    )
    assert said.stdout.split(maxsplit=2) == ["False", "True", "a name that is \n\n"]


def test_below_a_process_is_what_any_of_its_threads_has_started(proc: Proc) -> None:
    proc.add(20, threads_of=(21,))
    proc.add(30, 20)
    proc.add(31, 30)
    proc.add(40)
    proc.child(20, 40, thread=21)
    assert sorted(host.below([20])) == [20, 30, 31, 40]
    assert host.below([20]).index(30) < host.below([20]).index(31)
    assert host.below([40, 30]) == [40, 30, 31]
    assert host.below([99]) == [99]
    assert host.below([]) == []
    assert host.lists_children()


def test_our_own_children_are_adopted_ones_too(proc: Proc) -> None:
    for pid, state in ((20, "S"), (30, "Z"), (25, "X"), (40, "R")):
        proc.add(pid, US, state=state)
    proc.add(41, 40)
    proc.add(99)
    assert host.adopted() == [20, 30, 25, 40]
    assert list(host.each_below()) == [41, 40, 20]


def test_where_children_are_not_listed_nobody_is_below(proc: Proc) -> None:
    proc.add(20, US)
    (proc.root / f"{US}/task/{US}/children").unlink()
    assert not host.lists_children()
    assert not host.finds_all_below()
    assert list(host.each_below()) == []
    assert host.adopted() == []


def test_children_that_end_and_are_waited_for_are_neither_new_nor_zombies() -> None:
    lives, ended = (subprocess.Popen(["sleep", s]) for s in ("600", "0"))
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    try:
        newest = [pid for pid in host.newest_adopted() if pid in (lives.pid, ended.pid)]
        assert newest == [lives.pid]
        assert ended.pid in host.zombies()
        assert lives.pid not in host.zombies()
        assert host.adopted().index(lives.pid) < host.adopted().index(ended.pid)
        assert host.seen(ended.pid).zombie  # type: ignore[union-attr]
    finally:
        ended.wait()
        lives.kill()
        lives.wait()
    assert not {lives.pid, ended.pid} & {*host.zombies(), *host.newest_adopted()}


def test_a_process_is_as_its_stat_says(proc: Proc) -> None:
    proc.add(20, 5, group=11, session=12, born=1234, threads=6)
    for pid, state in ((30, "Z"), (31, "X"), (32, "T"), (33, "t"), (34, "D")):
        proc.add(pid, state=state)
    assert host.seen(20) == Process(11, 12, zombie=False, born=1234)
    assert [host.seen(pid).zombie for pid in (30, 31, 32)] == [True, True, False]  # type: ignore[union-attr]
    assert host.seen(99) is None
    assert [host.is_there(pid) for pid in (20, 30, 31, 32, 34, 99)] == [
        *(True, False, False),
        *(True, True, False),
    ]
    assert [host.is_stopped(pid) for pid in (20, 30, 32, 33, 99)] == [
        *(False, False),
        *(True, True, False),
    ]
    assert [host.threads(pid) for pid in (20, 30, 99)] == [6, 1, 0]


def test_threads_of_a_user_are_those_of_all_his_processes(proc: Proc) -> None:
    user = proc.root.stat().st_uid
    for pid, threads in ((20, 5), (30, 7)):
        proc.add(pid, threads=threads)
    assert host.threads_of_user(user) == 13
    assert host.threads_of_user(user + 1) == 0


@pytest.mark.parametrize(
    ("env", "env_at", "attempt"),
    [
        (b"A=1\0SEERD_ATTEMPT=r/t1/2\0B=2\0", (10, 50), "r/t1/2"),
        (b"SEERD_ATTEMPT=r/t1/2", (10, 50), "r/t1/2"),
        (b"SEERD_ATTEMPT=\0", (10, 50), ""),
        (b"MY_SEERD_ATTEMPT=r/t1/2\0", (10, 50), ""),
        (b"A=1\0", (10, 50), ""),
        (b"", (10, 10), ""),
        (b"", (10, 50), None),
        (b"", (0, 0), None),
    ],
)
def test_the_attempt_of_a_process_is_in_its_environment(
    proc: Proc, env: bytes, env_at: tuple[int, int], attempt: str | None
) -> None:
    proc.add(20, env=env, env_at=env_at)
    assert host.attempt_of(20) == attempt


def test_of_a_process_that_is_gone_no_attempt_can_be_told(proc: Proc) -> None:
    assert host.attempt_of(20) is None


def test_who_works_below_a_folder_works_in_it(proc: Proc) -> None:
    proc.add(20)
    (proc.root / "20" / "cwd").symlink_to("/trials/t1/1/work")
    told = [
        host.works_in(20, Path(folder))
        for folder in ("/trials/t1/1", "/trials/t1/1/work", "/trials/t1/1/work/x", "/trials/t1/11")
    ]
    assert told == [True, True, False, False]
    assert not host.works_in(21, Path("/"))


def test_a_fork_that_has_not_become_anything_has_our_command_line(proc: Proc) -> None:
    proc.add(20, command=b"agent\0")
    proc.add(21, command=b"agent\0x\0")
    assert (host.is_our_fork(20), host.is_our_fork(21)) == (True, False)


def marked(value: str) -> bytes:
    return f"A=1\0SEERD_ATTEMPT={value}\0".encode()


def test_members_are_the_marked_and_the_launchers_group_and_descendants(proc: Proc) -> None:
    proc.add(20, group=20, env=b"")
    proc.add(21, 20)
    proc.add(22, 21)
    proc.add(23, group=20)
    proc.add(24, 23, state="Z")
    proc.add(25, 24)
    proc.add(30, env=marked("r/t1/1"))
    proc.add(31, env=marked("r/t1/11"))
    proc.add(US + 1, env=b"A=SEERD_ATTEMPT=r/t1/1\0")
    assert host.members("r/t1/1", 20) == {20, 21, 22, 23, 25, 30}
    assert list(host.each_member("r/t1/1", 20)) == [30, 25, 23, 22, 21, 20]
    assert host.members("r/t1/1", 0) == {30}
    assert host.members("r/t9/1", 99) == set()


def test_we_ourselves_are_no_member_of_anything(proc: Proc) -> None:
    proc.add(US, env=marked("r/t1/1"), group=20)
    proc.add(20, group=20, env=marked("r/t1/1"))
    assert host.members("r/t1/1", 20) == {20}
    assert host.marked_with("r/") == {20}


def test_what_is_marked_is_found_by_how_its_mark_begins_the_newest_first(proc: Proc) -> None:
    for pid, mark in ((20, "r/t1/1"), (22, "r/t2/1"), (21, "r//setup"), (23, "r2/t1/1")):
        proc.add(pid, env=marked(mark))
    assert list(host.each_marked_with("r/")) == [22, 21, 20]
    assert host.marked_with("r/t2") == {22}
    assert host.marked_with("t1") == set()


def test_the_processes_of_a_run_come_with_what_they_started_and_its_keeper_last(
    proc: Proc,
) -> None:
    assert host.keeper_mark("r") == "r//keeper"
    proc.add(20, env=marked("r/t1/1"))
    proc.add(21, 20)
    proc.add(22, 21, state="Z")
    proc.add(30, env=marked("r//keeper"))
    proc.add(40, env=marked("q/t1/1"))
    assert list(host.each_of_run("r")) == [21, 20]
    (proc.root / "20" / "environ").write_bytes(b"")
    assert list(host.each_of_run("r")) == [30]
    assert list(host.each_of_run("s")) == []


def test_values_of_a_variable_are_those_of_all(proc: Proc) -> None:
    proc.add(20, env=b"LOCAL_RANK=0\0NAME=a\0")
    proc.add(21, env=b"MY_LOCAL_RANK=7\0LOCAL_RANK=1\0LOCAL_RANK=2")
    proc.add(22, env=b"A=\xff\0")
    assert host.values_of("LOCAL_RANK", {20, 21, 22, 99}) == {"0", "1", "2"}
    assert host.values_of("A", {22}) == {"\ufffd"}
    assert host.values_of("NAME", set()) == set()


IO = "rchar: 1\nwchar: 20\nsyscr: 5000\nread_bytes: 300\nwrite_bytes: 4000\nother: 9\n"


def test_the_life_of_a_process_is_its_own_and_that_of_its_children(proc: Proc) -> None:
    ticks = (1 * TICK, 2 * TICK, 4 * TICK, 8 * TICK)
    proc.add(20, born=55, cpu=ticks, io=IO)
    proc.add(21, 20, cpu=ticks, io=IO, state="R")
    proc.add(22, 21, cpu=ticks, io="nonsense")
    proc.add(23, cpu=ticks, io=IO)
    assert host.life(20, {20}) == Life(55, runs=False, cpu_s=15.0, moved_bytes=4321)
    assert host.life(20, {20, 21, 23}) == Life(55, runs=True, cpu_s=30.0, moved_bytes=8642)
    assert host.life(20, {20, 22, 99}) == Life(55, runs=False, cpu_s=30.0, moved_bytes=4321)
    assert host.life(20, {21}) is None
    assert host.life(99, {99}) is None
    assert host.moved_bytes([20, 22, 23, 99]) == 8642
    assert host.moved_bytes([]) == 0


def test_without_lists_of_children_the_whole_table_says_who_is_below(proc: Proc) -> None:
    proc.add(20, io=IO)
    proc.add(21, 20, io=IO)
    proc.add(22, 21, io=IO)
    (proc.root / f"{US}/task/{US}/children").unlink()
    (proc.root / "20/task/20/children").unlink()
    assert host.life(20, {20, 21, 22}) == Life(100, runs=False, cpu_s=0.0, moved_bytes=3 * 4321)


def test_elsewhere_nothing_of_this_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.sys, "platform", "darwin")
    assert host.ticks() == 0
    assert not host.lists_children()
    assert host.life(US, {US}) is None
    assert host.moved_bytes([US]) == 0
    assert host.marked_with("") == set()
    assert host.zombies() == []
    assert host.is_there(US)
    assert host.is_there(1), "others' processes are there too"
    assert not host.is_there(2**22 + 1)


def test_what_ps_lists_is_read_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ps = tmp_path / "ps"
    ps.write_text(
        '#!/bin/sh\ntest "$*" = "-axo pid=,ppid=,pgid=,stat=" || exit 1\n'
        'echo "  20  1 20 Ss"; echo "  21 20 20 Z+"; echo "300 21 300 R odd"\n'
    )
    ps.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host.sys, "platform", "darwin")
    assert host._processes() == {20: (1, 20, False), 21: (20, 20, True), 300: (21, 300, False)}
    assert host.members("", 20) == {20, 300}


def sleeper(**how: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], **how)


def test_kill_leaves_what_has_ended_to_who_waits_and_reaps_the_others() -> None:
    ours, others = sleeper(start_new_session=True), sleeper(start_new_session=True)
    both = (ours.pid, others.pid)
    assert host.kill(lambda: filter(host.is_there, both), {ours.pid}, looks=1) == set()
    assert ours.wait() == -9
    with pytest.raises(ChildProcessError):
        os.waitpid(others.pid, os.WNOHANG)
    others.wait()


@pytest.mark.parametrize("looks", [1, 2, 5])
def test_so_many_looks_in_a_row_must_find_nothing(looks: int) -> None:
    count = 0

    def find() -> list[int]:
        nonlocal count
        count += 1
        return [2**22 + 1] if count == 2 else []

    assert host.kill(find, set(), looks=looks) == set()
    assert count == (1 if looks == 1 else looks + 2)


def test_four_looks_are_usual() -> None:
    looks: list[float] = []
    assert host.kill(lambda: looks.append(time.monotonic()) or [], set()) == set()  # type: ignore[func-returns-value]
    assert len(looks) == 4


def test_one_in_our_own_session_is_killed_without_its_group() -> None:
    one = sleeper()
    assert (
        host.kill(lambda: [] if one.poll() is not None else [one.pid], {one.pid}, looks=1) == set()
    )
    assert one.wait() == -9


def test_what_had_ended_below_those_that_are_killed_is_reaped() -> None:
    """Who is killed cannot wait for its children any more."""
    host.adopt_orphans()
    code = "sh -c 'exit 0' & echo $!; exec sleep 600"
    parent = subprocess.Popen(
        ["sh", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while host.is_there(child):
            time.sleep(0.001)
        left = (parent.pid,)
        assert host.kill(lambda: filter(host.is_there, left), {parent.pid}, looks=1) == set()
        assert host.seen(child) is None
        assert parent.wait() == -9
    finally:
        import ctypes

        ctypes.CDLL(None).prctl(host.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        parent.wait()
        parent.stdout.close()  # type: ignore[union-attr]
