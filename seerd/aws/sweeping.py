"""What runs of an owner have left behind, found by tags alone.

The one rule: nothing without seerd's tags and this owner's name is ever touched, and no journal is
needed to find it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import (
    ENDING,
    HARD_END,
    NAME,
    OWNER,
    RUN,
    SeenInstance,
    Volume,
)

LONGEST = 256
"""The longest value of a tag that EC2 takes."""


@dataclass(frozen=True, slots=True)
class Left:
    """Something that still costs."""

    kind: Literal["instance", "volume"]  # what it is
    id: str
    run: str  # its run, from its tags
    name: str  # its name, from its tags
    hard_end: str  # when it ends by itself, from its tags
    state: str
    what: str  # its type, or its size
    age_s: float  # seconds since it was made

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.id} ({self.what}, {self.state}) of run {self.run}, "
            f"{self.age_s / 3600.0:.1f}h old"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What runs of an owner have left behind."""

    left: list[Left]  # what still costs, the oldest first
    ending: list[str]  # ids of instances that are shutting down, and of their disks; not billed


async def find(cloud: Cloud, owner: str) -> Found:
    """Find instances that have not ended, and volumes that are attached to none. Raises
    `AwsError`.
    """
    there = [one for one in await instances.find(cloud, _of(owner)) if _is_of(owner, one.tags)]
    disks = [one for one in await instances.volumes(cloud, _of(owner)) if _is_of(owner, one.tags)]
    costing = [
        *(_instance(one) for one in there if one.state not in ENDING),
        *(_volume(one) for one in disks if one.state == "available"),
    ]
    ended = {one.instance for one in there if one.state in ENDING}
    ending = [
        *(one.instance for one in there if one.state == "shutting-down"),
        *(one.volume for one in disks if one.ends_with(ended)),
    ]
    return Found(sorted(costing, key=lambda left: -left.age_s), ending)


async def find_instances(cloud: Cloud, owner: str, *, patience_s: float = 60.0) -> list[Left]:
    """Find only the instances that have not ended, with one question. Raises `AwsError`."""
    there = await instances.find(cloud, _of(owner), patience_s=patience_s)
    return [_instance(one) for one in there if one.state not in ENDING and _is_of(owner, one.tags)]


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


def _instance(seen: SeenInstance) -> Left:
    tags, age_s = seen.tags, time.time() - seen.launched_at
    named = tags[RUN], tags.get(NAME, ""), tags.get(HARD_END, "")
    return Left("instance", seen.instance, *named, seen.state, seen.type, age_s)


def _volume(disk: Volume) -> Left:
    tags, age_s = disk.tags, time.time() - disk.made_at
    named = tags[RUN], tags.get(NAME, ""), tags.get(HARD_END, "")
    return Left("volume", disk.volume, *named, disk.state, f"{disk.gb} GB", age_s)


def _of(owner: str) -> list[dict[str, Any]]:
    """Return the filter for what may be this owner's: in a filter `*` stands for any text
    (docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html).
    """
    return [
        {"Name": f"tag:{OWNER}", "Values": [owner[:LONGEST]]},
        {"Name": "tag-key", "Values": [RUN]},
    ]


def _is_of(owner: str, tags: Mapping[str, str]) -> bool:
    return tags.get(OWNER, "") == owner[:LONGEST]
