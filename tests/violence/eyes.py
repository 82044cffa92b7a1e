"""Watches all processes of this machine, the rig's instances included, for attempts of trials and
for the GPUs that they hold.

The one rule: only what the kernel shows counts: `/proc/PID/environ` as it was given at exec, and
the process namespace that stands for a machine. What looks like a clash is looked at twice, since
one look at many processes is not one moment.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PROC = Path("/proc")
LOOK_S = 0.1
ATTEMPT, FOLDER, DEVICES = b"SEERD_ATTEMPT=", b"SEERD_DIR=", b"CUDA_VISIBLE_DEVICES="


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of an attempt. `machine`: its process namespace; `gpus`: the devices that it may
    use.
    """

    pid: int
    run: str
    trial: str
    attempt: int
    machine: str
    gpus: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        """Its attempt."""
        return self.run, self.trial, self.attempt


@dataclass(slots=True)
class Life:
    """One attempt on one machine: when its first and its last process were seen, seconds since
    1970. `restored`: with how many reports it said that it began, None if it was not heard to say
    so.
    """

    run: str
    trial: str
    attempt: int
    machine: str
    gpus: tuple[str, ...]
    first: float
    last: float
    pids: set[int] = field(default_factory=set)
    restored: int | None = None


class Eyes:
    """As a context manager: looks about ten times a second until its end."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, str, int, str], Life] = {}
        self._clashes: dict[str, list[str]] = defaultdict(list)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="eyes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def lives(self, run: str) -> list[Life]:
        """Every attempt of this run that was seen."""
        return [life for key, life in list(self._lives.items()) if key[0] == run]

    def clashes(self, run: str) -> list[str]:
        """Two attempts of one trial at once, or two attempts on one GPU, in words."""
        return list(self._clashes[run])

    def _keep_looking(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        began, seen = time.time(), list(attempts())
        for one in seen:
            key = (*one.key, one.machine)
            life = self._lives.setdefault(key, Life(*key, one.gpus, time.time(), began))
            life.last = max(life.last, began)
            life.pids.add(one.pid)
            if life.restored is None:
                life.restored = _restored(one.pid)
        for first, second, what in _clashing(seen):
            if is_still(first) and is_still(second):
                self._clashes[first.run].append(f"{what}: {_words(first)} and {_words(second)}")


def _clashing(seen: list[Seen]) -> Iterator[tuple[Seen, Seen, str]]:
    trials: dict[tuple[str, str], Seen] = {}
    devices: dict[tuple[str, str, str], Seen] = {}
    for one in seen:
        other = trials.setdefault((one.run, one.trial), one)
        if other.attempt != one.attempt:
            yield other, one, f"two attempts of {one.trial} at once"
        for gpu in one.gpus:
            other = devices.setdefault((one.run, one.machine, gpu), one)
            if other.key != one.key:
                yield other, one, f"GPU {gpu} of {one.machine} is held twice"


def _words(one: Seen) -> str:
    return f"{one.trial}/{one.attempt} (process {one.pid})"


def is_still(one: Seen) -> bool:
    return _attempt_of(one.pid) == one


def attempts() -> Iterator[Seen]:
    for pid in pids():
        one = _attempt_of(pid)
        if one is not None:
            yield one


def pids() -> list[int]:
    """Every process of this machine."""
    return [int(folder.name) for folder in PROC.iterdir() if folder.name.isdecimal()]


def environ(pid: int) -> list[bytes]:
    """What a process was started with; nothing for zombies and for what is gone."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _attempt_of(pid: int) -> Seen | None:
    marked, gpus = b"", b""
    for entry in environ(pid):
        if entry.startswith(ATTEMPT):
            marked = entry.removeprefix(ATTEMPT)
        elif entry.startswith(DEVICES):
            gpus = entry.removeprefix(DEVICES)
    run, _, rest = marked.decode(errors="replace").partition("/")
    trial, _, attempt = rest.partition("/")
    if not trial or not attempt.isdecimal():
        return None  # an agent's setup or check, or nothing of ours
    try:
        machine = str((PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return None
    return Seen(
        pid,
        run,
        trial,
        int(attempt),
        machine,
        tuple(filter(None, gpus.decode(errors="replace").split(","))),
    )


def _restored(pid: int) -> int | None:
    """What the script has said on its own machine's disk (docs/training-side.md)."""
    folder = next(
        (entry.removeprefix(FOLDER) for entry in environ(pid) if entry.startswith(FOLDER)), b""
    )
    try:
        said = (
            PROC / str(pid) / "root" / os.fsdecode(folder).lstrip("/") / "out.jsonl"
        ).read_text()
        return int(
            next(json.loads(line)["epoch"] for line in said.splitlines() if '"training"' in line)
        )
    except (OSError, ValueError, StopIteration):
        return None


def of_machine(pid: int) -> list[int]:
    """Every process of the machine whose first process this is, as seen from outside."""
    try:
        machine = (PROC / str(pid) / "ns" / "pid").readlink()
    except OSError:
        return []
    return [other for other in pids() if _is_in(other, machine)]


def _is_in(pid: int, machine: Path) -> bool:
    try:
        return (PROC / str(pid) / "ns" / "pid").readlink() == machine
    except OSError:
        return False


def of_home(home: Path) -> list[int]:
    """Everything that runs for this home folder: commands, agents, trials."""
    wanted = os.fsencode(home)
    return [
        pid
        for pid in pids()
        if pid != os.getpid() and any(wanted in entry for entry in environ(pid))
    ]


def name(pid: int) -> str:
    """What `ps` calls a process; empty if it is gone."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def cmdline(pid: int) -> str:
    """A process's arguments; empty if it is gone."""
    try:
        return (
            (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
