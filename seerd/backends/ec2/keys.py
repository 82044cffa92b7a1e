"""The keys of `[cluster]` with `provider = "ec2"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from seerd.planner.clouds import boot_limit_s
from seerd.spec import values as v
from seerd.spec.keys import BackendKeys, setting

LEAST_KEEP_S = 120.0
"""The least seconds for which instances are kept: the last 30 are for their own power-off."""
Market = Literal["on-demand", "spot"]
Address = Literal["private", "public", "instance-connect"]
FOLDER = r"(/[\w.-]*[\w-])+"
IS_FOLDER = "the absolute path of a folder, of letters, digits, `.`, `_` and `-`"


def markets(value: Any) -> tuple[Market, ...]:
    """Take a market, or spot with on-demand behind it."""
    if value == ["spot", "on-demand"]:
        return "spot", "on-demand"
    if isinstance(value, list):
        raise ValueError('as a list only ["spot", "on-demand"] is possible')
    return (v.one_of("on-demand", "spot")(value),)


def keeping(value: Any) -> float:
    """Take for how long instances are kept."""
    seconds: float = v.duration(value)
    if seconds < LEAST_KEEP_S:
        raise ValueError('at least "2m" is possible')
    return seconds


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
    # spot instances, and on-demand ones where spot has none, or only one of both
    market: tuple[Market, ...] = setting(markets, default=("on-demand",))
    # a reservation that was bought, which has type and zone; None: none
    capacity: str | None = setting(v.text, default=None)
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
    address: Literal["private", "public", "instance-connect"] = setting(
        v.one_of("private", "public", "instance-connect"), default="private"
    )
    # GB of the root disk; None: as the image has it
    volume_gb: int | None = setting(v.whole(1), default=None)
    throughput: int | None = setting(v.whole(125), default=None)  # MiB/s (gp3); None: EBS's own
    iops: int | None = setting(v.whole(3000), default=None)  # of the disks; None: as they need
    # where the instance store is mounted, on which the agent's home then lies; None: nowhere
    scratch: str | None = setting(v.matching(FOLDER, IS_FOLDER), default=None)
    # MiB/s at which the disks are loaded from the image's snapshot; None: as they are read
    load_rate: int | None = setting(v.whole(100), default=None)
    # whether the first launch is one instance where none of this home was ever ready
    scout: bool = setting(v.yes_or_no, default=True)
    # seconds for which a run without any instance goes on asking; None: while a first round fits
    wait: float | None = setting(v.duration, default=None)
    # seconds for which the instances that a run has at its end are kept for the next; None: none
    keep: float | None = setting(keeping, default=None)
    # further tags of everything that is made
    tags: Mapping[str, str] = setting(v.tags, default_factory=dict)
    # USD for an hour of an instance; None: what AWS says
    price: float | None = setting(v.money, default=None)
    ingress_price: float = setting(v.money, default=0.0)  # USD for each GB that an instance fetches

    @property
    def is_spot(self) -> bool:
        """Whether spot instances are asked for, at least at first."""
        return self.market[0] == "spot"

    @property
    def falls_back(self) -> bool:
        """Whether on-demand instances are asked for where spot has none."""
        return len(self.market) > 1

    @property
    def boot_s(self) -> float:
        return self.boot or boot_limit_s(self.types)

    @property
    def types(self) -> tuple[str, ...]:
        return self.instance_type


KEYS = Ec2Keys
