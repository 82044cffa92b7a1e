"""This machine as the only instance: its agent is a detached process that survives the daemon and
listens on a Unix socket.

The one rule: an instance is its folder. The agent holds a lock in it for as long as it lives, and
whatever a dead agent left behind is cleaned up by the next one that is started there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
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

from seerd.errors import ProviderError
from seerd.shell.clock import wall
from seerd.shell.providers.base import Connection, Launched, Loss, Span, never

START_S = 20.0
END_S = 10.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class LocalProvider:
    """Instances in subfolders of `folder`, each with `gpus` GPUs (`cuda`) or CPU slots; `bundle` is
    the agent's zip.
    """

    folder: Path
    run: str
    bundle: Path
    gpus: int
    cuda: bool
    lease_s: float
    grace_s: float
    spawned: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)
    given_back: set[str] = field(default_factory=set)

    async def open(self) -> None:
        """This machine is there."""

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> list[str]:
        """Those whose folders have not been deleted; others cannot be, since an instance is its
        folder.
        """
        return [instance for instance in known if self._there(instance)]

    async def launch(self, token: str, orphan_timeout_s: float | None = None) -> Launched:
        """The instance for this token: a folder of that name with an agent running in it."""
        instance = _named(token)
        (self.folder / instance).mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._ensure_agent(instance)
        return Launched(instance, self.gpus, wall())

    async def connect(self, instance: str) -> Connection:
        """A connection to its socket, by a path that is short enough for one. Once it is given
        back, no agent is started for it.
        """
        if not self._there(instance):
            raise ProviderError(f"{instance} has been removed")
        if instance not in self.given_back:
            await self._ensure_agent(instance)
        with _short(self.folder / instance) as path:
            return await asyncio.open_unix_connection(str(path / "agent.sock"), limit=1 << 21)

    async def end_agent(self, instance: str, grace_s: float) -> None:
        """Ask it to, then by force; what it leaves running ends by the hand of the next one."""
        _signal(self.folder / instance, signal.SIGTERM)
        if not await _wait(lambda: not self._runs(instance), grace_s + END_S):
            self._kill(instance)
            await _wait(lambda: not self._runs(instance), END_S)

    def address(self, instance: str) -> str:
        """There is only this machine."""
        return "127.0.0.1"

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        """See its agent end, by force if need be; a new one then cleans up after it, so no process
        is left.
        """
        instance = name if self._there(name) else _named(name)
        self.given_back.add(instance)
        if self._there(instance):
            await self._end(instance)
        return Span()

    async def loss(self) -> Loss:
        """This machine does not go away."""
        return await never()

    async def leftovers(self) -> list[str]:
        """Agents that still live."""
        folders = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        return [
            f"{folder.name}: its agent still runs" for folder in folders if self._runs(folder.name)
        ]

    async def close(self) -> None:
        """Nothing is open."""

    async def _end(self, instance: str) -> None:
        folder = self.folder / instance
        orderly = self._runs(instance) and await _wait(lambda: not self._runs(instance), END_S)
        if orderly:
            return
        self._kill(instance)
        await _wait(lambda: not self._runs(instance), END_S)
        await self._ensure_agent(instance)
        _signal(folder, signal.SIGTERM)
        if not await _wait(lambda: not self._runs(instance), END_S):
            raise ProviderError(
                f"the agent in {folder} does not end; kill the process that `fuser "
                "agent.lock` names"
            )

    def _runs(self, instance: str) -> bool:
        """Whether an agent lives there, or one has been started that has not got so far as to take
        its lock.
        """
        return _locked(self.folder / instance) or any(
            one.poll() is None for one in self.spawned.get(instance, ())
        )

    def _kill(self, instance: str) -> None:
        if _locked(self.folder / instance):
            _signal(self.folder / instance, signal.SIGKILL)
        for process in self.spawned.get(instance, ()):
            process.kill()

    def _there(self, instance: str) -> bool:
        return (self.folder / instance).is_dir()

    async def _ensure_agent(self, instance: str) -> None:
        folder = self.folder / instance
        if not _locked(folder):
            self.spawned.setdefault(instance, []).append(self._spawn(folder))
        if not await _wait(lambda: _answers(folder), START_S):
            raise ProviderError(
                f"the agent in {folder} did not start; its last lines:\n{_tail(folder)}"
            )

    def _spawn(self, folder: Path) -> subprocess.Popen[bytes]:
        kind = "--cuda" if self.cuda else "--slots"
        command = [
            sys.executable,
            "-I",
            str(self.bundle),
            "--folder",
            str(folder),
            "--run",
            self.run,
            kind,
        ]
        command += [
            "--gpus",
            str(self.gpus),
            "--lease-s",
            str(self.lease_s),
            "--grace-s",
            str(self.grace_s),
        ]
        with (folder / "agent.out").open("ab") as out:
            return subprocess.Popen(
                command,
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
    """A short path to a folder: the address of a Unix socket holds about a hundred bytes
    (unix(7)).
    """
    with tempfile.TemporaryDirectory(prefix="seerd-") as short:
        link = Path(short) / "i"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link


def _locked(folder: Path) -> bool:
    """Whether an agent lives in this folder."""
    try:
        descriptor = os.open(folder / "agent.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _answers(folder: Path) -> bool:
    """Whether the agent that lives in this folder takes connections."""
    if not _locked(folder):
        return False
    with _short(folder) as path, socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path / "agent.sock")) == 0


def _signal(folder: Path, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
        os.kill(int((folder / "agent.pid").read_text()), number)


def _tail(folder: Path) -> str:
    try:
        return "\n".join((folder / "agent.out").read_text(errors="replace").splitlines()[-20:])
    except FileNotFoundError:
        return "(nothing)"


async def _wait(condition: Callable[[], bool], for_s: float) -> bool:
    """Whether the condition came true in time."""
    end = asyncio.get_running_loop().time() + for_s
    while not condition():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True
