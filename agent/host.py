"""This machine's processes: which belong to an attempt, however they were started, and how to end
them all.

The one rule: an attempt has ended when no process of it is left, and that is looked up, not
assumed. On Linux every process with the attempt's SEERD_ATTEMPT in its environment belongs to it,
whatever its session, group or parent (torchrun's workers have sessions of their own and outlive it
when it is killed). On every system the launcher's descendants and its process group belong to it
too.
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
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
MARKER = "SEERD_ATTEMPT"
PROC = Path("/proc")
POLL_S = 0.01
PART_BYTES = 65536
MOVES = ("rchar", "wchar", "read_bytes", "write_bytes")
EMPTY_LOOKS = 4
"""So many looks in a row must find nothing. A process in the middle of exec(2) has no environment
for a moment, so one such look proves nothing.
"""


class Life(NamedTuple):
    """What a process and its children have done so far.

    born         when it started, in ticks since boot; tells it from a later process with the same
                 id
    runs         whether it computes, or would if it were let
    cpu_s        CPU time, in seconds
    moved_bytes  bytes read and written
    """

    born: int
    runs: bool
    cpu_s: float
    moved_bytes: int


def adopt_orphans() -> None:
    """Become the parent of our processes whose parents die (Linux, prctl(2)), so that we can wait
    for them.
    """
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def show_as(name: str) -> None:
    """Set the name that `ps` and `pkill` have for this process (Linux, prctl(2); 15 characters at
    most).

    Call it in the first thread of the process.
    """
    if sys.platform == "linux":
        _prctl(PR_SET_NAME, name.encode())


def boot_id() -> str:
    """Return the id of this boot of the machine (random(4)); empty if the system does not tell."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def members(attempt: str, launcher: int) -> Set[int]:
    """Return the ids of all processes that belong to this attempt now, zombies excepted.

    The launcher may have ended: its process group keeps its number for as long as anyone is in it.
    """
    return set(each_member(attempt, launcher))


def each_member(attempt: str, launcher: int) -> Iterator[int]:
    """Yield the ids of an attempt's processes, the newest first; an id may come twice.

    A process that starts another one and ends is caught only by a caller that acts on each id at
    once. Descendants are looked up before the first id is yielded: once a parent is killed, its
    children cannot be found by it any more.
    """
    family = sorted(_descendants(launcher), reverse=True)
    marked = (
        _marked(f"{MARKER}={attempt}".encode() + b"\0") if sys.platform == "linux" else iter(())
    )
    return _others(chain(marked, family))


def is_alone(attempt: str, launcher: int) -> bool:
    """Tell whether the launcher lives and no other process of the attempt does.

    That costs little while there are others: the newest processes are looked at first, and those
    that a launcher starts are newer than it is.
    """
    marked = each_marked_with(f"{attempt}\0")
    return all(pid == launcher for pid in marked) and members(attempt, launcher) == {launcher}


def marked_with(prefix: str) -> Set[int]:
    """Return the ids of all processes whose SEERD_ATTEMPT begins with `prefix` (Linux; elsewhere a
    dead agent's processes cannot be found).
    """
    return set(each_marked_with(prefix))


def each_marked_with(prefix: str) -> Iterator[int]:
    """Yield the ids of `marked_with` one by one, the newest first."""
    return _others(_marked(f"{MARKER}={prefix}".encode()) if sys.platform == "linux" else ())


def values_of(name: str, pids: Set[int]) -> Set[str]:
    """Return the values that an environment variable has in these processes (Linux; elsewhere none
    is known).
    """
    return {value for pid in pids for value in _values(name.encode() + b"=", pid)}


def life(pid: int, among: Set[int]) -> Optional[Life]:
    """Measure what a process has done, together with those of its descendants that are in `among`.

    Returns None if it is not in `among`, or gone (Linux; elsewhere always).
    """
    if sys.platform != "linux" or pid not in among:
        return None
    told = _stat(pid)
    family = _descendants(pid) & among
    others = [stat for stat in map(_stat, family - {pid}) if stat is not None]
    if told is None:
        return None
    ticks = sum(
        int(stat[11]) + int(stat[12]) + int(stat[13]) + int(stat[14]) for stat in [told, *others]
    )
    runs = any(stat[0] == "R" for stat in [told, *others])
    return Life(
        int(told[19]), runs, ticks / os.sysconf("SC_CLK_TCK"), sum(map(_moved, family | {pid}))
    )


def moved_bytes(pids: Iterable[int]) -> int:
    """Count the bytes that these processes, and children of theirs that have ended, have read or
    written; 0 where the system does not tell.
    """
    return sum(map(_moved, pids)) if sys.platform == "linux" else 0


def is_there(pid: int) -> bool:
    """Tell whether a process with this id lives. On Linux a zombie does not; elsewhere it does."""
    if sys.platform == "linux":
        told = _stat(pid)
        return told is not None and told[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_stopped(pid: int) -> bool:
    """Tell whether a signal or a debugger has stopped this process (Linux)."""
    told = _stat(pid)
    return told is not None and told[0] in "Tt"


def kill(
    find: Callable[[], Iterable[int]], waited_for: Set[int], spare_s: float = 10.0
) -> Set[int]:
    """Send SIGKILL to what `find` finds, each as soon as it is found, until it finds nothing.

    Returns what is still there after `spare_s` seconds (processes that the kernel holds). The exit
    status of those in `waited_for` is left to whoever waits for it. Of the others our own children
    are reaped, and what children of `waited_for` had ended before: a launcher that is killed cannot
    do that any more.
    """
    end = time.monotonic() + spare_s
    killed = _ended_children(waited_for)
    empty = 0
    while empty < EMPTY_LOOKS:
        left = set()
        for pid in find():
            left.add(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        empty = 0 if left else empty + 1
        killed |= left
        if left and time.monotonic() > end:
            return left
        time.sleep(POLL_S)
    for pid in killed - waited_for:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return set()


def _ended_children(parents: Set[int]) -> Set[int]:
    """Find the zombies that these processes have not waited for."""
    table = _processes() if parents else {}
    return {pid for pid, (parent, _, ended) in table.items() if ended and parent in parents}


def _prctl(option: int, value: Union[int, bytes]) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _others(pids: Iterable[int]) -> Iterator[int]:
    return (pid for pid in pids if pid != os.getpid())


def _marked(entry: bytes) -> Iterator[int]:
    """Yield the processes with this entry in their environment, the newest first, so that those
    that end soon are still there when their turn comes.
    """
    for pid in sorted(_all_pids(), reverse=True):
        if b"\0" + entry in b"\0" + _proc_file(pid, "environ"):
            yield pid


def _values(entry: bytes, pid: int) -> Iterator[str]:
    for item in _proc_file(pid, "environ").split(b"\0"):
        if item.startswith(entry):
            yield item[len(entry) :].decode(errors="replace")


def _stat(pid: int) -> Optional[List[str]]:
    """Read what comes behind the name in proc_pid_stat(5), the state first; None if there is no
    such process.
    """
    told = _proc_file(pid, "stat").decode(errors="replace")
    return told.rpartition(")")[2].split() if told else None


def _proc_file(pid: int, name: str) -> bytes:
    """Read a file of /proc about a process; empty if there is none.

    Every process is read at every look, so this does without Python's file objects, which cost
    more than the reading.
    """
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
    """Count the bytes that a process has read or written, from wherever to wherever
    (proc_pid_io(5)).
    """
    with contextlib.suppress(ValueError):
        lines = _proc_file(pid, "io").decode().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in MOVES)
    return 0


def _descendants(root: int) -> Set[int]:
    """Find the process, its group, and all descendants of these, without zombies."""
    if root <= 0:  # the kernel's own threads are in group 0
        return set()
    table = _processes()
    found = {pid for pid, (_, group, _) in table.items() if root in (pid, group)}
    grown = bool(found)
    while grown:
        more = {pid for pid, (parent, _, _) in table.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid for pid in found if not table[pid][2]}


def _processes() -> Dict[int, Tuple[int, int, bool]]:
    """List every process by its id: its parent, its group, and whether it is a zombie."""
    return dict(_from_proc() if sys.platform == "linux" else _from_ps())


def _from_proc() -> Iterator[Tuple[int, Tuple[int, int, bool]]]:
    for pid in _all_pids():
        stat = _stat(pid)
        if stat is not None:
            yield pid, (int(stat[1]), int(stat[2]), stat[0] in "ZX")


def _all_pids() -> List[int]:
    """Return the ids of all processes of this machine (Linux)."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def _from_ps() -> Iterator[Tuple[int, Tuple[int, int, bool]]]:
    listed = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,stat="], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        pid, parent, group, state = line.split(None, 3)
        yield int(pid), (int(parent), int(group), state.startswith("Z"))
