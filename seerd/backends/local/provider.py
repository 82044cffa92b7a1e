"""This machine as the only instance. Its agent is a detached process, which survives the daemon and
listens on a Unix socket. An instance is its folder, in which a living agent holds a lock; the next
agent there cleans up after a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seerd.agent.host import attempt_of, below, each_of_run, is_there, keeper_mark, kill, seen
from seerd.agent.plainfile import is_locked
from seerd.backends.base import Adopted, Connection, Launched, Leftovers, Provider, Span
from seerd.clock import unlimited, wall
from seerd.errors import ProviderError

LEAST_S = 0.3  # seconds that an agent has to end although the run's time is up
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class LocalProvider(Provider):
    """Instances in subfolders of `folder`: see `base.Provider`."""

    folder: Path  # where the instances' folders are
    run: str  # the run's id
    bundle: Path  # the agent's zip
    gpus: int  # how many GPUs (`cuda`) or CPU slots an instance has
    cuda: bool  # whether `gpus` counts GPUs
    lease_s: float  # how long an agent may go on at first without hearing from the daemon, seconds
    grace_s: float  # how long its trials may then take to save, seconds
    weight: float = 1.0  # the run's share of the GPUs beside other runs on this machine
    start_s: float = 20.0  # how long an agent may take until it answers, seconds
    end_s: float = 10.0  # how long one may take to end when it is asked to, seconds
    # the agents' processes that were started here, by instance
    spawned: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)
    # instances that were given back: `connect` starts no agent for them any more
    given_back: set[str] = field(default_factory=set)

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None:
        """Do nothing: this machine is there, and its agents cost nothing by themselves."""

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        return [instance for instance in known if self._exists(instance)], []

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        instance = _named(token)
        (self.folder / instance).mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._ensure_agent(instance)
        return Launched(instance, self.gpus, wall())

    async def connect(self, instance: str) -> Connection:
        if not self._exists(instance):
            raise ProviderError(f"{instance} has been removed")
        if instance not in self.given_back:
            await self._ensure_agent(instance)
        with _short(self.folder / instance) as path:
            return await asyncio.open_unix_connection(str(path / "agent.sock"), limit=1 << 21)

    async def end_agent(self, instance: str, grace_s: float) -> None:
        _signal(self.folder / instance, signal.SIGTERM)
        if not await _wait(lambda: not self._runs(instance), grace_s + self.end_s):
            self._kill(instance)
            await _wait(lambda: not self._runs(instance), self.end_s)

    def journal(self, instance: str) -> Path:
        return self.folder / instance / "journal.jsonl"

    def address(self, instance: str) -> str:
        return "127.0.0.1"

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        """Wait for the agent to end, else kill it and every process of the run here. If there are
        `end_s` seconds to spare, a new agent then stores what trials had saved. Raises
        `ProviderError` if processes cannot be killed, or the new agent does not start or end.
        """
        instance = name if self._exists(name) else _named(name)
        self.given_back.add(instance)
        if not self._exists(instance):
            return Span()
        folder = self.folder / instance
        spare_until = asyncio.get_running_loop().time() + spare_s
        patience_s = min(self.end_s, max(LEAST_S, spare_s / 2))
        orderly = self._runs(instance) and await _wait(lambda: not self._runs(instance), patience_s)
        if orderly:
            return Span()
        started = self._kill(instance)

        def living() -> Iterator[int]:
            same = [pid for pid, born in started.items() if _born(pid) == born]
            yield from filter(is_there, below(same))
            yield from each_of_run(self.run)

        left = await asyncio.to_thread(kill, living, set())
        if left:
            raise ProviderError(f"the processes {sorted(left)} of the run cannot be killed")
        await _wait(lambda: not self._runs(instance), self.end_s)
        if spare_until - asyncio.get_running_loop().time() < self.end_s:
            return Span()
        await self._ensure_agent(instance)
        _signal(folder, signal.SIGTERM)
        if not await _wait(lambda: not self._runs(instance), self.end_s):
            raise ProviderError(
                f"the agent in {folder} does not end; kill the process that `fuser "
                "agent.lock` names"
            )
        return Span()

    async def leftovers(self) -> Leftovers:
        folders = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        alive = [folder.name for folder in folders if self._runs(folder.name)]
        return Leftovers([f"{name}: its agent still runs" for name in alive])

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def _runs(self, instance: str) -> bool:
        """Return whether an agent lives there, or was started and has not taken its lock yet."""
        return _locked(self.folder / instance) or any(
            process.poll() is None for process in self.spawned.get(instance, ())
        )

    def _kill(self, instance: str) -> dict[int, int]:
        """Kill the agent; return its processes' ids and births, but for keepers of GPU leases."""
        spawned = self.spawned.get(instance, ())
        alive = [process.pid for process in spawned if process.poll() is None]
        started = {
            pid: _born(pid)
            for pid in below(alive)
            if pid not in alive and attempt_of(pid) != keeper_mark(self.run)
        }
        if _locked(self.folder / instance):
            _signal(self.folder / instance, signal.SIGKILL)
        for process in spawned:
            process.kill()
        return started

    def _exists(self, instance: str) -> bool:
        return (self.folder / instance).is_dir()

    async def _ensure_agent(self, instance: str) -> None:
        folder = self.folder / instance
        if not _locked(folder):
            self.spawned.setdefault(instance, []).append(self._spawn(folder))
        if not await _wait(lambda: _answers(folder), self.start_s):
            lines: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                lines = (folder / "agent.out").read_text(errors="replace").splitlines()[-20:]
            tail = "\n".join(lines) or "(nothing)"
            raise ProviderError(f"the agent in {folder} did not start; its last lines:\n{tail}")

    def _spawn(self, folder: Path) -> subprocess.Popen[bytes]:
        kind = "--cuda" if self.cuda else "--slots"
        options: list[object] = [kind, "--folder", folder, "--run", self.run]
        options += ["--gpus", self.gpus, "--share", self.weight]
        options += ["--lease-s", self.lease_s, "--grace-s", self.grace_s]
        with (folder / "agent.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", str(self.bundle), *map(str, options)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                start_new_session=True,
            )


def _named(token: str) -> str:
    return f"local-{token.split('.', maxsplit=1)[0]}"


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[Path]:
    """Give a folder a short path: a Unix socket's address has about a hundred bytes (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="seerd-") as short:
        link = Path(short) / "i"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link


def _locked(folder: Path) -> bool:
    return is_locked(folder / "agent.lock")


def _answers(folder: Path) -> bool:
    """Return whether the agent that lives in this folder takes connections."""
    if not _locked(folder):
        return False
    with _short(folder) as path, socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path / "agent.sock")) == 0


def _signal(folder: Path, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
        os.kill(int((folder / "agent.pid").read_text()), number)


def _born(pid: int) -> int:
    """Return when a process began, in ticks since boot; -1 if it is gone."""
    process = seen(pid)
    return -1 if process is None else process.born


async def _wait(condition: Callable[[], bool], for_s: float) -> bool:
    """Wait up to `for_s` seconds for the condition; return whether it came true."""
    end = asyncio.get_running_loop().time() + for_s
    while not condition():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True
