"""Launches that are watched: what EC2 answered when, and how far the login has come. The launch
itself is that of a run (`Ec2Provider`, `Remote`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal

import asyncssh

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import COMMAND, ENDING
from seerd.backends.ec2.fleet import MENDED
from seerd.backends.ssh.connecting import TCP_S, RemoteMachine, UnreachableError, open_connection
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.clock import wall
from seerd.commands.canary.outcome import WatchedLaunch
from seerd.errors import ProviderError

AGAIN_S = 0.2  # seconds between attempts to log in
LASTS_S = 10.0  # seconds of refusals after which credentials are taken for ended


class WatchedCloud(Cloud):
    """An account that notes what its answers say of launches, by their tokens."""

    def __init__(self, region: str | None, address: Literal["private", "public"]) -> None:
        super().__init__(region)
        self.launches: defaultdict[str, WatchedLaunch] = defaultdict(WatchedLaunch)
        # operations that are refused: since when, seconds since 1970, and the last refusal
        self.refused: dict[str, tuple[float, AwsError]] = {}
        self._address = address

    async def call(
        self, service: str, operation: str, *, region: str = "", **request: Any
    ) -> dict[str, Any]:
        """Make one call, and note its answer. Raises `AwsError`."""
        launch = WatchedLaunch()  # which nobody looks at, for other calls
        if operation == "run_instances":
            pairs = request["TagSpecifications"][0]["Tags"]
            launch = self.launches[{pair["Key"]: str(pair["Value"]) for pair in pairs}[COMMAND]]
        launch.asked = launch.asked or wall()
        if launch.answered is None:
            launch.request = request
        try:
            answer = await super().call(service, operation, region=region, **request)
        except AwsError as error:
            if error.kind in MENDED:
                since, _ = self.refused.get(operation, (wall(), error))
                self.refused[operation] = since, error
            raise
        self.refused.pop(operation, None)
        launch.answered = launch.answered or wall()
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
                launch = self.by_id(row["InstanceId"])
                launch.ending = launch.ending or wall()

    def by_id(self, instance: str) -> WatchedLaunch:
        """Return the launch of this instance."""
        launches = (one for one in self.launches.values() if one.instance == instance)
        return next(launches, WatchedLaunch())

    def locked_out(self) -> AwsError | None:
        """Return why AWS takes the credentials no more, once that has lasted."""
        if "describe_instances" not in self.refused:
            return None
        since, error = self.refused["describe_instances"]
        lasts = wall() - since > LASTS_S
        return error if lasts and error.kind is ErrorKind.CREDENTIALS else None

    def refuses_ends(self) -> AwsError | None:
        """Return why AWS lists or ends no instance; None: it does."""
        refused = (self.refused.get(one) for one in ("terminate_instances", "describe_instances"))
        return next((error for _, error in filter(None, refused)), None)

    def _note(self, seen: instances.SeenInstance) -> None:
        if seen.token not in self.launches:
            return
        launch, now = self.launches[seen.token], wall()
        if launch.instance not in ("", seen.instance):
            return  # a second one of the same launch, which there must not be
        launch.instance = seen.instance
        launch.pending = launch.pending or now
        if seen.private and (self._address == "private" or seen.public):
            launch.address = launch.address or now
        if seen.state == "running":
            launch.running = launch.running or now
        if seen.state in ENDING:
            launch.ending = launch.ending or now
            launch.reason = launch.reason or seen.reason[0]
        if seen.state == "terminated":
            launch.gone = launch.gone or now


class WatchedDoor(Remote):
    """The login to instances, and an agent on each, noting how far each has come."""

    def __init__(self, bundle: Bundle, options: AgentOptions, cloud: WatchedCloud) -> None:
        super().__init__(bundle, options)
        self._cloud = cloud

    async def ready(
        self,
        machine: RemoteMachine,
        patience_s: float,
        gpus: int | None = None,
        cuda: bool | None = None,
    ) -> None:
        """Wait until its agent takes connections. Raises `ProviderError`."""
        time = asyncio.get_running_loop().time
        end, launch = time() + patience_s, self._cloud.by_id(machine.name)
        await _listens(machine, end)
        launch.port = wall()
        self._link(machine).connection = await _let_in(machine, end)
        launch.login = wall()
        await super().ready(machine, max(0.0, end - time()), gpus, cuda)
        launch.agent = wall()

    async def run(self, instance: str, command: str, program: str = "", for_s: float = 60.0) -> str:
        """Run a command on an instance, with this program on its standard input, and return its
        output. Raises `ProviderError` if it fails or takes longer than `for_s` seconds, without the
        command, which may name what strangers must not see.
        """
        link = self._links.get(instance)
        if link is None or link.connection is None:
            raise ProviderError(f"there is no SSH connection to {instance}")
        try:
            async with asyncio.timeout(for_s):
                done = await link.connection.run(command, input=program, encoding="utf-8")
        except TimeoutError:
            raise ProviderError(f"the command did not end within {for_s:.0f}s") from None
        except (OSError, asyncssh.Error) as error:
            raise ProviderError(f"the SSH connection to {instance} was lost: {error}") from error
        if done.exit_status != 0:
            output = f"{done.stderr!s} {done.stdout!s}".strip()[-400:]
            raise ProviderError(f"the command ended with status {done.exit_status}: {output}")
        return str(done.stdout)


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
