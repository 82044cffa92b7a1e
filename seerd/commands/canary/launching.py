"""Launches that are watched: what EC2 answered when, and how far the login has come; and launches
that EC2 has to refuse. The launch itself is that of a run (`Ec2Provider`, `Remote`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

import asyncssh

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import COMMAND, ENDING
from seerd.backends.ec2.fleet import MENDED
from seerd.backends.ssh.connecting import (
    RemoteMachine,
    UnreachableError,
    open_connection,
    open_socket,
)
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.clock import wall
from seerd.commands.canary.outcome import CheckOutcome, WatchedLaunch
from seerd.errors import ProviderError

AGAIN_S = 0.2  # seconds between attempts to log in
T = TypeVar("T")
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
        try:
            (await _again_until(end, lambda: open_socket(machine))).close()
            launch.port = wall()
            connecting = _again_until(end, lambda: open_connection(machine))
            self._link(machine).connection = await connecting
            launch.login = wall()
        except (OSError, TimeoutError) as error:
            raise ProviderError(
                f"{machine.place}: nobody answers at port {machine.port} "
                f"({str(error) or 'no answer'}); look at the security group and at cluster.address"
            ) from error
        except UnreachableError as error:
            raise ProviderError(f"{machine.place}: {error}") from error
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


async def _again_until(end: float, attempt: Callable[[], Awaitable[T]]) -> T:
    """Attempt it until it succeeds. Raises the last error when that is final, or at `end`."""
    while True:
        try:
            return await attempt()
        except (OSError, TimeoutError, UnreachableError) as error:
            final, pause_s = getattr(error, "final", False), getattr(error, "pause_s", 0.0)
            pause_s = max(AGAIN_S, pause_s)
            if final or asyncio.get_running_loop().time() + pause_s > end:
                raise
            await asyncio.sleep(pause_s)


# ------------------------------------------------------------ launches that EC2 has to refuse

NO_IMAGE = "ami-00000000000000000"
TOO_LITTLE = "0.0001"  # USD for an hour
# what seerd has to take each refusal for
ABOUT = {
    "wrong image": frozenset({ErrorKind.REFUSED}),
    "wrong zone": frozenset({ErrorKind.REFUSED, ErrorKind.ELSEWHERE}),
    "wrong price": frozenset({ErrorKind.CAPACITY}),
}
# refusals whatever is asked for
UNRELATED = frozenset(
    {ErrorKind.THROTTLED, ErrorKind.UNCLEAR, ErrorKind.QUOTA, ErrorKind.CREDENTIALS}
)


async def refused_launches(cloud: Cloud, request: Mapping[str, Any]) -> list[CheckOutcome]:
    """Send a launch that EC2 has taken again, with one thing wrong each time: an image, a zone and
    a bid that it cannot take. If EC2 takes it, the instance is ended.
    """
    outcomes = []
    for check in ABOUT:
        launch = wrong(check, request, cloud.region)
        try:
            answer = await cloud.ask("ec2", "run_instances", patience_s=20.0, **launch)
        except AwsError as error:
            outcomes.append(judged(check, error))
            continue
        await instances.end(cloud, [row["InstanceId"] for row in answer["Instances"]])
        text = "EC2 has taken it; the instance was ended"
        outcomes.append(CheckOutcome(check, "failed", text))
    return outcomes


def wrong(check: str, request: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Return the launch with one thing wrong, under a token of its own."""
    asked = dict(request) | {"ClientToken": f"seerd-canary-{secrets.token_hex(16)}"}
    if check == "wrong image":
        return asked | {"ImageId": NO_IMAGE}
    if check == "wrong zone":
        interface = {k: v for k, v in request["NetworkInterfaces"][0].items() if k != "SubnetId"}
        zone = {"AvailabilityZone": f"{region}-nowhere"}
        return asked | {"NetworkInterfaces": [interface], "Placement": zone}
    options = {"SpotInstanceType": "one-time", "MaxPrice": TOO_LITTLE}
    return asked | {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}


def judged(check: str, error: AwsError) -> CheckOutcome:
    """Judge a refusal: whether seerd takes it for what it is."""
    refusal = None, error.code, error.status or None
    if error.kind in ABOUT[check]:
        return CheckOutcome(check, "passed", error.said, *refusal)
    if error.kind is ErrorKind.DENIED:
        said = f"EC2 looks at permissions first, and these do not permit it: {error.said}"
        return CheckOutcome(check, "unknown", said, *refusal)
    if error.kind in UNRELATED:
        return CheckOutcome(check, "unknown", str(error), *refusal)
    return CheckOutcome(
        check, "failed", f"seerd takes it for {error.kind.value!r}: {error.said}", *refusal
    )
