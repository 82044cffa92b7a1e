"""The image of instances, looked up before anything starts, so that a wrong one costs no money."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind


@dataclass(frozen=True, slots=True)
class Image:
    """An image that can be started."""

    image: str  # its id
    name: str
    architecture: str  # the processor's
    root: str  # the device of its root disk
    disks: tuple[tuple[str, int], ...]  # (device, GB) of each disk that it brings


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
    """Look up the image that `ami-...` or `ssm:/path` names in this region. Raises `AwsError`."""
    is_parameter = named.startswith("ssm:")
    image = await _parameter(cloud, named.removeprefix("ssm:")) if is_parameter else named
    answer = await cloud.ask("ec2", "describe_images", ImageIds=[image])
    if not answer["Images"]:
        raise _wrong(
            f"there is no image {image} in {cloud.region}; check `cluster.image` and "
            "`cluster.region`"
        )
    return _image(answer["Images"][0])


async def _parameter(cloud: Cloud, path: str) -> str:
    """Read the image id from a public parameter, which is bare, or JSON with `image_id`
    (docs.aws.amazon.com/systems-manager/latest/userguide/, "Calling AMI public parameters").
    """
    answer = await cloud.ask("ssm", "get_parameter", Name=path)
    value = str(answer["Parameter"]["Value"]).strip()
    if value.startswith("{"):
        value = str(json.loads(value).get("image_id", ""))
    if not value.startswith("ami-"):
        raise _wrong(f"the parameter {path} holds no image id; check `cluster.image`")
    return value


def _image(row: dict[str, Any]) -> Image:
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
    return Image(image, row.get("Name", ""), row.get("Architecture", ""), root, disks)


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
