"""Images: that of a run's instances is looked up before anything starts, so that a wrong one costs
no money. The account's own are known by their name and by the tags of their build: if the answer of
a call was lost, seerd looks whether the image exists, and never makes another one. Functions raise
`AwsError`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AGAIN, AwsError, ErrorKind
from seerd.aws.instances import RUN, tagged


@dataclass(frozen=True, slots=True)
class Image:
    """An image that can be started."""

    image: str  # its id
    name: str
    architecture: str  # the processor's
    root: str  # the device of its root disk
    disks: tuple[tuple[str, int], ...]  # (device, GB) of each disk that it brings
    # when it was made, and from when on AWS or its owner advises against it, wall clock, seconds
    # since 1970; None: not known
    made_at: float | None = None
    deprecated_at: float | None = None


OPEN_DRIVER = "OSS Nvidia Driver"
"""In the names of AWS's Deep Learning images with NVIDIA's open kernel modules. These support
Turing and later (github.com/NVIDIA/open-gpu-kernel-modules#supported-gpus), and release notes list
G4dn to P6 (docs.aws.amazon.com/dlami/latest/devguide/appendix-ami-release-notes.html).
"""
BEFORE_TURING = frozenset({"p2", "p3", "p3dn", "g3", "g3s"})


def unfit(image: Image, types: Iterable[str]) -> list[str]:
    """Return those of the instance types for whose GPUs the image certainly has no driver."""
    if OPEN_DRIVER.lower() not in image.name.lower():
        return []
    return [name for name in types if name.partition(".")[0] in BEFORE_TURING]


async def resolve(cloud: Cloud, named: str) -> Image:
    """Look up the image that `ami-...` or `ssm:/path` names in this region: public parameters hold
    its id, bare or in JSON as `image_id`
    (docs.aws.amazon.com/systems-manager/latest/userguide/, "Calling AMI public parameters").
    """
    path = named.removeprefix("ssm:")
    if path != named:
        answer = await cloud.ask("ssm", "get_parameter", Name=path)
        named = str(answer["Parameter"]["Value"]).strip()
        if named.startswith("{"):
            named = str(json.loads(named).get("image_id", ""))
        if not named.startswith("ami-"):
            raise _wrong(f"the parameter {path} holds no image id; check `cluster.image`")
    answer = await cloud.ask("ec2", "describe_images", ImageIds=[named])
    if not answer["Images"]:
        raise _wrong(
            f"there is no image {named} in {cloud.region}; check `cluster.image` and "
            "`cluster.region`, and whether your account allows it: "
            f"aws ec2 get-allowed-images-settings --region {cloud.region}"
        )
    row = answer["Images"][0]
    image, state = row["ImageId"], row.get("State", "available")
    if state != "available":
        raise _wrong(f"the image {image} is {state}; check `cluster.image`")
    if row.get("RootDeviceType") == "instance-store":
        raise _wrong(
            f"the image {image} has no EBS root disk, so it cannot be started encrypted; "
            "choose another in `cluster.image`"
        )
    disks = tuple(
        (d["DeviceName"], d["Ebs"].get("VolumeSize", 0))
        for d in row.get("BlockDeviceMappings", [])
        if "Ebs" in d
    )
    root = row.get("RootDeviceName") or "/dev/xvda"
    times = (_moment(row.get(name)) for name in ("CreationDate", "DeprecationTime"))
    return Image(image, row.get("Name", ""), row.get("Architecture", ""), root, disks, *times)


def _moment(text: str | None) -> float | None:
    """Read a time of an image, such as 2026-01-31T12:00:00.000Z."""
    try:
        return None if not text else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def check(image: Image, types: Iterable[str]) -> None:
    """Check the image against the types. Raises `AwsError` for types that it cannot drive."""
    if wrong := unfit(image, types):
        raise _wrong(
            f"the image {image.image} ({image.name}) has no driver for the GPUs of "
            f"{', '.join(wrong)}; name others in `cluster.instance_type`, g4dn or newer, or "
            "another image"
        )


def _wrong(why: str) -> AwsError:
    return AwsError(f"nothing was started: {why}", ErrorKind.REFUSED, "Image")


CREATE_S = 120.0  # for how many seconds EC2 may be busy or broken before the image is given up

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.2, 10.0
_FAILED = frozenset({"failed", "error", "invalid", "deregistered"})


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An image in one answer of EC2."""

    image: str  # its id
    name: str
    state: str
    why: str  # what EC2 says of its state
    snapshots: tuple[str, ...]  # where its disks are kept, which is what it costs


async def create(
    cloud: Cloud, instance: str, name: str, description: str, tags: Mapping[str, str]
) -> str:
    """Start making an image, which gets these tags as its snapshots do, and return its id. EC2
    shuts the instance down for it and starts it again
    (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html).
    """
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    request: dict[str, Any] = {
        "InstanceId": instance,
        "Name": name,
        "Description": description,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": pairs} for kind in ("image", "snapshot")
        ],
    }
    end, failures = asyncio.get_running_loop().time() + CREATE_S, 0
    while True:
        try:
            return str((await cloud.call("ec2", "create_image", **request))["ImageId"])
        except AwsError as error:
            failures += 1
            if error.kind not in AGAIN or asyncio.get_running_loop().time() > end:
                raise
        await cloud.lanes["create_image"].pause(failures)
        for made in await find(cloud, tags[RUN]):  # CreateImage takes no client token
            return made.image


async def wait(cloud: Cloud, image: str, for_s: float, tell: Callable[[str], None]) -> MadeImage:
    """Return an image once it is available, within `for_s` seconds. `tell` gets its states."""
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
        if made is not None and made.state != shown:
            shown = made.state
            tell(f"the image {image} is {shown}")
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
    which: dict[str, Any] = {"OwnerIds": ["self"], "Filters": tagged(RUN, run)}
    rows = await cloud.pages("ec2", "describe_snapshots", lambda a: a["Snapshots"], **which)
    snapshots = {row["SnapshotId"] for row in rows}
    snapshots |= {snapshot for image in made for snapshot in image.snapshots}
    for image in made:
        await _gone(cloud, "deregister_image", ImageId=image.image)
    for snapshot in sorted(snapshots):
        await _gone(cloud, "delete_snapshot", SnapshotId=snapshot)
    return [*(image.image for image in made), *sorted(snapshots)]


async def _gone(cloud: Cloud, operation: str, **what: Any) -> None:
    try:
        await cloud.ask("ec2", operation, **what)
    except AwsError as error:
        if not error.code.endswith((".NotFound", ".Unavailable")):
            raise


async def _images(cloud: Cloud, filters: Sequence[Mapping[str, Any]]) -> list[MadeImage]:
    answer = await cloud.ask("ec2", "describe_images", Owners=["self"], Filters=list(filters))
    return [
        MadeImage(
            row["ImageId"],
            row.get("Name", ""),
            row.get("State", ""),
            row.get("StateReason", {}).get("Message", ""),
            tuple(
                disk["Ebs"]["SnapshotId"]
                for disk in row.get("BlockDeviceMappings", [])
                if disk.get("Ebs", {}).get("SnapshotId")
            ),
        )
        for row in answer["Images"]
    ]
