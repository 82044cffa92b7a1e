"""What instance types have: GPUs, vCPUs, memory.

The one rule: EC2 is asked first; the bundled facts are for types that it no longer lists, though
accounts that had them may still launch them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind


@dataclass(frozen=True, slots=True)
class Ec2Type:
    """One instance type."""

    name: str
    gpus: int
    gpu: str  # the name of its GPUs; empty if it has none
    gpu_mib: int  # memory of each GPU in MiB
    vcpus: int
    memory_mib: int  # its memory in MiB
    source: Literal["EC2", "bundled"]  # where these facts come from
    architectures: tuple[str, ...] = ("x86_64",)  # those of its processor

    @property
    def family(self) -> str:
        """The letters before the generation: "p" of p3.8xlarge, "inf" of inf2.xlarge."""
        return family_of(self.name)


def family_of(name: str) -> str:
    """Return the letters before the generation in a type's name."""
    return "".join(letter if letter.isalpha() else " " for letter in name).split()[0]


NVSWITCH = ("p4d.", "p4de.", "p5.48", "p5e.", "p5en.", "p6-b200.", "p6-b300.")
"""How the names of types begin whose GPUs are behind NVSwitches
(docs.aws.amazon.com/ec2/latest/instancetypes/ac.html). The P6e of one rack, whose switches are not
in the machine, are not among them.
"""
BLACKWELL = ("p6", "g7")
"""How the names of types begin whose GPUs only the open kernel modules know
(docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html).
"""

BUNDLED = {
    kind.name: kind
    for kind in (
        Ec2Type("p3.2xlarge", 1, "V100", 16384, 8, 61 * 1024, "bundled"),
        Ec2Type("p3.8xlarge", 4, "V100", 16384, 32, 244 * 1024, "bundled"),
        Ec2Type("p3.16xlarge", 8, "V100", 16384, 64, 488 * 1024, "bundled"),
        Ec2Type("p3dn.24xlarge", 8, "V100", 32768, 96, 768 * 1024, "bundled"),
        Ec2Type("p2.xlarge", 1, "K80", 12288, 4, 61 * 1024, "bundled"),
        Ec2Type("p2.8xlarge", 8, "K80", 12288, 32, 488 * 1024, "bundled"),
        Ec2Type("p2.16xlarge", 16, "K80", 12288, 64, 732 * 1024, "bundled"),
    )
}
"""From aws.amazon.com/ec2/instance-types, as of 2025-11."""


async def describe(cloud: Cloud, names: Sequence[str]) -> list[Ec2Type]:
    """Look up these types, in this order.

    Raises `AwsError` if AWS refuses, or for a type that neither EC2 nor the bundled facts have.
    """
    rows = await cloud.pages(
        "ec2",
        "describe_instance_types",
        lambda answer: answer["InstanceTypes"],
        Filters=[{"Name": "instance-type", "Values": list(names)}],
    )
    found = BUNDLED | {row["InstanceType"]: _read(row) for row in rows}
    unknown = [name for name in names if name not in found]
    if unknown:
        raise AwsError(
            f"{cloud.region} has no instance type {', '.join(unknown)}; check "
            "`cluster.instance_type`",
            ErrorKind.REFUSED,
            "InvalidInstanceType",
        )
    return [found[name] for name in names]


def _read(row: dict[str, Any]) -> Ec2Type:
    gpus = row.get("GpuInfo", {}).get("Gpus", [])
    return Ec2Type(
        name=row["InstanceType"],
        gpus=sum(gpu.get("Count", 0) for gpu in gpus),
        gpu=gpus[0].get("Name", "") if gpus else "",
        gpu_mib=gpus[0].get("MemoryInfo", {}).get("SizeInMiB", 0) if gpus else 0,
        vcpus=row["VCpuInfo"]["DefaultVCpus"],
        memory_mib=row["MemoryInfo"]["SizeInMiB"],
        source="EC2",
        architectures=tuple(
            row.get("ProcessorInfo", {}).get("SupportedArchitectures", ("x86_64",))
        ),
    )
