"""Launches that are watched: what EC2 answered when, and how far the login has come. The launch
itself is that of a run (`Ec2Provider`, `Remote`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import asyncssh

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import COMMAND, ENDING
from seerd.backends.base import Connection
from seerd.backends.ec2.fleet import MENDED
from seerd.backends.ssh.connecting import TCP_S, RemoteMachine, UnreachableError, open_connection
from seerd.backends.ssh.remote import Remote
from seerd.clock import unlimited, wall
from seerd.commands.canary.outcome import LaunchMoments
from seerd.errors import ProviderError

AGAIN_S = 0.2  # seconds between attempts to log in
LASTS_S = 10.0  # seconds of refusals after which credentials are taken for ended


@dataclass(slots=True)
class Watched:
    """A launch that is watched."""

    moments: LaunchMoments = field(default_factory=LaunchMoments)  # when what was seen
    instance: str = ""  # its id; empty: there is none yet
    # what EC2 was asked for, the latest until it has answered
    request: Mapping[str, Any] = field(default_factory=dict)


class RefusedCalls(NamedTuple):
    """A kind of calls that is refused."""

    since: float  # when that began, wall clock, seconds since 1970
    error: AwsError  # the last refusal


class WatchedCloud(Cloud):
    """An account that notes what its answers say of launches, by their tokens."""

    def __init__(self, region: str | None, address: Literal["private", "public"]) -> None:
        super().__init__(region)
        self.launches: dict[str, Watched] = {}
        self.refused: dict[str, RefusedCalls] = {}
        self._address = address

    async def call(
        self, service: str, operation: str, *, region: str = "", **request: Any
    ) -> dict[str, Any]:
        """Make one call, and note its answer. Raises `AwsError`."""
        asked, token = wall(), ""
        if operation == "run_instances":
            pairs = request["TagSpecifications"][0]["Tags"]
            token = next((str(pair["Value"]) for pair in pairs if pair["Key"] == COMMAND), "")
        if token:
            watched = self.launch(token)
            watched.moments.asked = watched.moments.asked or asked
            if watched.moments.answered is None:
                watched.request = request
        try:
            answer = await super().call(service, operation, region=region, **request)
        except AwsError as error:
            if error.kind in MENDED:
                first = self.refused.get(operation, RefusedCalls(wall(), error))
                self.refused[operation] = RefusedCalls(first.since, error)
            raise
        self.refused.pop(operation, None)
        if token:
            moments = self.launch(token).moments
            moments.answered = moments.answered or wall()
        self._note_answer(operation, answer)
        return answer

    def _note_answer(self, operation: str, answer: Mapping[str, Any]) -> None:
        rows = []
        if operation == "describe_instances":
            rows = [row for group in answer["Reservations"] for row in group["Instances"]]
        if operation == "run_instances":
            rows = answer["Instances"]
        for row in rows:
            self._note(instances.seen(row))
        for row in answer["TerminatingInstances"] if operation == "terminate_instances" else ():
            if row["CurrentState"]["Name"] in ENDING:
                moments = self.by_id(row["InstanceId"])
                moments.ending = moments.ending or wall()

    def launch(self, token: str) -> Watched:
        """Return what is recorded of this launch."""
        return self.launches.setdefault(token, Watched())

    def by_id(self, instance: str) -> LaunchMoments:
        """Return the moments of this instance."""
        moments = (one.moments for one in self.launches.values() if one.instance == instance)
        return next(moments, LaunchMoments())

    def running(self) -> list[str]:
        """List the instances whose end EC2 has not reported."""
        launched = (one for one in self.launches.values() if one.instance)
        return [one.instance for one in launched if one.moments.ending is None]

    def locked_out(self) -> AwsError | None:
        """Return why AWS takes the credentials no more, once that has lasted."""
        refused = self.refused.get("describe_instances")
        if refused is None or refused.error.kind is not ErrorKind.CREDENTIALS:
            return None
        return refused.error if wall() - refused.since > LASTS_S else None

    def refuses_ends(self) -> AwsError | None:
        """Return why AWS lists or ends no instance; None: it does."""
        refused = (self.refused.get(one) for one in ("terminate_instances", "describe_instances"))
        return next((one.error for one in refused if one is not None), None)

    def _note(self, seen: instances.SeenInstance) -> None:
        if seen.token not in self.launches:
            return
        watched, now = self.launches[seen.token], wall()
        if watched.instance not in ("", seen.instance):
            return  # a second one of the same launch, which there must not be
        watched.instance, moments = seen.instance, watched.moments
        moments.pending = moments.pending or now
        if seen.private and (self._address == "private" or seen.public):
            moments.address = moments.address or now
        if seen.state == "running":
            moments.running = moments.running or now
        if seen.state in ENDING:
            moments.ending = moments.ending or now
            moments.reason = moments.reason or seen.reason[0]
        if seen.state == "terminated":
            moments.gone = moments.gone or now


class WatchedDoor:
    """The login to instances, and an agent on each, noting how far each has come. `lease_s` is that
    of `Provider.open`.
    """

    def __init__(self, remote: Remote, cloud: WatchedCloud) -> None:
        self.lease_s: Callable[[], float] = unlimited
        self._remote = remote
        self._cloud = cloud
        self.connections: dict[str, asyncssh.SSHClientConnection] = {}

    async def ready(self, machine: RemoteMachine, patience_s: float) -> None:
        """Wait until its agent takes connections. Raises `ProviderError`."""
        time = asyncio.get_running_loop().time
        end, moments = time() + patience_s, self._cloud.by_id(machine.name)
        await _listens(machine, end)
        moments.port = wall()
        self.connections[machine.name] = await _let_in(machine, end)
        moments.login = wall()
        await self._remote.ready(machine, max(0.0, end - time()))
        moments.agent = wall()

    async def connect(self, machine: RemoteMachine) -> Connection:
        """Return a byte stream to its agent. Raises `ProviderError`."""
        return await self._remote.connect(machine)

    async def end_agent(self, machine: RemoteMachine, grace_s: float) -> None:
        """End its agent. Raises `ProviderError`."""
        await self._remote.end_agent(machine, grace_s)

    async def run(self, instance: str, command: str, program: str = "", for_s: float = 60.0) -> str:
        """Run a command on an instance, with this program on its standard input, and return its
        output. Raises `ProviderError` if it fails or takes longer than `for_s` seconds, without the
        command, which may name what strangers must not see.
        """
        try:
            async with asyncio.timeout(for_s):
                done = await self.connections[instance].run(
                    command, input=program, encoding="utf-8"
                )
        except TimeoutError:
            raise ProviderError(f"the command did not end within {for_s:.0f}s") from None
        except (OSError, asyncssh.Error, KeyError) as error:
            raise ProviderError(f"the SSH connection to {instance} was lost: {error}") from error
        if done.exit_status != 0:
            said = f"{done.stderr!s} {done.stdout!s}".strip()[-400:]
            raise ProviderError(f"the command ended with status {done.exit_status}: {said}")
        return str(done.stdout)

    async def forget(self, name: str) -> None:
        """Drop the connections to this instance: it is gone."""
        if (connection := self.connections.pop(name, None)) is not None:
            connection.abort()
        await self._remote.forget(name)

    async def close(self) -> None:
        """Drop all connections."""
        for name in list(self.connections):
            await self.forget(name)
        await self._remote.close()


async def _listens(machine: RemoteMachine, end: float) -> None:
    """Wait until its port takes a connection. Raises `ProviderError`."""
    while True:
        try:
            async with asyncio.timeout(TCP_S):
                _, writer = await asyncio.open_connection(machine.address, machine.port)
        except (OSError, TimeoutError) as error:
            if asyncio.get_running_loop().time() + AGAIN_S > end:
                why = str(error) or "no answer"
                raise ProviderError(
                    f"{machine.place}: nobody answers at port {machine.port} ({why}); look at the "
                    "security group and at cluster.address"
                ) from error
            await asyncio.sleep(AGAIN_S)
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return


async def _let_in(machine: RemoteMachine, end: float) -> asyncssh.SSHClientConnection:
    """Log in. Raises `ProviderError` with the last cause."""
    while True:
        try:
            return await open_connection(machine)
        except UnreachableError as error:
            pause_s = max(AGAIN_S, error.pause_s)
            if error.final or asyncio.get_running_loop().time() + pause_s > end:
                raise ProviderError(f"{machine.place}: {error}") from error
            await asyncio.sleep(pause_s)
