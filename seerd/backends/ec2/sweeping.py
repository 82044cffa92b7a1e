"""What an owner's runs have left behind, found by tags alone: no journal is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.identity import caller
from seerd.aws.instances import ENDING, HARD_END, KEPT, NAME, OWNER, RUN, SeenInstance
from seerd.backends.base import Found, Left
from seerd.planner.clouds import INSTANCE_TYPES

LONGEST = 256  # the longest value of a tag that EC2 takes


class Ec2Sweeper(Cloud):
    """See `base.Sweeper`. All methods raise `AwsError`."""

    async def owner(self, patience_s: float = 60.0) -> str:
        return await caller(self, patience_s=patience_s)

    async def find(self, owner: str) -> Found:
        seen = [s for s in await instances.find(self, _of(owner)) if _is_of(owner, s.tags)]
        disks = await instances.volumes(self, _of(owner))
        disks, now = [disk for disk in disks if _is_of(owner, disk.tags)], time.time()
        costing = [_instance(s) for s in seen if s.state not in ENDING]
        costing += [
            Left("volume", d.volume, *_named(d.tags), d.state, f"{d.gb} GB", now - d.made_at)
            for d in disks
            if d.state == "available"
        ]
        ended = {s.instance for s in seen if s.state in ENDING}
        ending = [s.instance for s in seen if s.state == "shutting-down"]
        ending += [disk.volume for disk in disks if disk.ends_with(ended)]
        return Found(sorted(costing, key=lambda left: -left.age_s), ending)

    async def find_instances(self, owner: str, patience_s: float = 60.0) -> list[Left]:
        seen = await instances.find(self, _of(owner), patience_s=patience_s)
        return [_instance(s) for s in seen if s.state not in ENDING and _is_of(owner, s.tags)]

    async def remove(self, left: Left) -> None:
        try:
            if left.kind == "instance":
                await self.ask("ec2", "terminate_instances", InstanceIds=[left.id])
            else:
                await self.ask("ec2", "delete_volume", VolumeId=left.id)
        except AwsError as error:
            if error.kind is not ErrorKind.GONE:
                raise


def _instance(seen: SeenInstance) -> Left:
    named, age_s = _named(seen.tags), time.time() - seen.launched_at
    price = INSTANCE_TYPES.get(seen.type) if seen.state in {"pending", "running"} else None
    usd_per_h = None if price is None else price.usd_per_h
    waits = seen.tags[RUN].endswith(KEPT)
    return Left("instance", seen.instance, *named, seen.state, seen.type, age_s, usd_per_h, waits)


def _named(tags: Mapping[str, str]) -> tuple[str, str, str]:
    return tags[RUN].removesuffix(KEPT), tags.get(NAME, ""), tags.get(HARD_END, "")


def _of(owner: str) -> list[dict[str, Any]]:
    """Return an owner's filter, in which `*` stands for any text
    (docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html), so tags are compared too.
    """
    return [
        {"Name": f"tag:{OWNER}", "Values": [owner[:LONGEST]]},
        {"Name": "tag-key", "Values": [RUN]},
    ]


def _is_of(owner: str, tags: Mapping[str, str]) -> bool:
    return tags.get(OWNER, "") == owner[:LONGEST]
