"""What runs of an owner have left behind, found by tags alone.

The one rule: nothing without seerd's tags and this owner's name is ever touched, and no journal is
needed to find it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from seerd.shell.aws import instances
from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AwsError, ErrorKind
from seerd.shell.aws.instances import ENDING, HARD_END, NAME, OWNER, RUN, tagged


@dataclass(frozen=True, slots=True)
class Left:
    """Something that still costs.

    kind      what it is
    id        its id
    run       its run, from its tags
    name      its name, from its tags
    hard_end  when it ends by itself, from its tags
    state     its state
    what      its type, or its size
    age_s     seconds since it was made
    """

    kind: Literal["instance", "volume"]
    id: str
    run: str
    name: str
    hard_end: str
    state: str
    what: str
    age_s: float

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.id} ({self.what}, {self.state}) of run {self.run}, "
            f"{self.age_s / 3600.0:.1f}h old"
        )


async def find(cloud: Cloud, owner: str) -> list[Left]:
    """Find instances that have not ended, and volumes that are attached to none, the oldest first.

    Raises `AwsError`.
    """
    now = time.time()
    disks = [
        Left(
            "volume",
            v.volume,
            v.tags[RUN],
            v.tags.get(NAME, ""),
            v.tags.get(HARD_END, ""),
            v.state,
            f"{v.gb} GB",
            now - v.made_at,
        )
        for v in await instances.volumes(cloud, _of(owner))
        if v.state == "available"
    ]
    return sorted([*await find_instances(cloud, owner), *disks], key=lambda left: -left.age_s)


async def find_instances(cloud: Cloud, owner: str, *, patience_s: float = 60.0) -> list[Left]:
    """Find only the instances that have not ended, with one question. Raises `AwsError`."""
    now = time.time()
    return [
        Left(
            "instance",
            s.instance,
            s.tags[RUN],
            s.tags.get(NAME, ""),
            s.tags.get(HARD_END, ""),
            s.state,
            s.type,
            now - s.launched_at,
        )
        for s in await instances.find(cloud, _of(owner), patience_s=patience_s)
        if s.state not in ENDING
    ]


async def remove(cloud: Cloud, left: Left) -> None:
    """End this instance or delete this volume; if it is already gone, that is a success.

    Raises `AwsError`.
    """
    try:
        if left.kind == "instance":
            await cloud.ask("ec2", "terminate_instances", InstanceIds=[left.id])
        else:
            await cloud.ask("ec2", "delete_volume", VolumeId=left.id)
    except AwsError as error:
        if error.kind is not ErrorKind.GONE:
            raise


def _of(owner: str) -> list[dict[str, Any]]:
    return [*tagged(OWNER, owner[:256]), {"Name": "tag-key", "Values": [RUN]}]
