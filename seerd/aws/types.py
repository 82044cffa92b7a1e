"""What instance types have: GPUs and vCPUs. The bundled facts are for types that EC2 no longer
lists, though accounts that had them may still launch them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind


@dataclass(frozen=True, slots=True)
class Ec2Type:
    """One instance type."""

    name: str
    gpus: int
    gpu: str  # the name of its GPUs; empty if it has none
    vcpus: int
    architectures: tuple[str, ...] = ("x86_64",)  # those of its processor
    storage_gb: int = 0  # of its instance store; 0: it has none


def family_of(name: str) -> str:
    """Return the letters before the generation in a type's name."""
    return "".join(letter if letter.isalpha() else " " for letter in name).split()[0]


NVSWITCH = ("p4d.", "p4de.", "p5.48", "p5e.", "p5en.", "p6-b200.", "p6-b300.")
"""The types with NVSwitches inside (docs.aws.amazon.com/ec2/latest/instancetypes/ac.html)."""
BLACKWELL = ("p6", "g7")
"""The types that need the open kernel modules
(docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html).
"""

BUNDLED = {
    kind.name: kind
    for kind in (
        Ec2Type("p3.2xlarge", 1, "V100", 8),
        Ec2Type("p3.8xlarge", 4, "V100", 32),
        Ec2Type("p3.16xlarge", 8, "V100", 64),
        Ec2Type("p3dn.24xlarge", 8, "V100", 96, storage_gb=1800),
        Ec2Type("p2.xlarge", 1, "K80", 4),
        Ec2Type("p2.8xlarge", 8, "K80", 32),
        Ec2Type("p2.16xlarge", 16, "K80", 64),
    )
}
"""From aws.amazon.com/ec2/instance-types, as of 2025-11."""


async def describe(cloud: Cloud, names: Sequence[str]) -> list[Ec2Type]:
    """Return these types, in this order. Raises `AwsError` for an unknown one."""
    rows = await cloud.pages(
        "ec2",
        "describe_instance_types",
        lambda answer: answer["InstanceTypes"],
        Filters=[{"Name": "instance-type", "Values": list(names)}],
    )
    known = dict(BUNDLED)
    for row in rows:
        gpus = row.get("GpuInfo", {}).get("Gpus", [])
        known[row["InstanceType"]] = Ec2Type(
            row["InstanceType"],
            sum(gpu.get("Count") or 1 for gpu in gpus),  # 0: a part of one (g6f), which is one here
            gpus[0].get("Name", "") if gpus else "",
            row["VCpuInfo"]["DefaultVCpus"],
            tuple(row.get("ProcessorInfo", {}).get("SupportedArchitectures", ("x86_64",))),
            row.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        )
    unknown = ", ".join(name for name in names if name not in known)
    if unknown:
        why = f"{cloud.region} has no instance type {unknown}; check `cluster.instance_type`"
        raise AwsError(why, ErrorKind.REFUSED, "InvalidInstanceType")
    return [known[name] for name in names]
