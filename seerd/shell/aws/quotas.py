"""How many vCPUs of a family of instances an account may run at once.

The one rule: a quota that cannot be read is said to be unknown; it stops nobody, since EC2 will say in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AwsError
from seerd.shell.aws.types import InstanceType

Market = Literal["on-demand", "spot"]

_STANDARD = ("Standard", "L-1216C47A", "L-34B43A08")
_FAMILIES = {
    "p": ("P", "L-417A185B", "L-7212CCBC"),
    "g": ("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "gr": ("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "vt": ("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "dl": ("DL", "L-6E869C2A", "L-85EED4F7"),
    "inf": ("Inf", "L-1945791B", "L-B5D1601B"),
    "trn": ("Trn", "L-2C3B7624", "L-6B0D517C"),
    "x": ("X", "L-7295265B", "L-E3A00192"),
    "f": ("F", "L-74FC7D96", "L-88CF9481"),
}
_SPOT_P5 = "L-C4BD4855"
"""Codes of Service Quotas, EC2: on-demand and spot (docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html). Of the P family, P5
has a spot quota of its own."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a quota allows. `enough`: None if it could not be read; `text`: for people."""

    enough: bool | None
    text: str
    instances: int | None = None


def code_of(kind: InstanceType, market: Market) -> tuple[str, str]:
    """The family's name and the code of its quota."""
    name, on_demand, spot = _FAMILIES.get(kind.family, _STANDARD)
    if market == "spot":
        return name, _SPOT_P5 if kind.name.startswith("p5") else spot
    return name, on_demand


async def check(cloud: Cloud, kind: InstanceType, market: Market, peak: int) -> Quota:
    """Whether the account may run so many instances of this type at once, if it runs nothing else of the family. Raises nothing."""
    family, code = code_of(kind, market)
    called = f"vCPU quota for {market} {family} instances in {cloud.region} ({code})"
    try:
        answer = await cloud.ask(
            "service-quotas", "get_service_quota", patience_s=10.0, ServiceCode="ec2", QuotaCode=code
        )
    except AwsError as error:
        return Quota(None, f"the {called} could not be read, so it was not checked: {error}")
    vcpus = float(answer["Quota"]["Value"])
    allowed, needed = int(vcpus // kind.vcpus), peak * kind.vcpus
    if needed <= vcpus:
        return Quota(True, f"the {called} is {vcpus:.0f}, enough for {allowed} {kind.name}", allowed)
    return Quota(
        False,
        f"the {called} is {vcpus:.0f}; {peak} {kind.name} need {needed}, and it allows {allowed}. Ask for more: aws service-quotas "
        f"request-service-quota-increase --region {cloud.region} --service-code ec2 --quota-code {code} --desired-value {needed}",
        allowed,
    )
