"""This machine's processes: which belong to an attempt, and how to end them. On Linux those with
its SEERD_ATTEMPT in their environment, whatever their session, group or parent; everywhere the
launcher's descendants and its process group. An attempt ends when a look finds none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Callable, Iterable, Iterator, NamedTuple, Optional, Union

PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 15, 36, 37
MARKER = "SEERD_ATTEMPT"
PROC = Path("/proc")
POLL_S = 0.01
KILLED_POLL_S = 0.001
MOST_READS = 20
PART_BYTES = 65536
MOVES = ("rchar", "wchar", "read_bytes", "write_bytes")
EMPTY_LOOKS = 4
"""So many looks in a row must find nothing: during exec(2) a process has no environment."""


class Life(NamedTuple):
    """What a process and its children have done so far."""

    born: int  # when it started, in ticks since boot; tells it from a later one with its id
    runs: bool  # whether it computes, or waits for a CPU
    cpu_s: float
    moved_bytes: int  # bytes read and written


class Process(NamedTuple):
    """A process, as proc_pid_stat(5) shows it."""

    group: int
    session: int
    zombie: bool
    born: int  # when it started, in ticks since boot


def adopt_orphans() -> None:
    """Become the parent of our processes whose parents die (Linux, prctl(2))."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def finds_all_below() -> bool:
    """Return whether all that we start stays below us: we adopt orphans and list children."""
    if not lists_children():
        return False
    import ctypes

    adopts = ctypes.c_int()
    status = ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    return status == 0 and adopts.value == 1


def show_as(name: str) -> None:
    """Set the name for `ps` (Linux, prctl(2); 15 characters); call it in the first thread."""
    if sys.platform == "linux":
        _prctl(PR_SET_NAME, name.encode())


def boot_id() -> str:
    """Return the id of this boot of the machine (random(4)); empty if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def ticks() -> int:
    """Return the ticks since boot, as `Process.born` counts them (Linux; elsewhere 0)."""
    if sys.platform != "linux":
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def lists_children() -> bool:
    """Return whether this system lists the children of a process (Linux, CONFIG_PROC_CHILDREN)."""
    return sys.platform == "linux" and os.path.exists(f"{PROC}/self/task/{os.getpid()}/children")


def adopted() -> list[int]:
    """Return our own children, orphans that came to us among them (Linux).

    A child that ends while the list is read may hide the next one, so it is read until it is twice
    the same; if children come and go all the time, all that were read are returned.
    """
    children = _children_of_thread(os.getpid(), os.getpid())
    before, looks = None, [children]
    while children != before and len(looks) < MOST_READS:
        before, children = children, _children_of_thread(os.getpid(), os.getpid())
        looks.append(children)
    return children if children == before else list(dict.fromkeys(chain.from_iterable(looks)))


def newest_adopted(supervisor: int = 0) -> Iterator[int]:
    """Yield our own children and those of the `supervisor`, the newest first, without those that
    have ended (Linux).
    """
    yield from filter(is_there, reversed(children(supervisor)))
    for pid in reversed(_children_of_thread(os.getpid(), os.getpid())):
        if not _has_ended(os.P_PID, pid):
            yield pid


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone (Linux)."""
    stat = _stat(pid)
    return 0 if stat is None else int(stat[1])


def program_name(pid: int) -> str:
    """Return what a process is called (proc_pid_comm(5)); empty if it is gone (Linux)."""
    return _proc_file(pid, "comm").decode(errors="replace").strip()


def zombies() -> list[int]:
    """Return those of our own children that have ended and not been waited for (Linux)."""
    if not _has_ended(os.P_ALL, 0):
        return []
    children = _children_of_thread(os.getpid(), os.getpid())
    return [pid for pid in children if _has_ended(os.P_PID, pid)]


def below(roots: Iterable[int]) -> list[int]:
    """Return these processes and all their descendants, each after its parent (Linux)."""
    pids = list(roots)
    for pid in pids:
        pids.extend(children(pid))
    return pids


def each_below() -> Iterator[int]:
    """Yield the ids of our living descendants, the newest first (Linux; elsewhere none)."""
    pids = below(adopted()) if lists_children() else []
    return (pid for pid in sorted(pids, reverse=True) if is_there(pid))


def seen(pid: int) -> Optional[Process]:
    """Return a process; None if it is gone (Linux)."""
    stat = _stat(pid)
    if stat is None:
        return None
    return Process(int(stat[2]), int(stat[3]), stat[0] in "ZX", int(stat[19]))


def attempt_of(pid: int) -> Optional[str]:
    """Return a process's SEERD_ATTEMPT, "" without one, None during exec(2) (Linux)."""
    environ = _proc_file(pid, "environ")
    for value in _values_in(environ, MARKER):
        return value
    stat = None if environ else _stat(pid)
    is_empty = stat is not None and stat[47] == stat[48] != "0"  # not just missing in exec(2)
    return "" if environ or is_empty else None


def works_in(pid: int, folder: Path) -> bool:
    """Return whether a process works in this folder or below it (Linux)."""
    try:
        return folder in Path(os.readlink(f"{PROC}/{pid}/cwd"), "x").parents
    except OSError:
        return False


def is_our_fork(pid: int) -> bool:
    """Return whether a process has our command line: it has not called exec(2) yet (Linux)."""
    return _proc_file(pid, "cmdline") == _proc_file(os.getpid(), "cmdline")


def members(attempt: str, launcher: int) -> set[int]:
    """Return the living processes of this attempt, those in an ended launcher's group too."""
    return set(each_member(attempt, launcher))


def each_member(attempt: str, launcher: int) -> Iterator[int]:
    """Yield the ids of an attempt's processes, an id perhaps twice. Act on each at once: one that
    forks and ends is caught only so. Descendants are looked up first, since those of a killed
    parent cannot be found.
    """
    family = sorted(_descendants(launcher), reverse=True)
    on_linux = sys.platform == "linux"
    marked = _marked(f"{MARKER}={attempt}".encode() + b"\0") if on_linux else iter(())
    return _others(chain(marked, family))


def marked_with(prefix: str) -> set[int]:
    """Return the processes whose SEERD_ATTEMPT begins with `prefix` (Linux; elsewhere none)."""
    return set(each_marked_with(prefix))


def each_marked_with(prefix: str) -> Iterator[int]:
    """Yield the ids of `marked_with` one by one, the newest first."""
    return _others(_marked(f"{MARKER}={prefix}".encode()) if sys.platform == "linux" else ())


def each_of_run(run: str) -> Iterator[int]:
    """Yield a run's processes and their descendants; its lease keepers when no other is left."""
    keepers: list[int] = []
    is_empty = True
    for pid in each_marked_with(f"{run}/"):
        if attempt_of(pid) == keeper_mark(run):
            keepers.append(pid)
            continue
        is_empty = False
        yield from filter(is_there, sorted(_others(below([pid])), reverse=True))
    yield from keepers if is_empty else ()


def keeper_mark(run: str) -> str:
    """Return the SEERD_ATTEMPT of a process that keeps a run's leases of GPUs (`gpu_keeper`)."""
    return f"{run}//keeper"


def values_of(name: str, pids: set[int]) -> set[str]:
    """Return the values of an environment variable in these processes (Linux; elsewhere none)."""
    return {value for pid in pids for value in _values_in(_proc_file(pid, "environ"), name)}


def life(pid: int, among: set[int]) -> Optional[Life]:
    """Measure a process and its descendants `among` these; None if it is gone (Linux)."""
    if sys.platform != "linux" or pid not in among:
        return None
    own = _stat(pid)
    family = (set(below([pid])) if lists_children() else _descendants(pid)) & among
    others = [stat for stat in map(_stat, family - {pid}) if stat is not None]
    if own is None:
        return None
    stats = [own, *others]
    ticks = sum(int(count) for stat in stats for count in stat[11:15])
    runs = any(stat[0] == "R" for stat in stats)
    moved = sum(map(_moved, family | {pid}))
    return Life(int(own[19]), runs, ticks / os.sysconf("SC_CLK_TCK"), moved)


def moved_bytes(pids: Iterable[int]) -> int:
    """Count bytes read or written by these processes and their ended children (Linux; else 0)."""
    return sum(map(_moved, pids)) if sys.platform == "linux" else 0


def threads(pid: int) -> int:
    """Count the threads of a process; 0 if it is gone (Linux)."""
    stat = _stat(pid)
    return 0 if stat is None else int(stat[17])


def threads_of_user(user: int) -> int:
    """Count the threads of all processes of a user (Linux)."""
    count = 0
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            count += threads(pid) if os.stat(f"{PROC}/{pid}").st_uid == user else 0
    return count


def is_there(pid: int) -> bool:
    """Return whether a process with this id lives. On Linux a zombie does not."""
    if sys.platform == "linux":
        stat = _stat(pid)
        return stat is not None and stat[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped this process (Linux)."""
    stat = _stat(pid)
    return stat is not None and stat[0] in "Tt"


def kill(
    find: Callable[[], Iterable[int]],
    waited_for: set[int],
    spare_s: float = 10.0,
    looks: int = EMPTY_LOOKS,
    spared: Iterable[int] = (),
) -> set[int]:
    """Send SIGKILL to what `find` finds, at once, until it finds nothing, so many `looks` in a row.
    Process groups of which none is `spared` are killed whole, since a process that forks may be
    faster than any look (fork(2)).

    Returns what the kernel still holds after `spare_s` seconds. The exit status of those in
    `waited_for` is left to their parent; our other children, and zombies below `waited_for`, are
    reaped.
    """
    end = time.monotonic() + spare_s
    killed: set[int] = set()
    if lists_children():
        killed = {p for p in below(waited_for) if p not in waited_for and not is_there(p)}
    kept = {0, *map(group, spared)}
    empty = 0
    while True:
        left = set()
        for pid in find():
            left.add(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if (whole := group(pid)) not in kept:
                    os.killpg(whole, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        empty = 0 if left else empty + 1
        killed |= left
        if left and time.monotonic() > end:
            return left
        if empty >= looks:
            break
        time.sleep(POLL_S if empty else KILLED_POLL_S)
    for pid in killed - waited_for:
        _reap(pid, end)
    return set()


def group(pid: int) -> int:
    """Return the process group of a process; 0 if it is gone, or in our own session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # Of group 0 the leader is outside of this container, and killpg(1) would kill everything.
        if os.getsid(pid) != os.getsid(0) and (number := os.getpgid(pid)) > 1:
            return number
    return 0


def _reap(pid: int, give_up_at: float) -> None:
    """Wait for a process that has ended, if it is our child, or its parent is about to end: a
    parent of several threads is a zombie before its children are ours.
    """
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
            return
        stat = _stat(pid)
        if stat is None or is_there(int(stat[1])) or time.monotonic() > give_up_at:
            return
        time.sleep(KILLED_POLL_S)


def _prctl(option: int, value: Union[int, bytes]) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _others(pids: Iterable[int]) -> Iterator[int]:
    return (pid for pid in pids if pid != os.getpid())


def _marked(entry: bytes) -> Iterator[int]:
    # The newest come first, as those that end soon must still be there when their turn comes.
    for pid in sorted(_all_pids(), reverse=True):
        if b"\0" + entry in b"\0" + _proc_file(pid, "environ"):
            yield pid


def _values_in(environment: bytes, name: str) -> list[str]:
    # Split by the name, not by zeros, of which the forks of a warm process show 65,536.
    parts = (b"\0" + environment).split(f"\0{name}=".encode())[1:]
    return [part.partition(b"\0")[0].decode(errors="replace") for part in parts]


def _has_ended(kind: int, child: int) -> bool:
    if sys.platform == "linux":
        with contextlib.suppress(ChildProcessError):
            return os.waitid(kind, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def children(pid: int) -> list[int]:
    """List the processes that this one has started (Linux; elsewhere none)."""
    try:
        threads = os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _children_of_thread(pid, int(thread))]


def _children_of_thread(pid: int, thread: int) -> list[int]:
    return list(map(int, _proc_file(pid, f"task/{thread}/children").split()))


def _stat(pid: int) -> Optional[list[str]]:
    """Return what follows the name in proc_pid_stat(5), the state first; None if it is gone."""
    text = _proc_file(pid, "stat").decode(errors="replace")
    return text.rpartition(")")[2].split() if text else None


def _proc_file(pid: int, name: str) -> bytes:
    """Read a file of /proc about a process, fast; empty if there is none."""
    try:
        file = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = [os.read(file, PART_BYTES)]
        while parts[-1]:
            parts.append(os.read(file, PART_BYTES))
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(file)


def _moved(pid: int) -> int:
    """Count the bytes that a process has read or written (proc_pid_io(5))."""
    with contextlib.suppress(ValueError):
        lines = _proc_file(pid, "io").decode().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in MOVES)
    return 0


def _descendants(root: int) -> set[int]:
    """Return the process, its group, and all descendants of these, without zombies."""
    if root <= 0:  # the kernel's own threads are in group 0
        return set()
    table = _processes()
    family = {pid for pid, (_, group, _) in table.items() if root in (pid, group)}
    grown = bool(family)
    while grown:
        more = {pid for pid, (parent, _, _) in table.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return {pid for pid in family if not table[pid][2]}


def _processes() -> dict[int, tuple[int, int, bool]]:
    if sys.platform == "linux":
        stats = {pid: stat for pid in _all_pids() if (stat := _stat(pid)) is not None}
        return {pid: (int(s[1]), int(s[2]), s[0] in "ZX") for pid, s in stats.items()}
    command = ["ps", "-axo", "pid=,ppid=,pgid=,stat="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return {int(pid): (int(up), int(group), s.startswith("Z")) for pid, up, group, s in rows}


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]
