"""The kinds of clusters that a spec may ask for: one class for each. Its fields are the keys of
`[cluster]` that only this kind takes, each with how its value is read.

The one rule: what others must know of a kind, every kind says: `rented`, `here`, and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from seerd.planner.clouds import boot_limit_s
from seerd.spec import values as v

READ = "read"


def _key(read: v.Read, **default: Any) -> Any:
    """Make a field that is a key of the spec. `read`: how its value is read."""
    return field(metadata={READ: read}, **default)


def _one_or_more(value: Any) -> Any:
    return v.list_of(v.text)(value if isinstance(value, list) else [value])


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """This machine."""

    provider: ClassVar = "local"
    rented: ClassVar = False
    here: ClassVar = True  # trials see the files of this machine
    region: ClassVar = None
    types: ClassVar[tuple[str, ...]] = ()
    ingress_price: ClassVar[float] = 0.0
    # CUDA devices, or CPU slots, that trials get; None: what the machine has
    gpus: int | None = _key(v.whole(1), default=None)
    # the run's share of them beside other runs on the machine
    weight: float = _key(v.weight, default=1.0)
    store: str | None = None  # a directory; None: inside the run's folder


@dataclass(frozen=True, slots=True)
class HostsCluster:
    """Machines that people have, reached over SSH."""

    provider: ClassVar = "hosts"
    rented: ClassVar = False
    here: ClassVar = False
    region: ClassVar = None
    types: ClassVar[tuple[str, ...]] = ()
    ingress_price: ClassVar[float] = 0.0
    hosts: tuple[v.Host, ...] = _key(v.list_of(v.host), default=())  # the machines
    weight: float = _key(v.weight, default=1.0)  # the run's share beside other runs there
    # a directory that all of them reach, or s3://bucket/prefix; None: none is named
    store: str | None = None


@dataclass(frozen=True, slots=True)
class Ec2Cluster:
    """Instances of EC2, paid whole from running until terminated."""

    provider: ClassVar = "ec2"
    rented: ClassVar = True
    here: ClassVar = False
    region: str | None = _key(v.text, default=None)  # None: that of the credentials
    # in order of preference; empty: none is named, and nothing can be rented
    instance_type: tuple[str, ...] = _key(_one_or_more, default=())
    # how they are bought
    market: Literal["on-demand", "spot"] = _key(v.one_of("on-demand", "spot"), default="on-demand")
    # seconds from `running` until an instance must have an agent; None: what its type takes
    boot: float | None = _key(v.duration, default=None)
    # what a trial does when its instance will probably be taken back
    on_rebalance: Literal["save", "move"] = _key(v.one_of("save", "move"), default="save")
    image: str = _key(v.text, default="")  # `ami-...` or `ssm:/path`; empty: none is named
    # empty: those of the default network
    subnets: tuple[str, ...] = _key(v.list_of(v.text), default=())
    # empty: that of the default network
    security_groups: tuple[str, ...] = _key(v.list_of(v.text), default=())
    key: str | None = _key(v.text, default=None)  # an EC2 key pair for people; None: none
    # which address seerd connects to
    address: Literal["private", "public"] = _key(v.one_of("private", "public"), default="private")
    # GB of the root disk; None: as the image has it
    volume_gb: int | None = _key(v.whole(1), default=None)
    throughput: int | None = _key(v.whole(125), default=None)  # MiB/s (gp3); None: EBS's own
    # MiB/s at which the disks are loaded from the image's snapshot; None: as they are read
    load_rate: int | None = _key(v.whole(100), default=None)
    # further tags of everything that is made
    tags: Mapping[str, str] = _key(v.tags, default_factory=dict)
    # USD for an hour of an instance; None: what AWS says
    price: float | None = _key(v.money, default=None)
    ingress_price: float = _key(v.money, default=0.0)  # USD for each GB that an instance fetches
    store: str | None = None  # s3://bucket/prefix; None: none is named

    @property
    def boot_s(self) -> float:
        """Seconds from `running` until an instance must have an agent."""
        return self.boot or boot_limit_s(self.types)

    @property
    def types(self) -> tuple[str, ...]:
        """The instance types that may be rented, in order of preference; none: none is named."""
        return self.instance_type


Cluster = LocalCluster | HostsCluster | Ec2Cluster
CLUSTERS: dict[str, type[Cluster]] = {kind.provider: kind for kind in get_args(Cluster)}
"""The kinds of clusters, by what `cluster.provider` may be."""
CLUSTER_KEYS: dict[str, dict[str, v.Read]] = {
    name: {key.name: key.metadata[READ] for key in fields(kind) if READ in key.metadata}
    for name, kind in CLUSTERS.items()
}
"""The keys of `[cluster]` that only one provider takes."""
