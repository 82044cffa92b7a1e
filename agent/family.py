"""The processes of one attempt, found by descent from its launcher, or from the agent, which adopts
orphans. An attempt is gone when its launcher has ended and the agent has no child that may be the
attempt's; a child of unknown origin may be. The attempt that fills a table of processes is found
before nothing can be started any more, and ended if attempts hold half of what trials may have.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, Iterator, NamedTuple, Optional

from seerd.agent import host

POLL_S = 0.001
ZOMBIE_S = 1.0
SHARE = 0.75
ENGINES = ("conmon", "podman")
"""Programs that come to the agent from containers, and clear up behind those that have ended."""
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Ancestor:
    """The process that has started all others of an attempt."""

    pid: int  # 0: there is none yet
    ended: bool  # whether it has ended and been waited for


class Family:
    """The processes of the attempt `name`, which was ordered at `since` (ticks since boot), and
    which alone works in `folder`. `launcher` returns its present state; `others`, the other
    attempts' processes here. A process without an environment hides it after `settle_s` seconds;
    during exec(2) it has none.

    An orphan without an attempt in its environment may be of any that ran when it began; it ends
    with the last of these. In a container orphans go to a `supervisor` in the agent's place.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        since: int,
        launcher: Callable[[], Ancestor],
        others: Callable[[], list[Family]],
        settle_s: float = 1.0,
    ) -> None:
        self._name = name
        self._folder = folder
        self.since = since
        self.supervisor = 0  # the process that adopts the orphans of a container; 0: the agent does
        self.launcher = launcher
        self._others = others
        self._settle_s = settle_s

    def is_gone(self) -> bool:
        """Return whether nothing is left of it, as far as one look shows."""
        if not self.launcher().ended or not host.finds_all_below():
            return False
        mine, unsettled = self._orphans()
        return not mine and not unsettled

    def members(self) -> set[int]:
        """Return the ids of its living processes, as far as one look shows."""
        if not host.finds_all_below():
            return host.members(self._name, self.launcher().pid)
        return set(_below([*self._orphans()[0], *self._launched()]))

    def each(self, groups: Optional[set[int]] = None) -> Iterator[int]:
        """Yield the ids of its living processes; an id may come twice. `groups` are process groups
        of this attempt, and get more.

        A process that forks and ends may be gone before a whole look is over. So each is yielded as
        soon as it is seen, the newest first, by its group if possible. Descendants are looked up
        before an ancestor is yielded: once it is killed, its children are not below it any more. A
        process in the middle of exec(2) is waited for, at most `settle_s`.
        """
        groups = set() if groups is None else groups
        if not host.finds_all_below():
            yield from host.each_member(self._name, self.launcher().pid)
            return
        is_empty = True
        launchers = self._launchers()
        for pid in host.newest_adopted(self.supervisor):
            group = host.group(pid)
            if pid not in launchers and (group in groups or self._is_mine(pid)):
                is_empty = False
                yield from [pid] if group in groups else _below([pid])
                groups |= {group} - {0}
        orphans = self._settled_orphans() if is_empty else []
        yield from _below([*orphans, *self._launched()])

    def end(self, spared: Iterable[int] = (), waited_for: Iterable[int] = ()) -> set[int]:
        """Kill all of its processes but those `spared`, until none is left; return those that the
        kernel holds. The exit status of the launcher and of those `waited_for` is left to their
        parent.
        """
        looks = 1 if host.finds_all_below() else host.EMPTY_LOOKS
        kept = set(spared)
        groups = {*map(host.group, host.below(self._launched()))} - {0}
        return host.kill(
            lambda: (pid for pid in self.each(groups) if pid not in kept),
            {self.launcher().pid, *waited_for},
            looks=looks,
            spared=kept,
        )

    def _launchers(self) -> set[int]:
        return {family.launcher().pid for family in [self, *self._others()]}

    def _launched(self) -> list[int]:
        launcher = self.launcher()
        return [] if launcher.ended or not launcher.pid else [launcher.pid]

    def _settled_orphans(self) -> list[int]:
        give_up_at = time.monotonic() + self._settle_s
        while True:
            mine, unsettled = self._orphans()
            if not unsettled:
                return mine
            if time.monotonic() >= give_up_at:
                return [*mine, *filter(self._may_be_mine, unsettled)]
            time.sleep(POLL_S)

    def _orphans(self) -> tuple[list[int], list[int]]:
        launchers = self._launchers()
        mine: list[int] = []
        unsettled: list[int] = []
        for pid in [*host.adopted(), *host.children(self.supervisor)]:
            if pid not in launchers:
                is_mine = self._is_mine(pid)
                if is_mine is None:
                    unsettled.append(pid)
                elif is_mine:
                    mine.append(pid)
        return mine, unsettled

    def _is_mine(self, orphan: int) -> Optional[bool]:
        process = host.seen(orphan)
        if process is None or process.zombie:
            return False
        if process.session == os.getsid(0):
            return False  # nobody can come into our session from that of a launcher
        launcher = self.launcher().pid
        if launcher and process.group == launcher:
            return True
        # To read an environment takes a lock that a process which forks has all the while.
        if host.works_in(orphan, self._folder):
            return True
        name = host.attempt_of(orphan)
        if not name and host.program_name(orphan) in ENGINES:
            return False
        if name is None:
            return None
        return name == self._name if name else self._may_be_mine(orphan)

    def _may_be_mine(self, orphan: int) -> bool:
        """Return whether a process without a name began while this attempt ran, and no other that
        still runs.
        """
        process = host.seen(orphan)
        if process is None or process.born < self.since or host.is_our_fork(orphan):
            return False
        return not any(
            other.since <= process.born and not other.launcher().ended for other in self._others()
        )


def _below(roots: list[int]) -> list[int]:
    return list(filter(host.is_there, sorted(set(host.below(roots)), reverse=True)))


class Reaper:
    """Reaps the orphans that the agent has adopted, as soon as they have ended.

    A child for which the agent waits keeps its exit status: each of those is in the agent's own
    session or leads another one, so any other child is reaped at once, and one of those when it has
    been a zombie for `ZOMBIE_S` seconds.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def look(self) -> None:
        """Reap the orphans that have ended. Called often."""
        now, ended = time.monotonic(), host.zombies()
        self._since = {pid: self._since.get(pid, now) for pid in ended}
        for pid, since in self._since.items():
            # Another part of the agent may have reaped it by now.
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                may_be_waited_for = os.getsid(pid) in (pid, os.getsid(0))
                if not may_be_waited_for or now - since >= ZOMBIE_S:
                    os.waitpid(pid, os.WNOHANG)


class ProcessTable(NamedTuple):
    """A limit of the system on processes and threads."""

    name: str  # where it is set
    most: int  # how many there may be
    used: Callable[[], int]  # returns how many there are


class Crowding:
    """The limits that bind this process (Linux; elsewhere none is known)."""

    def __init__(self, tables: Optional[list[ProcessTable]] = None) -> None:
        system = _tables() if sys.platform == "linux" else []
        self._tables = list(system) if tables is None else tables

    def may_be(self) -> bool:
        """Return whether a table may be nearly full. Costs next to nothing."""
        least = min((table.most for table in self._tables), default=0)
        return least > 0 and _of_machine() >= SHARE * least

    def culprit(self, attempts: dict[str, Callable[[], set[int]]]) -> Optional[tuple[str, str]]:
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
            used = partial(_number, folder / "pids.current")
            yield ProcessTable(f"{folder}/pids.max", most, used)
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
