"""The settings of a run's instances, the places where launches ask for them and which of these have
refused, and the RunInstances request. A launch that is tried again, after a lost answer or a crash,
is the same request with the same ClientToken, and EC2 launches only once
(docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.images import Image
from seerd.aws.instances import COMMAND, HARD_END, NAME, OWNER, RUN, tag_time
from seerd.aws.network import Subnet, nowhere_offered

TAG_LENGTH = 256
REMEMBERED_S = {ErrorKind.CAPACITY: 120.0, ErrorKind.ELSEWHERE: math.inf}
"""For how long a place that has refused is asked last, seconds. Capacity comes back by the minute,
a type that is not offered never; a quota may have room again at once.
"""
MEND_S = 240.0
"""How long a refusal that a person may put right is borne, seconds: longer than an agent's lease,
its trials' last save and its last upload.
"""


@dataclass(frozen=True, slots=True)
class Ec2Settings:
    """The instances of one run."""

    run: str  # the run's id
    name: str  # the spec's name, for the tags
    owner: str  # who runs it, for the tags
    instance_types: tuple[str, ...]  # in order of preference
    gpus: int  # GPUs of one instance
    image: str  # `ami-...` or `ssm:/path`
    hard_end: float  # when instances switch themselves off: wall clock, seconds since 1970
    boot_s: float  # seconds from running until an agent must answer
    keys: Path  # folder of the run for key pairs
    region: str | None = None  # None: the environment's
    market: Literal["on-demand", "spot"] = "on-demand"
    capacity: str | None = None  # the reservation that instances are taken from; None: none
    block: bool = False  # whether it is a Capacity Block
    falls_back: bool = False  # whether on-demand instances are asked for where spot has none
    subnets: tuple[str, ...] = ()  # in order of preference; none: those of the default network
    security_groups: tuple[str, ...] = ()  # ids; none: the network's default
    key: str | None = None  # name of an EC2 key pair, for people who log in; None: none
    # the address that the daemon logs in to; "instance-connect": the private one, through an EC2
    # Instance Connect Endpoint
    address: Literal["private", "public", "instance-connect"] = "private"
    volume_gb: int | None = None  # least size of the root disk; None: the image's
    throughput: int | None = None  # MiB/s of the disks; None: EBS's own
    iops: int | None = None  # of the disks; None: as many as the throughput needs
    # MiB/s at which the disks are loaded from snapshots; None: as they are read
    load_rate: int | None = None
    scratch: str | None = None  # where the instance store is mounted, for the agent; None: nowhere
    python: str = ""  # the interpreter of the trials, whose torch is read at boot; empty: none
    containers: bool = False  # whether trials run in containers, so that Docker has to obey
    tags: Mapping[str, str] = field(default_factory=dict)  # the user's own tags
    # highest price for spot, USD per hour; None: the on-demand price
    max_usd_per_h: float | None = None
    # USD for an hour of an instance of each type, on demand; none: all cost the same
    prices: Mapping[str, float] = field(default_factory=dict)
    # GPUs of an instance of each type, where they differ; none: all have `gpus`
    sizes: Mapping[str, int] = field(default_factory=dict)
    root: bool = False  # whether a user who logs in may become root
    keep_s: float = 0.0  # seconds for which instances are kept for the next run; 0: they are not
    mend_s: float = MEND_S
    # how long an instance may run before EC2 shows its addresses, seconds. Usually it does with
    # `running`, sometimes a second or two later (github.com/ClusterHQ/flocker/issues/2237,
    # github.com/aws/aws-parallelcluster-node/issues/692)
    address_s: float = 60.0
    # from EC2's answer until it is reported why nobody can log in, seconds
    unreached_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place to ask for an instance: its type, its subnet and the subnet's zone."""

    type: str
    subnet: str
    zone: str
    fallback: bool = False  # an on-demand instance is asked for, since spot may have none

    def __str__(self) -> str:
        return f"{self.type} in {self.zone}" + (", on demand" if self.fallback else "")


def candidates(settings: Ec2Settings, subnets: Sequence[Subnet]) -> list[Candidate]:
    """Return the places to ask, in order: the first type in all subnets, then the next type; spot
    before on-demand.
    """
    return [
        Candidate(kind, subnet.subnet, subnet.zone, fallback)
        for fallback in (False, True)[: 2 if settings.falls_back else 1]
        for kind in settings.instance_types
        for subnet in subnets
    ]


def offered(places: Sequence[Candidate], zones: Mapping[str, AbstractSet[str]]) -> list[Candidate]:
    """Return the places whose zone offers their type. `zones`: those that offer each type; a type
    without any is asked everywhere, since EC2 may give types that it lists no longer. Raises
    `AwsError` if nothing is left.
    """
    left = [place for place in places if place.zone in (zones.get(place.type) or {place.zone})]
    if places and not left:
        why = f"nothing was started: {nowhere_offered(zones)}; name others in `cluster.subnets`"
        raise AwsError(why, ErrorKind.REFUSED, "Zones")
    return left


def run_instances(
    settings: Ec2Settings, token: str, candidate: Candidate, image: Image, user_data: str
) -> dict[str, Any]:
    """Return the arguments of RunInstances for exactly one instance."""
    interface: dict[str, Any] = {
        "DeviceIndex": 0,
        "SubnetId": candidate.subnet,
        "AssociatePublicIpAddress": settings.address == "public",
        "DeleteOnTermination": True,
    }
    if settings.security_groups:
        interface["Groups"] = list(settings.security_groups)
    kinds = ["instance", "volume", "network-interface"]
    is_spot = settings.market == "spot" and not candidate.fallback
    kinds += ["spot-instances-request"] if is_spot else []
    pairs = [{"Key": key, "Value": value} for key, value in tags(settings, token).items()]
    request = {
        "ClientToken": client_token(settings.run, token, candidate),
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": image.image,
        "InstanceType": candidate.type,
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "BlockDeviceMappings": _disks(settings, image),
        "NetworkInterfaces": [interface],
        "TagSpecifications": [{"ResourceType": kind, "Tags": pairs} for kind in kinds],
    }
    if settings.capacity:
        target = {"CapacityReservationId": settings.capacity}
        request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    if settings.block:
        request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if settings.key:
        request["KeyName"] = settings.key
    if is_spot:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if settings.max_usd_per_h is not None:
            options["MaxPrice"] = f"{settings.max_usd_per_h:.4f}"
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    return request


def client_token(run: str, token: str, candidate: Candidate) -> str:
    """Return the ClientToken of this request and no other: at most 64 ASCII characters."""
    parts = f"{run}\0{token}\0{candidate.type}\0{candidate.subnet}"
    parts += "\0on-demand" if candidate.fallback else ""
    return f"seerd-{hashlib.sha256(parts.encode()).hexdigest()[:58]}"


def tags(settings: Ec2Settings, token: str) -> dict[str, str]:
    """Return the tags of everything that a launch makes; seerd's own tags win over the user's."""
    ours = {
        "Name": f"seerd {settings.run}",
        RUN: settings.run,
        COMMAND: token,
        NAME: settings.name,
        OWNER: settings.owner,
        HARD_END: tag_time(settings.hard_end),
    }
    return dict(settings.tags) | {key: value[:TAG_LENGTH] for key, value in ours.items()}


def _disks(settings: Ec2Settings, image: Image) -> list[dict[str, Any]]:
    """Return the image's disks, each encrypted and deleted with its instance. gp3 has 3,000 IOPS,
    and takes a MiB/s for every four of them
    (docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html).
    """
    speed: dict[str, Any] = {}
    if settings.throughput is not None or settings.iops is not None:
        speed["Iops"] = max(3000, 4 * (settings.throughput or 0), settings.iops or 0)
    if settings.throughput is not None:
        speed["Throughput"] = settings.throughput
    if settings.load_rate is not None:
        speed["VolumeInitializationRate"] = settings.load_rate
    disks = []
    for device, gb in dict.fromkeys(image.disks or ((image.root, 0),)):
        ebs: dict[str, Any] = {"VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
        size = max(gb, settings.volume_gb or 0) if device == image.root else gb
        ebs |= speed | ({"VolumeSize": size} if size else {})
        disks.append({"DeviceName": device, "Ebs": ebs})
    return disks


def any_type(type_: str) -> bool:
    """Accept every type."""
    return True


def never(type_: str, zone: str) -> bool:
    """Have no pool rest."""
    return False


class LaunchPlaces:
    """The places of a run, in order of preference. A refusal answers every launch that had begun by
    then; later launches ask there last. Moments are seconds of one clock that nobody sets. `rests`
    returns whether the spot pool of a type and a zone is left alone while there are others.
    """

    def __init__(
        self, candidates: Sequence[Candidate], rests: Callable[[str, str], bool] = never
    ) -> None:
        self._candidates = tuple(candidates)
        self._rests = rests
        self._refusals: dict[Candidate, tuple[AwsError, float]] = {}

    @property
    def all(self) -> tuple[Candidate, ...]:
        """All places that are asked."""
        return self._candidates

    def next(
        self, begun: float, now: float, fits: Callable[[str], bool] = any_type
    ) -> Candidate | None:
        """Return the place that a launch which began at `begun` should ask now: the first that has
        not refused lately, else that of the oldest refusal. None if all have refused since. `fits`:
        returns whether a type may be asked for.
        """
        refusals = self._refusals
        left = [
            place
            for place in self._candidates
            if fits(place.type) and (place not in refusals or refusals[place][1] < begun)
        ]
        resting = [p for p in left if not p.fallback and self._rests(p.type, p.zone)]
        left = [place for place in left if place not in resting] or resting
        return min(left, key=lambda place: self._refused_at(place, now), default=None)

    def refused(self, place: Candidate, error: AwsError, now: float) -> None:
        """Note that EC2 had nothing there; a quota counts for the type's other places too."""
        alike = self._candidates if error.kind is ErrorKind.QUOTA else (place,)
        for other in alike:
            if (other.type, other.fallback) == (place.type, place.fallback):
                self._refusals[other] = error, now

    def gave(self, place: Candidate) -> None:
        """Note that it gave an instance."""
        self._refusals.pop(place, None)

    def leave(self, subnet: str) -> bool:
        """Ask no more in this subnet, unless there is no other; return whether there is one."""
        others = tuple(place for place in self._candidates if place.subnet != subnet)
        self._candidates = others or self._candidates
        return bool(others)

    def refusals(self, fits: Callable[[str], bool] = any_type) -> list[tuple[Candidate, AwsError]]:
        """Return EC2's last answers, place by place; an answer about many only once. `fits` as in
        `next`.
        """
        answers: dict[int, tuple[Candidate, AwsError]] = {}
        for place in self._candidates:
            if place in self._refusals and fits(place.type):
                error = self._refusals[place][0]
                answers.setdefault(id(error), (place, error))
        return list(answers.values())

    def _refused_at(self, place: Candidate, now: float) -> float:
        """Return when the place has refused, if that counts; else the beginning of time."""
        if place in self._refusals:
            error, at = self._refusals[place]
            if now - at < REMEMBERED_S.get(error.kind, 0.0):
                return at
        return -math.inf
