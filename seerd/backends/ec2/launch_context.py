"""What all launches of a run share, and how its instances are logged in to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from seerd.aws.cloud import Cloud
from seerd.aws.images import Image
from seerd.aws.keys import Keys
from seerd.aws.userdata import USER
from seerd.backends.base import Connection, LaunchProgress
from seerd.backends.ec2.fleet import Ec2Fleet
from seerd.backends.ec2.kept import KeptInstances
from seerd.backends.ec2.register import RegisterEntry
from seerd.backends.ec2.request import Ec2Settings, LaunchPlaces
from seerd.backends.ssh.connecting import OnFailure, RemoteMachine
from seerd.errors import ProviderError

TUNNEL = ("aws", "ec2-instance-connect", "open-tunnel", "--instance-id")
"""docs.aws.amazon.com/AWSEC2/latest/UserGuide/connect-with-ec2-instance-connect-endpoint.html"""


class InstanceAccess(Protocol):
    """The way into instances: a `Remote`, with agents, which documents the methods, or a
    `Workbench`, for installing.
    """

    lease_s: Callable[[], float]

    async def ready(
        self, machine: RemoteMachine, patience_s: float, *, on_failure: OnFailure
    ) -> None: ...
    async def connect(self, machine: RemoteMachine) -> Connection: ...
    async def end_agent(self, machine: RemoteMachine, grace_s: float) -> None: ...
    async def forget(self, name: str) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What all launches of a run share."""

    settings: Ec2Settings  # what instances the run wants
    cloud: Cloud  # calls AWS
    fleet: Ec2Fleet  # the run's instances
    remote: InstanceAccess  # the way into instances
    keys: Keys  # the run's key pairs
    image: Image  # the machine image
    places: LaunchPlaces  # where they may be, and which places have refused
    report: Callable[[LaunchProgress], None]  # reports how far a launch is
    # returns USD for an hour of an instance; None: not known, or the same for all
    price: Callable[[RegisterEntry], float | None]
    # when what was bought begins, wall clock, seconds since 1970; 0: now
    begins: float = 0.0
    kept: KeptInstances | None = None  # instances of earlier runs; None: none are taken


def machine(context: LaunchContext, entry: RegisterEntry) -> RemoteMachine:
    """Return how to log in to this instance. Raises `ProviderError` while EC2 shows no address."""
    public = context.settings.address == "public"
    address = entry.public if public else entry.private
    if not address:
        kind = "public" if public else "private"
        raise ProviderError(f"EC2 shows no {kind} address of {entry.instance} yet")
    taken = None if context.kept is None else context.kept.access(entry.token)
    if taken is None:
        taken = (context.keys.host(entry.token).public,), context.keys.client().path
    host_keys, key = taken
    through = [*TUNNEL, entry.instance, "--region", context.cloud.region]
    return RemoteMachine(
        name=entry.instance,
        gpus=context.settings.sizes.get(entry.type),
        address=address,
        user=USER,
        host_keys=host_keys,
        key=key,
        proxy=tuple(through) if context.settings.address == "instance-connect" else (),
    )
