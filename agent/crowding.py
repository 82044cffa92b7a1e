"""Finds the attempt that fills a table of processes, before nothing can be started any more. It is
ended only if attempts hold half of what the table grants to trials.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from seerd.agent import host

SHARE = 0.75
CGROUPS = Path("/sys/fs/cgroup")


class ProcessTable(NamedTuple):
    """A limit of the system on processes and threads."""

    name: str  # where it is set
    most: int  # how many there may be
    used: Callable[[], int]  # returns how many there are


class Crowding:
    """The limits that bind this process (Linux; elsewhere none is known)."""

    def __init__(self, tables: Optional[List[ProcessTable]] = None) -> None:
        system = _tables() if sys.platform == "linux" else []
        self._tables = list(system) if tables is None else tables

    def may_be(self) -> bool:
        """Return whether a table may be nearly full. Costs next to nothing."""
        least = min((table.most for table in self._tables), default=0)
        return least > 0 and _of_machine() >= SHARE * least

    def culprit(self, attempts: Dict[str, Callable[[], Set[int]]]) -> Optional[Tuple[str, str]]:
        """Return the attempt with the most processes and threads, and why it has to end; None if no
        table is nearly full because of attempts.

        `attempts`: functions that return the ids of an attempt's processes, by its key.
        """
        counts = {key: sum(map(host.threads, members())) for key, members in attempts.items()}
        for name, most, used in self._tables:
            if sum(counts.values()) * 2 >= SHARE * most and used() >= SHARE * most:
                largest = max(counts, key=lambda key: counts[key])
                return largest, (
                    f"it had {counts[largest]} processes and threads, and trials may fill "
                    f"{SHARE:.0%} of the {most} that {name} allows, so seerd ended it: have the "
                    f"script start fewer at a time and wait for their ends, or raise {name}"
                )
        return None


def _tables() -> Iterator[ProcessTable]:
    for name in ("pid_max", "threads-max"):
        if most := _number(host.PROC / "sys/kernel" / name):
            yield ProcessTable(f"kernel.{name}", most, _of_machine)
    for folder in _cgroups():
        if most := _number(folder / "pids.max"):
            yield ProcessTable(
                f"{folder}/pids.max", most, partial(_number, folder / "pids.current")
            )
    if os.getuid() != 0:
        import resource

        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        if most != resource.RLIM_INFINITY:
            yield ProcessTable("ulimit -u", most, partial(host.threads_of_user, os.getuid()))


def _cgroups() -> Iterator[Path]:
    """Yield the folders of our cgroup and its ancestors that bound processes (cgroups(7))."""
    for line in _text(host.PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(",") or not controllers:
            own = Path(path)
            for above in [own, *own.parents]:
                yield CGROUPS / controllers / str(above).lstrip("/")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return 0


def _of_machine() -> int:
    """Count the processes and threads of this machine (proc_loadavg(5)); 0: unknown."""
    counts = _text(host.PROC / "loadavg").split()
    return int(counts[3].partition("/")[2]) if counts else 0
