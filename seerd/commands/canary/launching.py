"""The instances of a canary: launches that are watched, by what EC2 answered when, and how far the
login has come, and launches that EC2 has to refuse. The launch itself is that of a run
(`Ec2Provider`, `Remote`). If this process is killed, each instance powers itself off minutes later,
and `seerd sweep` finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncssh

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import NOT_PERMITTED, AwsError, ErrorKind
from seerd.aws.instances import COMMAND, ENDING
from seerd.backends.backend import PYTHON
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.keys import Address, Ec2Keys
from seerd.backends.ec2.offer import settings_of
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ec2.request import MEND_S
from seerd.backends.ssh.connecting import RemoteMachine, open_socket, way_in
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.clock import wall
from seerd.commands.canary.outcome import (
    LONGEST_S,
    CanaryRental,
    CheckOutcome,
    WatchedLaunch,
    failed,
    refused,
)
from seerd.commands.options import SpecOptions
from seerd.errors import ProviderError
from seerd.shell import places
from seerd.shell.home import Home
from seerd.spec.spec import Spec


class WatchedCloud(Cloud):
    """An account that notes what its answers say of launches, by their tokens."""

    def __init__(self, region: str | None, address: Address) -> None:
        super().__init__(region)
        self.launches: defaultdict[str, WatchedLaunch] = defaultdict(WatchedLaunch)
        self._refused: dict[str, AwsError] = {}  # operations whose last answer was a refusal
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
            self._refused[operation], launch.refused = error, error.code
            raise
        self._refused.pop(operation, None)
        launch.answered = launch.answered or wall()
        groups = {"describe_instances": answer.get("Reservations", ()), "run_instances": [answer]}
        for group in groups.get(operation, ()):
            for row in group["Instances"]:
                self._note(instances.seen(row))
        for row in answer["TerminatingInstances"] if operation == "terminate_instances" else ():
            if row["CurrentState"]["Name"] in ENDING:
                ended = self.by_id(row["InstanceId"])
                ended.ending = ended.ending or wall()
        return answer

    def by_id(self, instance: str) -> WatchedLaunch:
        """Return the launch of this instance."""
        launches = (one for one in self.launches.values() if one.instance == instance)
        return next(launches, WatchedLaunch())

    def refuses_ends(self) -> AwsError | None:
        """Return why AWS lists or ends no instance; None: it does."""
        ends = self._refused.get("terminate_instances")
        return ends or self._refused.get("describe_instances")

    def _note(self, seen: instances.SeenInstance) -> None:
        if seen.token not in self.launches:
            return
        launch, now = self.launches[seen.token], wall()
        if launch.instance not in ("", seen.instance):
            return  # a second one of the same launch, which there must not be
        launch.instance = seen.instance
        launch.pending = launch.pending or now
        if seen.private and (self._address != "public" or seen.public):
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

    async def ready(self, machine: RemoteMachine, *more: Any, **options: Any) -> None:
        """Wait until its agent takes connections. Raises `ProviderError`."""
        await super().ready(machine, *more, **options)
        self._cloud.by_id(machine.name).agent = wall()

    async def open(self, machine: RemoteMachine) -> asyncssh.SSHClientConnection:
        """Connect and log in once. Raises `UnreachableError`."""
        launch = self._cloud.by_id(machine.name)
        with contextlib.suppress(ValueError):  # the login says what is wrong
            launch.way = way_in(machine)
        if launch.port is None and not launch.way:
            with contextlib.suppress(OSError, TimeoutError):
                (await open_socket(machine)).close()
                launch.port = launch.port or wall()  # another connection may have logged in
        connection = await super().open(machine)
        launch.login = launch.login or wall()
        launch.port = launch.port or launch.login  # the first connection may have come too early
        return connection

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
        outcomes.append(failed(check, "EC2 has taken it; the instance was ended"))
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
    if error.kind in ABOUT[check]:
        return refused(check, "passed", error.said, error)
    if error.kind in NOT_PERMITTED:
        said = f"EC2 looks at permissions first, and these do not permit it: {error.said}"
        return refused(check, "unknown", said, error)
    if error.kind in UNRELATED:
        return refused(check, "unknown", str(error), error)
    said = f"seerd takes it for {error.kind.value!r}: {error.said}"
    return refused(check, "failed", said, error)


# the launches: checked and terminated, left alone, rebooted, with a GPU
PROVED, LEASE, REBOOT, GPU = "proved", "lease", "reboot", "gpu"
SMALL = (PROVED, LEASE, REBOOT)
AS_ASKED = ("iops", "throughput", "scratch")  # keys that only the instance with a GPU is made with
BOOT_S = 300.0  # the most seconds from running until an agent has to answer


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """A canary that may fly."""

    spec: Spec
    cluster: Ec2Keys  # the spec's cluster
    asked: SpecOptions  # how the spec was named, and what is changed in it
    home: Home  # the folder of all runs
    run: str  # the tag of its instances
    owner: str  # who pays
    arn: str  # whose the credentials are
    small: CanaryRental  # the small instances
    gpu: CanaryRental | None  # the one with a GPU; None: there is none
    most_usd: float  # the most USD that all may cost
    work_s: float = 600.0  # seconds until everything is given back, however far it has come
    mend_s: float = MEND_S
    unreached_s: float = 60.0  # seconds until it is said why nobody can log in


class CanaryFleet:
    """Instances of one type, with all that is needed to launch, reach and end them. That which is
    rebooted, if it has a fleet of its own, first bids for spot what no pool takes.
    """

    def __init__(
        self,
        plan: CanaryPlan,
        rental: CanaryRental,
        tokens: tuple[str, ...],
        hard_end: float,
        folder: Path,
    ) -> None:
        self.rental, self.tokens, self.hard_end = rental, tokens, hard_end
        self.cluster, self.folder, self.home = plan.cluster, folder, plan.home.path
        self.run = f"{plan.run}-{tokens[0]}"
        self.has_objects = False  # whether something of it may lie in the bucket
        source, zip_ = folder / "source", folder / "agent.pyz"
        source.mkdir(parents=True)
        build_agent(zip_)
        self.zip = hashlib.sha256(zip_.read_bytes()).hexdigest()
        gpu, falls_back = tokens == (GPU,), tokens == (REBOOT,)
        disks = {name: getattr(plan.cluster, name) if gpu else None for name in AS_ASKED}
        options = AgentOptions(self.run, 1, gpu, LONGEST_S, power_off=True)
        options = replace(options, scratch=disks["scratch"] or "")
        self.cloud = WatchedCloud(plan.cluster.region, plan.cluster.address)
        self.door = WatchedDoor(Bundle(zip_, source), options, self.cloud)
        settings = settings_of(
            plan.cluster,
            run=self.run,
            name=plan.spec.name,
            owner=plan.owner,
            gpus=1,
            keys=folder / "keys",
            hard_end=hard_end,
            instance_types=(rental.type,),
            market="spot" if falls_back else "on-demand",
            falls_back=falls_back,
            max_usd_per_h=float(TOO_LITTLE) if falls_back else None,
            capacity=None,
            boot_s=min(BOOT_S, plan.cluster.boot_s),
            key=None,
            volume_gb=None,
            load_rate=None,
            **disks,
            mend_s=plan.mend_s,
            unreached_s=plan.unreached_s,
            python=(plan.spec.train.python or PYTHON) if gpu else "",
        )
        self.provider = Ec2Provider(settings, self.door, self.cloud)

    async def launch(self, token: str) -> WatchedLaunch:
        """Launch an instance. Raises `LaunchError`, after it was given back."""
        launched = await self.provider.launch(token, LONGEST_S)
        with contextlib.suppress(OSError):  # then the first run tries one instance first
            places.note(self.home, self.provider.place(launched.instance))
        return self.cloud.launches[token]

    async def run_program(self, token: str, program: str, for_s: float = 60.0) -> str:
        """Run a Python program on an instance, and return what it prints. Raises `ProviderError` as
        `WatchedDoor.run` does.
        """
        instance = self.cloud.launches[token].instance
        return await self.door.run(instance, f"{PYTHON} -I -", program, for_s)

    def usd(self) -> float:
        """Return about how many USD its instances cost."""
        now = wall()
        seconds = sum(launch.billed_s(now) for launch in self.cloud.launches.values())
        return seconds / 3600 * self.rental.usd_per_h
