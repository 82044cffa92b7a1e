"""The keys of `[cluster]` with `provider = "ec2"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from seerd.planner.clouds import boot_limit_s
from seerd.spec import values as v
from seerd.spec.keys import BackendKeys, setting


@dataclass(frozen=True)
class Ec2Keys(BackendKeys):
    """Instances of EC2, paid whole from running until terminated."""

    provider: ClassVar = "ec2"
    rented: ClassVar = True
    region: str | None = setting(v.text, default=None)  # None: that of the credentials
    # in order of preference; empty: none is named, and nothing can be rented
    instance_type: tuple[str, ...] = setting(
        lambda value: v.list_of(v.text)(value if isinstance(value, list) else [value]), default=()
    )
    # GPUs of an instance; None: what AWS or a table says
    gpus: int | None = setting(v.whole(1), default=None)
    market: Literal["on-demand", "spot"] = setting(
        v.one_of("on-demand", "spot"), default="on-demand"
    )
    # seconds from `running` until an instance must have an agent; None: what its type takes
    boot: float | None = setting(v.duration, default=None)
    # what a trial does when its instance will probably be taken back
    on_rebalance: Literal["save", "move"] = setting(v.one_of("save", "move"), default="save")
    image: str = setting(v.text, default="")  # `ami-...` or `ssm:/path`; empty: none is named
    # subnets and security groups; empty: those of the default network
    subnets: tuple[str, ...] = setting(v.list_of(v.text), default=())
    security_groups: tuple[str, ...] = setting(v.list_of(v.text), default=())
    key: str | None = setting(v.text, default=None)  # an EC2 key pair for people; None: none
    # which address seerd connects to
    address: Literal["private", "public"] = setting(
        v.one_of("private", "public"), default="private"
    )
    # GB of the root disk; None: as the image has it
    volume_gb: int | None = setting(v.whole(1), default=None)
    throughput: int | None = setting(v.whole(125), default=None)  # MiB/s (gp3); None: EBS's own
    # MiB/s at which the disks are loaded from the image's snapshot; None: as they are read
    load_rate: int | None = setting(v.whole(100), default=None)
    # whether the first launch is one instance where none of this home was ever ready
    scout: bool = setting(v.yes_or_no, default=True)
    # further tags of everything that is made
    tags: Mapping[str, str] = setting(v.tags, default_factory=dict)
    # USD for an hour of an instance; None: what AWS says
    price: float | None = setting(v.money, default=None)
    ingress_price: float = setting(v.money, default=0.0)  # USD for each GB that an instance fetches

    @property
    def boot_s(self) -> float:
        return self.boot or boot_limit_s(self.types)

    @property
    def types(self) -> tuple[str, ...]:
        return self.instance_type


KEYS = Ec2Keys
