"""The account's own images, each known by its name and by the tags of its build. If the answer of a
call was lost, seerd looks whether the image exists, and never makes another one. All functions
raise `AwsError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AGAIN, AwsError, ErrorKind
from seerd.aws.instances import RUN, tagged

CREATE_S = 120.0  # for how many seconds EC2 may be busy or broken before the image is given up

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.2, 10.0
_FAILED = frozenset({"failed", "error", "invalid", "deregistered"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image to be made."""

    instance: str  # the instance that it is made of
    name: str
    description: str
    tags: Mapping[str, str]  # tags of the image and its snapshots


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An image in one answer of EC2."""

    image: str  # its id
    name: str
    state: str
    why: str  # what EC2 says of its state
    snapshots: tuple[str, ...]  # where its disks are kept, which is what it costs


async def create(cloud: Cloud, wanted: Wanted) -> str:
    """Start making an image, and return its id. EC2 shuts the instance down for it and starts it
    again (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html).
    """
    request: dict[str, Any] = {
        "InstanceId": wanted.instance,
        "Name": wanted.name,
        "Description": wanted.description,
        "TagSpecifications": _tags(wanted.tags),
    }
    end, failures = asyncio.get_running_loop().time() + CREATE_S, 0
    while True:
        try:
            return str((await cloud.once("ec2", "create_image", **request))["ImageId"])
        except AwsError as error:
            failures += 1
            if error.kind not in AGAIN or asyncio.get_running_loop().time() > end:
                raise
        await cloud.lanes["create_image"].retries.pause(failures)
        for made in await find(cloud, wanted.tags[RUN]):  # CreateImage takes no client token
            return made.image


async def wait(cloud: Cloud, image: str, for_s: float, tell: Callable[[str], None]) -> MadeImage:
    """Return an image once it is available, within `for_s` seconds. `tell` gets the progress."""
    end, pause_s, shown = asyncio.get_running_loop().time() + for_s, _FIRST_LOOK_S, ""
    while True:
        # With a filter, since asking by an id that EC2 does not know yet is an error.
        images = await _images(cloud, [{"Name": "image-id", "Values": [image]}])
        made = images[0] if images else None
        if made is not None and made.state == "available":
            return made
        if made is not None and made.state in _FAILED:
            why = f"the image {image} is {made.state}: {made.why or 'AWS does not say why'}"
            raise AwsError(why, ErrorKind.REFUSED, "Image")
        if asyncio.get_running_loop().time() > end:
            why = f"the image {image} was not available after {for_s:.0f}s"
            raise AwsError(why, ErrorKind.UNCLEAR, "Image")
        if made is not None and (progress := await _progress(cloud, made)) != shown:
            shown = progress
            tell(progress)
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_LOOK_S, pause_s * 1.5)


async def named(cloud: Cloud, name: str) -> list[MadeImage]:
    """Return this account's images of this name: one or none."""
    return await _images(cloud, [{"Name": "name", "Values": [name]}])


async def find(cloud: Cloud, run: str) -> list[MadeImage]:
    """Return the images that a build has made, by its tag."""
    return await _images(cloud, tagged(RUN, run))


async def remove(cloud: Cloud, run: str) -> list[str]:
    """Remove a build's images and snapshots, and return their ids."""
    made = await find(cloud, run)
    snapshots = {snapshot for image in made for snapshot in image.snapshots}
    snapshots |= set(await snapshots_of(cloud, run))
    for image in made:
        await _gone(cloud, "deregister_image", ImageId=image.image)
    for snapshot in sorted(snapshots):
        await _gone(cloud, "delete_snapshot", SnapshotId=snapshot)
    return [*(image.image for image in made), *sorted(snapshots)]


async def snapshots_of(cloud: Cloud, run: str) -> list[str]:
    """Return the snapshots with a build's tag."""
    which: dict[str, Any] = {"OwnerIds": ["self"], "Filters": tagged(RUN, run)}
    rows = await cloud.pages("ec2", "describe_snapshots", lambda a: a["Snapshots"], **which)
    return sorted(row["SnapshotId"] for row in rows)


async def _gone(cloud: Cloud, operation: str, **what: Any) -> None:
    try:
        await cloud.ask("ec2", operation, **what)
    except AwsError as error:
        if not error.code.endswith((".NotFound", ".Unavailable")):
            raise


async def _images(cloud: Cloud, filters: Sequence[Mapping[str, Any]]) -> list[MadeImage]:
    answer = await cloud.ask("ec2", "describe_images", Owners=["self"], Filters=list(filters))
    return [_made(row) for row in answer["Images"]]


def _made(row: Mapping[str, Any]) -> MadeImage:
    disks = [disk.get("Ebs", {}).get("SnapshotId") for disk in row.get("BlockDeviceMappings", [])]
    return MadeImage(
        row["ImageId"],
        row.get("Name", ""),
        row.get("State", ""),
        row.get("StateReason", {}).get("Message", ""),
        tuple(disk for disk in disks if disk),
    )


async def _progress(cloud: Cloud, made: MadeImage) -> str:
    text = f"the image {made.image} is {made.state}"
    if not made.snapshots:
        return text
    filters = [{"Name": "snapshot-id", "Values": list(made.snapshots)}]
    rows = await cloud.pages("ec2", "describe_snapshots", lambda a: a["Snapshots"], Filters=filters)
    parts = ", ".join(f"{row['SnapshotId']} {row.get('Progress') or '0%'}" for row in rows)
    return f"{text}; snapshot {parts}" if parts else text


def _tags(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in ("image", "snapshot")]
