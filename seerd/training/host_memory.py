"""How much memory of this machine this process may still take."""

import math
from pathlib import Path
from typing import Iterator, List

# by the controllers that a line of /proc/self/cgroup names (version 2 names none): the folder of
# the groups, and in it the files with the limit and with the use in bytes, and the line of
# `memory.stat` with that part of the use which is cached files that can be dropped at once
GROUPS = {
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "": (".", "memory.max", "memory.current", "inactive_file"),
}


def available(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes that this process may still take: what the machine has, within the limit of
    each control group that it is in (Linux; elsewhere infinite).
    """
    machine = [int(line.split()[1]) * 1024.0 for line in _lines(proc / "meminfo", "MemAvailable:")]
    return min([math.inf, *machine, *_of_groups(proc, groups)])


def _of_groups(proc: Path, groups: Path) -> Iterator[float]:
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, name = line.split(":", 2)
        if controllers in GROUPS:
            top, *files = GROUPS[controllers]
            group = groups / top / name.lstrip("/")
            while group != groups.parent:  # inside a container the group's own folder may be hidden
                yield _left(group, *files)
                group = group.parent


def _left(group: Path, most: str, used: str, cached: str) -> float:
    try:
        left = int((group / most).read_text()) - int((group / used).read_text())
    except (OSError, ValueError):  # there is none here, or no limit ("max")
        return math.inf
    return left + sum(int(line.split()[1]) for line in _lines(group / "memory.stat", f"{cached} "))


def _lines(path: Path, begin: str = "") -> List[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.startswith(begin)]
    except OSError:
        return []
