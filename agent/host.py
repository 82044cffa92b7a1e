"""This machine's processes: which belong to an attempt, however they were started, and how to end them all.

The one rule: an attempt has ended when no process of it is left, and that is looked up, not assumed. On Linux every process that carries the
attempt's SEERD_ATTEMPT in its environment belongs to it, wherever it was moved by sessions, groups or dead parents (torchrun's workers
have sessions of their own and outlive it when it is killed); elsewhere, the launcher's descendants and its process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, Set, Tuple

PR_SET_CHILD_SUBREAPER = 36
MARKER = "SEERD_ATTEMPT"
PROC = Path("/proc")
POLL_S = 0.01


def adopt_orphans() -> None:
    """Have processes whose parents die become ours (Linux, prctl(2)), so that they can be waited for."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def members(attempt: str, launcher: int) -> Set[int]:
    """Process ids of everything that belongs to this attempt now."""
    found = _descendants(launcher) if launcher else set()
    if sys.platform == "linux":
        found |= set(_marked(f"{MARKER}={attempt}".encode()))
    return found - {os.getpid()}


def marked_with(prefix: str) -> Set[int]:
    """Process ids of everything whose SEERD_ATTEMPT begins so (Linux; elsewhere nothing is known of the dead agent's processes)."""
    if sys.platform != "linux":
        return set()
    return set(_marked(f"{MARKER}={prefix}".encode(), whole=False)) - {os.getpid()}


def kill(find: Callable[[], Set[int]], spare_s: float = 10.0) -> Set[int]:
    """SIGKILL what `find` finds until it finds nothing; what is still there after `spare_s` (a process that the kernel holds)."""
    end = time.monotonic() + spare_s
    left = find()
    while left and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        left = find()
    return left


def _marked(entry: bytes, *, whole: bool = True) -> Iterator[int]:
    needle = b"\0" + entry + (b"\0" if whole else b"")
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if needle in b"\0" + (folder / "environ").read_bytes():
                    yield int(folder.name)


def _descendants(root: int) -> Set[int]:
    """The process, its children and theirs, and its process group, without zombies."""
    table = dict(_processes())
    found = {pid for pid, (_, group, _) in table.items() if group == root}
    grown = True
    while grown:
        more = {pid for pid, (parent, _, _) in table.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid for pid in found if pid in table and not table[pid][2]}


def _processes() -> Iterator[Tuple[int, Tuple[int, int, bool]]]:
    """Every process: (pid, (parent, group, whether it is a zombie))."""
    if sys.platform == "linux":
        for folder in PROC.iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):
                    after_name = (folder / "stat").read_text().rpartition(")")[2].split()
                    yield int(folder.name), (int(after_name[1]), int(after_name[2]), after_name[0] == "Z")
        return
    listed = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,stat="], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, parent, group, state = line.split(None, 3)
        yield int(pid), (int(parent), int(group), state.startswith("Z"))
