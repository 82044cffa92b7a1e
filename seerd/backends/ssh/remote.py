"""Machines reached over SSH, each with an agent of the run. One SSH connection per machine carries
everything, and no agent depends on it: when it breaks, `connect` makes a new one to the living
agent, or to a new agent that reads the old one's journal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import asyncssh

from seerd.agent.protocol import Expected
from seerd.backends.backend import FREE_BYTES, GRACE_S, PYTHON, Site
from seerd.backends.base import LaunchProgress, Printed, Provider
from seerd.backends.ssh.connecting import (
    KEEPALIVE_S,
    OnFailure,
    RemoteMachine,
    UnreachableError,
    ignore,
    open_connection,
    reach,
)
from seerd.backends.ssh.pushing import Bundle, PackedBundle, pack, run_remote_task
from seerd.clock import unlimited, wall
from seerd.errors import ProviderError
from seerd.units import count

__all__ = ["AgentOptions", "Bundle", "Remote", "RemoteMachine", "TunnelReader"]

AT_ONCE = 16
RECONNECT_S = 10.0
LEAST_END_S, MOST_END_S = 0.3, 10.0
"""Seconds that an agent has to end by itself before it is killed."""
MOST_LOGS, MOST_OF_ALL = 4000, 8 << 20
"""Most logs, and most bytes of them, taken from one answer; the agent sends no more."""
INVALID = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""What reading an answer raises if its values are not those of the protocol."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The options of a run's agents."""

    run: str
    gpus: int  # how many GPUs (`cuda`) or CPU slots a machine has, unless `ready` says otherwise
    cuda: bool
    # how long an agent may go on at first without hearing from the daemon, at most, seconds
    lease_s: float
    grace_s: float = GRACE_S  # how long its trials may then take to save, seconds
    power_off: bool = False  # whether it powers the machine off when its lease ends
    spot: bool = False  # whether it watches for the cloud's notices
    python: str = PYTHON  # interpreter on the machines: a path, or a name on PATH
    # the run's share of their GPUs beside other runs there; None: they are its alone
    weight: float | None = None
    scratch: str = ""  # where a disk will be mounted that its home lies on; empty: nowhere

    def argv(self, lease_s: float) -> list[str]:
        """Return an agent's options without its folder and shape. `lease_s`: the first lease."""
        lease, grace = str(min(self.lease_s, lease_s)), str(self.grace_s)
        options = ["--run", self.run, "--lease-s", lease, "--grace-s", grace]
        share = [] if self.weight is None else ["--share", str(self.weight)]
        return options + share + ["--power-off"] * self.power_off + ["--spot"] * self.spot

    def shape(self, gpus: int | None, cuda: bool | None) -> list[str]:
        """Return the options for a machine's GPUs. None: as on all machines of the run."""
        kind = "--cuda" if (self.cuda if cuda is None else cuda) else "--slots"
        return ["--gpus", str(self.gpus if gpus is None else gpus), kind]


@dataclass(slots=True)
class _Link:
    # held while a task runs there, or a connection to its agent is made
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: asyncssh.SSHClientConnection | None = None  # the SSH connection; None: none
    socket: str | None = None  # path of its agent's socket; None if it must be asked for
    shape: list[str] | None = None  # options that say which GPUs it has
    tree: str = ""  # which source it has, as a checksum; empty: not known
    sending: int = 0  # bytes of the source files that are being sent to it

    def is_open(self) -> bool:
        return self.connection is not None and not self.connection.is_closed()


@dataclass(frozen=True, slots=True)
class TunnelReader:
    """Reads from an agent. A lost connection is an `OSError`; the stream ends with the agent."""

    _reader: asyncssh.SSHReader[bytes]
    _connection: asyncssh.SSHClientConnection
    _place: str

    async def readline(self) -> bytes:
        lost = f"the SSH connection to {self._place} was lost"
        try:
            line = await self._reader.readline()
        except asyncssh.Error as error:
            raise ConnectionResetError(f"{lost}: {error}") from error
        # A server that dies with nothing left unread ends the stream as its agent would.
        if not line and self._connection.is_closed():
            raise ConnectionResetError(lost)
        return line


@dataclass(frozen=True, slots=True)
class TunnelWriter:
    """Sends bytes to an agent. A failure is not raised here: the reader raises it."""

    _writer: asyncssh.SSHWriter[bytes]

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(data)

    def close(self) -> None:
        """Close the connection to the agent; the one to the machine stays."""
        self._writer.close()


class Remote:
    """All machines of a run, `AT_ONCE` of them busy at a time at most; methods raise
    `ProviderError`. `lease_s` is that of `Provider.open`; `jobs` names the jobs that share the run,
    none if it is one job.
    """

    machine: Callable[[str], RemoteMachine]

    def __init__(
        self,
        bundle: Bundle,
        options: AgentOptions,
        reconnect_s: float = RECONNECT_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        self.lease_s: Callable[[], float] = unlimited
        self.jobs: Callable[[], Sequence[str]] = tuple
        self._bundle = bundle
        self._options = options
        self._reconnect_s, self._keepalive_s = reconnect_s, keepalive_s
        self._links: dict[str, _Link] = {}
        self._few = asyncio.Semaphore(AT_ONCE)
        self._packing: asyncio.Task[PackedBundle] | None = None

    async def ready(
        self,
        machine: RemoteMachine,
        patience_s: float,
        gpus: int | None = None,
        cuda: bool | None = None,
        on_failure: OnFailure = ignore,
    ) -> None:
        """Start the run's agent on this machine; try to log in for `patience_s` seconds. `gpus`,
        `cuda`: what this machine has, if that differs from the others.
        """
        link = self._link(machine)
        link.shape = self._options.shape(machine.gpus if gpus is None else gpus, cuda)
        packed = await self._packed()
        async with link.lock:
            await self._begin(machine, link, patience_s, packed, on_failure)

    async def open(self, machine: RemoteMachine) -> asyncssh.SSHClientConnection:
        """Connect and log in once. Raises `UnreachableError`."""
        return await open_connection(machine, self._keepalive_s)

    def of_jobs(self, jobs: Callable[[], list[str]]) -> None:
        self.jobs = jobs

    async def send(self, instance: str) -> None:
        """Send an instance that has an agent what it lacks of the jobs' sources."""
        machine = self.machine(instance)
        link, packed = self._link(machine), await self._packed()
        async with link.lock:
            if link.tree != packed.tree:
                await self._begin(machine, link, self._reconnect_s, packed)

    def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
        """Return a function that also sends the source of one more job, as it is now."""
        more = replace(self._bundle, jobs=(*self.jobs(), job))
        packing = asyncio.create_task(asyncio.to_thread(pack, more))

        async def send(instance: str) -> None:
            machine = self.machine(instance)
            link, packed = self._link(machine), await _read(packing)
            async with link.lock:
                await self._begin(machine, link, self._reconnect_s, packed)

        return send

    async def connect(self, machine: RemoteMachine) -> tuple[TunnelReader, TunnelWriter]:
        """Return a byte stream to the machine's agent, which is started if it does not run."""
        link, packed = self._link(machine), await self._packed()
        async with link.lock:
            if link.socket is not None and link.is_open():
                with contextlib.suppress(OSError, asyncssh.Error):
                    return await _tunnel(machine, link)
            await self._begin(machine, link, self._reconnect_s, packed)
            try:
                return await _tunnel(machine, link)
            except (OSError, asyncssh.Error) as error:
                raise ProviderError(
                    f"{machine}: no way to the agent's socket {link.socket}: {error} "
                    "(does its sshd_config say AllowStreamLocalForwarding no?)"
                ) from error

    async def end_agent(self, machine: RemoteMachine, grace_s: float) -> None:
        """End the machine's agent, after its trials had `grace_s` seconds to save."""
        link = self._link(machine)
        async with link.lock:
            await self._run_task(machine, link, "end-agent", self._reconnect_s, grace_s=grace_s)
            link.socket = None

    async def end(self, machine: RemoteMachine, patience_s: float = RECONNECT_S) -> None:
        """End every process of the run on this machine within `patience_s` seconds, and delete its
        folder there, but for the logs. An agent that does not end by itself in half of the time is
        killed.
        """
        link, end = self._link(machine), asyncio.get_running_loop().time() + patience_s
        async with link.lock:
            left_s = max(0.0, end - asyncio.get_running_loop().time())
            ending_s = min(MOST_END_S, max(LEAST_END_S, left_s / 2))
            await self._run_task(machine, link, "end", left_s, patience_s=ending_s)
            link.socket, link.tree = None, ""

    async def let_go(self, machine: RemoteMachine, until: float) -> float:
        """Leave a machine for another run, without a process or a file of this one, after it has
        set its own power-off to `until` (wall clock, seconds since 1970); return in how many
        seconds that comes.
        """
        link, left_s = self._link(machine), until - wall()
        async with link.lock:
            done = await self._run_task(
                machine, link, "let-go", self._reconnect_s, left_s=left_s, until=until
            )
            link.socket, link.tree = None, ""
        try:
            return float(done["left_s"])
        except INVALID:
            raise ProviderError(f"{machine} did not say when it ends") from None

    async def end_in(self, machine: RemoteMachine, left_s: float) -> None:
        """Have a machine power itself off in so many seconds, and not before."""
        link = self._link(machine)
        async with link.lock:
            await self._run_task(machine, link, "end-in", self._reconnect_s, left_s=left_s)

    async def left(self, machine: RemoteMachine, patience_s: float | None = None) -> list[str]:
        """Return the run's processes that still run there, one line each."""
        link = self._link(machine)
        async with link.lock:
            patience_s = self._reconnect_s if patience_s is None else patience_s
            processes = await self._run_task(machine, link, "left", patience_s)
        if not isinstance(processes, list):
            raise ProviderError(f"{machine} did not say what runs there")
        return [f"{machine.name}: {process}" for process in processes]

    async def printed(self, instance: str, after: float) -> Printed | None:
        """Return the logs that have grown after `after` (seconds, by the machine's files); None if
        there is no connection at present.
        """
        machine = self.machine(instance)
        link = self._links.get(machine.name)
        if link is None or link.connection is None or not link.is_open():
            return None
        run, python, packed = self._options.run, self._options.python, await self._packed()
        try:
            answer = await run_remote_task(
                link.connection, "printed", run, python, packed, {"after": after}
            )
            logs = await asyncio.to_thread(_unpacked, answer["logs"])
            return Printed(machine.name, logs, float(answer["until"]), bool(answer["more"]))
        except UnreachableError:
            return None
        except (*INVALID, zlib.error) as error:
            raise ProviderError(f"{machine} did not say what its trials have printed") from error

    async def read(self, instance: str, path: str, to: Path, most: int) -> None:
        """Copy files of an instance: see `base.Reader`. The path needs no quotes in any shell."""
        machine = self.machine(instance)
        link = self._link(machine)
        command = f"cat ~/.seerd/{self._options.run}/{path} | head -c {most}"
        try:
            if link.connection is None:
                raise OSError("there is no connection to it")
            quiet = {"stdin": asyncssh.DEVNULL, "stderr": asyncssh.DEVNULL, "encoding": None}
            await link.connection.run(command, stdout=str(to), check=True, **quiet)
        except (OSError, asyncssh.Error) as error:
            raise ProviderError(f"{machine}: {path} cannot be read: {error}") from error

    def uploads(self) -> str:
        """Return what is being sent to machines, for people; empty: nothing."""
        sizes = [link.sending for link in self._links.values() if link.sending]
        if not sizes:
            return ""
        return (
            f"the source is being sent to {count(len(sizes), 'machine')}, {max(sizes) / 1e6:,.0f} "
            "MB; leave out what trials do not read with .seerdignore, and fetch what they read "
            "with train.data"
        )

    async def forget(self, name: str) -> None:
        """Drop the connection to this machine without a goodbye: the machine is gone."""
        link = self._links.pop(name, None)
        if link is not None and link.connection is not None:
            link.connection.abort()

    async def close(self) -> None:
        """Close all connections. Agents go on by themselves."""
        if self._packing is not None:
            self._packing.cancel()
        links, self._links = list(self._links.values()), {}
        open_ones = [link.connection for link in links if link.connection is not None]
        for connection in open_ones:
            connection.close()
        await asyncio.gather(
            *(connection.wait_closed() for connection in open_ones), return_exceptions=True
        )

    def site(
        self,
        provider: Provider,
        machine: Callable[[str], RemoteMachine],
        region: str | None = None,
        prolong: Callable[[float], None] | None = None,
        progress: Callable[[], Awaitable[LaunchProgress]] | None = None,
    ) -> Site:
        """Return the site of these machines. `machine`: returns how to log in to an instance."""
        self.machine = machine
        expected = Expected(gpus=0, free_bytes=FREE_BYTES, torch=True)
        site = Site(provider, self.printed, self, expected, region, prolong, progress)
        return replace(site, read=self.read)

    def _link(self, machine: RemoteMachine) -> _Link:
        return self._links.setdefault(machine.name, _Link())

    async def _begin(
        self,
        machine: RemoteMachine,
        link: _Link,
        patience_s: float,
        packed: PackedBundle,
        on_failure: OnFailure = ignore,
    ) -> None:
        done = await self._run_task(machine, link, "begin", patience_s, packed, on_failure)
        try:
            link.socket = str(done["socket"])
        except INVALID:
            raise ProviderError(f"{machine} did not say where its agent is") from None
        link.tree = packed.tree

    async def _run_task(
        self,
        machine: RemoteMachine,
        link: _Link,
        do: str,
        reach_s: float,
        packed: PackedBundle | None = None,
        on_failure: OnFailure = ignore,
        **more: object,
    ) -> Any:
        """Run a remote task there, reconnecting for up to `reach_s` seconds; return its result."""
        packed = packed or await self._packed()
        details = {
            "tree": packed.tree,
            "options": self._options.argv(self.lease_s()),
            "shape": link.shape,
            "usual_shape": self._options.shape(None, None),
            "scratch": self._options.scratch,
            **more,
        }
        run, python = self._options.run, self._options.python

        def sending(size: int) -> None:
            link.sending = size

        async def attempt() -> Any:
            async with self._few:
                if link.connection is None or not link.is_open():
                    link.connection, link.socket = None, None
                    link.connection = await self.open(machine)
                try:
                    return await run_remote_task(
                        link.connection, do, run, python, packed, details, sending
                    )
                except ProviderError as error:
                    raise ProviderError(f"{machine}: {error}") from error
                finally:
                    sending(0)

        return await reach(machine, reach_s, attempt, on_failure=on_failure)

    async def _packed(self) -> PackedBundle:
        """Return the bundle, read from disk once for the same jobs."""
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


def _unpacked(
    packed: dict[str, str], most_logs: int = MOST_LOGS, left: int = MOST_OF_ALL
) -> dict[str, bytes]:
    """Return logs by name, cut to the limits, which the machine may not keep to."""
    logs: dict[str, bytes] = {}
    for name, text in islice(packed.items(), most_logs):
        if left <= 0:
            break
        logs[str(name)] = zlib.decompressobj().decompress(base64.b64decode(text), left)
        left -= len(logs[name])
    return logs


async def _tunnel(machine: RemoteMachine, link: _Link) -> tuple[TunnelReader, TunnelWriter]:
    assert link.connection is not None
    assert link.socket is not None
    reader, writer = await link.connection.open_unix_connection(link.socket, encoding=None)
    return TunnelReader(reader, link.connection, machine.place), TunnelWriter(writer)
