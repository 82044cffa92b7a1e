"""Machines reached over SSH, each with an agent of the run: made ready, connected to, ended.

The one rule: one SSH connection per machine carries everything, and an agent never depends on it.
When a connection breaks, `connect` makes a new one to the agent that is still there, or to a new
agent that reads the old one's journal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import asyncssh

from seerd.backends.ssh.connecting import RemoteMachine, UnreachableError, open_connection
from seerd.backends.ssh.pushing import (
    Bundle,
    PackedBundle,
    RemoteTask,
    Upload,
    pack,
    run_remote_task,
)
from seerd.clock import unlimited
from seerd.errors import ProviderError

__all__ = ["AgentOptions", "Bundle", "Remote", "RemoteMachine", "TunnelReader"]

AT_ONCE = 16
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 1.0
RECONNECT_S = 10.0
LEAST_END_S, MOST_END_S = 0.3, 10.0
"""Seconds that an agent has to end by itself before it is killed."""
MOST_LOGS, MOST_OF_ALL = 4000, 8 << 20
"""Most logs, and most bytes of them, taken from one answer; the agent sends no more."""
FREE_S = 7.0
"""Penalties, in seconds, that need no pause. sshd acts on them from 15 s on (sshd_config(5),
PerSourcePenalties), so the first few attempts may follow each other quickly.
"""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How agents of a run are started."""

    run: str
    gpus: int  # how many GPUs (`cuda`) or CPU slots a machine has, unless `ready` says otherwise
    cuda: bool
    # how long an agent may go on at first without hearing from the daemon, at most, seconds
    lease_s: float
    grace_s: float  # how long its trials may then take to save, seconds
    power_off: bool  # whether it powers the machine off when its lease ends
    spot: bool  # whether it watches for the cloud's notices
    python: str  # interpreter on the machines: a path, or a name on PATH
    # the run's share of their GPUs beside other runs there; None: they are its alone
    weight: float | None = None

    def argv(self, lease_s: float) -> list[str]:
        """Return the options of the agent's command line, without its folder and its shape, for an
        agent that may go on for no more than `lease_s` seconds at first.
        """
        options = [
            "--run",
            self.run,
            "--lease-s",
            str(min(self.lease_s, lease_s)),
            "--grace-s",
            str(self.grace_s),
        ]
        share = [] if self.weight is None else ["--share", str(self.weight)]
        return options + share + ["--power-off"] * self.power_off + ["--spot"] * self.spot

    def shape(self, gpus: int | None, cuda: bool | None) -> list[str]:
        """Return the options that say what a machine has. None: the same as on all machines of the
        run.
        """
        kind = "--cuda" if (self.cuda if cuda is None else cuda) else "--slots"
        return ["--gpus", str(self.gpus if gpus is None else gpus), kind]


@dataclass(slots=True)
class _Line:
    """What is known of one machine."""

    # held while a task runs there, or a connection to its agent is made
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: asyncssh.SSHClientConnection | None = None  # the SSH connection; None: none
    socket: str | None = None  # path of its agent's socket; None if it must be asked for
    shape: list[str] | None = None  # options that say which GPUs it has
    tree: str = ""  # which source it has, as a checksum; empty: not known
    received: int = 0  # bytes of source files that were sent to it
    upload: Upload = field(default_factory=Upload)  # how far the present upload of source files is


class TunnelReader:
    """Reads what an agent says. A lost connection is an `OSError` with its cause; if the agent
    closes it, the stream ends.
    """

    def __init__(
        self,
        reader: asyncssh.SSHReader[bytes],
        connection: asyncssh.SSHClientConnection,
        place: str,
    ) -> None:
        self._reader = reader
        self._connection = connection
        self._place = place

    async def readline(self) -> bytes:
        """Return the next line with its end, or what was left when the stream ended. Raises
        `ConnectionResetError`.
        """
        lost = f"the SSH connection to {self._place} was lost"
        try:
            line = await self._reader.readline()
        except asyncssh.Error as error:
            raise ConnectionResetError(f"{lost}: {error}") from error
        # A server that dies with nothing left unread ends the stream as its agent would.
        if not line and self._connection.is_closed():
            raise ConnectionResetError(lost)
        return line


class TunnelWriter:
    """Sends bytes to an agent. A failure is not raised here: the reader raises it."""

    def __init__(self, writer: asyncssh.SSHWriter[bytes]) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Send these bytes."""
        with contextlib.suppress(OSError):
            self._writer.write(data)

    def close(self) -> None:
        """End the connection to the agent; the one to the machine stays."""
        self._writer.close()


class Remote:
    """All machines of a run. At most `AT_ONCE` of them are connected to or sent to at the same
    time. `lease_s` is that of `Provider.open`; `jobs` names the jobs that share the run, none if it
    is one job.
    """

    def __init__(self, bundle: Bundle, options: AgentOptions) -> None:
        self.lease_s: Callable[[], float] = unlimited
        self.jobs: Callable[[], Sequence[str]] = tuple
        self._bundle = bundle
        self._options = options
        self._lines: dict[str, _Line] = {}
        self._few = asyncio.Semaphore(AT_ONCE)
        self._packing: asyncio.Task[PackedBundle] | None = None

    async def ready(
        self,
        machine: RemoteMachine,
        patience_s: float,
        gpus: int | None = None,
        cuda: bool | None = None,
    ) -> None:
        """Have the run's agent take connections on this machine, with all that it needs; try for
        `patience_s` seconds to log in.

        `gpus`, `cuda`: what this machine has, if not the same as the others. Raises `ProviderError`
        with the cause.
        """
        line = self._line(machine)
        line.shape = self._options.shape(gpus, cuda)
        packed = await self._packed()
        async with line.lock:
            await self._begin(machine, line, patience_s, packed)

    async def send(self, machine: RemoteMachine) -> None:
        """Send a machine that has an agent what it lacks of the jobs' sources. Raises
        `ProviderError`.
        """
        line, packed = self._line(machine), await self._packed()
        async with line.lock:
            if line.tree != packed.tree:
                await self._begin(machine, line, RECONNECT_S, packed)

    def with_one_more(self, job: str) -> Callable[[RemoteMachine], Awaitable[None]]:
        """Return what does the same with the source of one more job, as it is now."""
        more = replace(self._bundle, jobs=(*self.jobs(), job))
        packing = asyncio.create_task(asyncio.to_thread(pack, more))

        async def send(machine: RemoteMachine) -> None:
            line, packed = self._line(machine), await _read(packing)
            async with line.lock:
                await self._begin(machine, line, RECONNECT_S, packed)

        return send

    async def connect(self, machine: RemoteMachine) -> tuple[TunnelReader, TunnelWriter]:
        """Return a byte stream to the machine's agent, which is started if it does not run. Raises
        `ProviderError`.
        """
        line, packed = self._line(machine), await self._packed()
        async with line.lock:
            if line.socket is not None and _is_open(line):
                with contextlib.suppress(OSError, asyncssh.Error):
                    return await _tunnel(machine, line)
            await self._begin(machine, line, RECONNECT_S, packed)
            try:
                return await _tunnel(machine, line)
            except (OSError, asyncssh.Error) as error:
                raise ProviderError(
                    f"{_named(machine)}: no way to the agent's socket {line.socket}: {error} "
                    "(does its sshd_config say AllowStreamLocalForwarding no?)"
                ) from error

    async def end_agent(self, machine: RemoteMachine, grace_s: float) -> None:
        """End the machine's agent, after its trials had `grace_s` seconds to save. All else stays
        for the next agent. Raises `ProviderError`.
        """
        line = self._line(machine)
        async with line.lock:
            await self._run_task(machine, line, "end-agent", RECONNECT_S, grace_s=grace_s)
            line.socket = None

    async def end(self, machine: RemoteMachine, patience_s: float = RECONNECT_S) -> None:
        """End the agent and every process of the run on this machine, and delete the run's folder
        there, but for the logs. An agent that does not end by itself in half of the time is killed.
        Raises `ProviderError`.

        `patience_s`, in seconds, includes the time spent waiting for other tasks on the same
        machine.
        """
        line, end = self._line(machine), asyncio.get_running_loop().time() + patience_s
        async with line.lock:
            left_s = max(0.0, end - asyncio.get_running_loop().time())
            ending_s = min(MOST_END_S, max(LEAST_END_S, left_s / 2))
            await self._run_task(machine, line, "end", left_s, patience_s=ending_s)
            line.socket, line.tree = None, ""

    async def left(self, machine: RemoteMachine, patience_s: float | None = None) -> list[str]:
        """Return what of the run still runs there, one line each. Raises `ProviderError` if the
        machine cannot be asked.
        """
        line = self._line(machine)
        async with line.lock:
            patience_s = RECONNECT_S if patience_s is None else patience_s
            found = await self._run_task(machine, line, "left", patience_s)
        if not isinstance(found, list):
            raise ProviderError(f"{_named(machine)} did not say what runs there")
        return [f"{machine.name}: {what}" for what in found]

    async def printed(
        self, machine: RemoteMachine, after: float
    ) -> tuple[dict[str, bytes], float, bool] | None:
        """Return what trials have printed there after `after` (seconds, by the machine's files):
        the logs by name, the `after` for the next call, and whether there is more to fetch now.
        Return None if there is no connection at present. Raises `ProviderError` if the answer makes
        no sense.
        """
        line = self._lines.get(machine.name)
        if line is None or line.connection is None or not _is_open(line):
            return None
        task = RemoteTask("printed", self._options.run, self._options.python, {"after": after})
        try:
            found = await run_remote_task(line.connection, task, await self._packed())
            logs = await asyncio.to_thread(_unpacked, found["logs"])
            return logs, float(found["until"]), bool(found["more"])
        except UnreachableError:
            return None
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            zlib.error,
        ) as error:
            raise ProviderError(
                f"{_named(machine)} did not say what its trials have printed"
            ) from error

    def received(self, name: str) -> int:
        """Return how many bytes of source files this machine has had to be sent so far."""
        return self._lines[name].received if name in self._lines else 0

    def uploads(self) -> str:
        """Say how far the upload of source files to machines has come; empty: there is none."""
        here = [line.upload for line in self._lines.values() if line.upload.sent < line.upload.size]
        if not here:
            return ""
        to = "1 machine" if len(here) == 1 else f"{len(here)} machines"
        sent, size = sum(one.sent for one in here), sum(one.size for one in here)
        largest = here[0].largest
        return (
            f"the source is being sent to {to}: {sent / 1e6:,.0f} of {size / 1e6:,.0f} MB so far. "
            f"The largest file: {largest.name} ({largest.stat().st_size / 1e6:,.0f} MB); leave out "
            "what trials do not read with .seerdignore, and fetch what they read with train.data"
        )

    async def forget(self, name: str) -> None:
        """Drop the connection to this machine without a goodbye: the machine is gone."""
        line = self._lines.pop(name, None)
        if line is not None and line.connection is not None:
            line.connection.abort()

    async def close(self) -> None:
        """Close all connections. Agents go on by themselves."""
        if self._packing is not None:
            self._packing.cancel()
        lines, self._lines = list(self._lines.values()), {}
        open_ones = [line.connection for line in lines if line.connection is not None]
        for connection in open_ones:
            connection.close()
        await asyncio.gather(
            *(connection.wait_closed() for connection in open_ones), return_exceptions=True
        )

    def _line(self, machine: RemoteMachine) -> _Line:
        return self._lines.setdefault(machine.name, _Line())

    async def _begin(
        self, machine: RemoteMachine, line: _Line, patience_s: float, packed: PackedBundle
    ) -> None:
        done = await self._run_task(machine, line, "begin", patience_s, packed)
        try:
            line.socket, received = str(done["socket"]), int(done["received"])
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise ProviderError(f"{_named(machine)} did not say where its agent is") from None
        line.tree = packed.tree
        line.received += received

    async def _run_task(
        self,
        machine: RemoteMachine,
        line: _Line,
        do: str,
        reach_s: float,
        packed: PackedBundle | None = None,
        **more: object,
    ) -> Any:
        """Run a remote task there, reconnecting for up to `reach_s` seconds, and return its
        result. Raises `ProviderError`.
        """
        packed = packed or await self._packed()
        details = {
            "tree": packed.tree,
            "options": self._options.argv(self.lease_s()),
            "shape": line.shape,
            "usual_shape": self._options.shape(None, None),
            **more,
        }
        task = RemoteTask(do, self._options.run, self._options.python, details)
        patience = _Patience(reach_s)
        while True:
            try:
                async with self._few:
                    connection = await _connected(machine, line)
                    return await run_remote_task(connection, task, packed, line.upload)
            except UnreachableError as error:
                if error.final:
                    raise ProviderError(f"{_named(machine)}: {error}") from error
                if not await patience.waits(error.pause_s):
                    raise ProviderError(
                        f"{_named(machine)} could not be reached over SSH within "
                        f"{reach_s:.0f}s: {error}"
                    ) from error
            except ProviderError as error:
                raise ProviderError(f"{_named(machine)}: {error}") from error

    async def _packed(self) -> PackedBundle:
        """Return the bundle, read from disk once for the same jobs. Raises `ProviderError`."""
        jobs = tuple(self.jobs())
        if self._packing is None or jobs != self._bundle.jobs:
            self._bundle = replace(self._bundle, jobs=jobs)
            self._packing = asyncio.create_task(asyncio.to_thread(pack, self._bundle))
        return await _read(self._packing)


async def _read(packing: asyncio.Task[PackedBundle]) -> PackedBundle:
    try:
        return await asyncio.shield(packing)
    except OSError as error:
        raise ProviderError(f"what is to be sent cannot be read: {error}") from error


def _unpacked(packed: dict[str, str]) -> dict[str, bytes]:
    """Return logs by name, cut to `MOST_LOGS` and `MOST_OF_ALL`: the machine is not trusted to keep
    to these limits.
    """
    logs: dict[str, bytes] = {}
    left = MOST_OF_ALL
    for name, text in islice(packed.items(), MOST_LOGS):
        if left <= 0:
            break
        logs[str(name)] = zlib.decompressobj().decompress(base64.b64decode(text), left)
        left -= len(logs[name])
    return logs


async def _connected(machine: RemoteMachine, line: _Line) -> asyncssh.SSHClientConnection:
    """Return the machine's open connection, or a new one. Raises `UnreachableError`."""
    if line.connection is None or not _is_open(line):
        line.connection, line.socket = None, None
        line.connection = await open_connection(machine)
    return line.connection


def _is_open(line: _Line) -> bool:
    return line.connection is not None and not line.connection.is_closed()


async def _tunnel(machine: RemoteMachine, line: _Line) -> tuple[TunnelReader, TunnelWriter]:
    assert line.connection is not None
    assert line.socket is not None
    reader, writer = await line.connection.open_unix_connection(line.socket, encoding=None)
    return TunnelReader(reader, line.connection, machine.place), TunnelWriter(writer)


class _Patience:
    """The pauses between attempts, for `for_s` seconds in all. Each is a little longer than the
    last, and random, so that machines are not all tried at the same moment.
    """

    def __init__(self, for_s: float) -> None:
        self._end = asyncio.get_running_loop().time() + for_s
        self._wait_s = FIRST_WAIT_S
        self._penalty_s = 0.0

    async def waits(self, penalty_s: float) -> bool:
        """Pause before the next attempt; return False, without a pause, if no time is left for it.
        `penalty_s`: sshd's penalty for the last attempt, seconds.
        """
        self._penalty_s += penalty_s
        least_s = penalty_s if self._penalty_s > FREE_S else 0.0
        pause_s = max(least_s, self._wait_s) * random.uniform(1.0, 1.5)  # noqa: S311
        if asyncio.get_running_loop().time() + pause_s > self._end:
            return False
        await asyncio.sleep(pause_s)
        self._wait_s = min(LONGEST_WAIT_S, self._wait_s * 1.5)
        return True


def _named(machine: RemoteMachine) -> str:
    return machine.name if machine.name == machine.place else f"{machine.name} ({machine.place})"
