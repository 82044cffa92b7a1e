"""How many vCPUs of a family of instances an account may run at once. A quota that cannot be read
(`enough` None) stops nothing, since EC2 enforces it anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seerd.aws import instances, types
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError
from seerd.aws.types import Ec2Type, family_of

PATIENCE_S = 10.0
"""Seconds for each question: a check that stops nothing if it fails is not worth a long wait."""
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
"""Codes of Service Quotas, EC2: on-demand and spot
(docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html). In the P family, P5 has a
spot quota of its own.
"""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a quota allows."""

    enough: bool | None  # whether it allows what is wanted; None if it could not be read
    text: str  # what it says, for people
    instances: int | None = None  # how many instances it allows; None if not known
    free: int = 0  # vCPUs that are left
    error: AwsError | None = None  # why it could not be read


def code_of(name: str, market: Market) -> tuple[str, str]:
    """Return the family of a type and the code of its quota."""
    family, on_demand, spot = _FAMILIES.get(family_of(name), _STANDARD)
    if market == "spot":
        return family, _SPOT_P5 if name.startswith("p5") else spot
    return family, on_demand


async def check_all(cloud: Cloud, kinds: Sequence[Ec2Type], market: Market, peak: int) -> Quota:
    """Check whether the account may run `peak` more instances: as many as possible of the first
    type, then of the next.
    """
    checked = [(kind, await check(cloud, kind, market, peak)) for kind in kinds]
    return together(checked, market, peak)


def together(checked: Sequence[tuple[Ec2Type, Quota]], market: Market, peak: int) -> Quota:
    """Return how many instances these quotas allow in all, for types in order of preference."""
    for _, quota in checked:
        if quota.enough is None:
            return quota
    free = {code_of(kind.name, market)[1]: quota.free for kind, quota in checked}
    allowed = 0
    for kind, _ in checked:
        code = code_of(kind.name, market)[1]
        more = free[code] // kind.vcpus
        allowed, free[code] = allowed + more, free[code] - more * kind.vcpus
    text = "\n".join(dict.fromkeys(quota.text for _, quota in checked))
    return Quota(allowed >= peak, text, allowed)


async def check(cloud: Cloud, kind: Ec2Type, market: Market, peak: int) -> Quota:
    """Check whether the account may run `peak` more instances of this type."""
    family, code = code_of(kind.name, market)
    called = f"vCPU quota for {market} {family} instances in {cloud.region} ({code})"
    try:
        answer = await cloud.ask(
            "service-quotas",
            "get_service_quota",
            patience_s=PATIENCE_S,
            ServiceCode="ec2",
            QuotaCode=code,
        )
        used = await _used(cloud, code, market)
    except AwsError as error:
        text = f"the {called} could not be read, so it was not checked: {error}"
        return Quota(None, text, error=error)
    in_use = f", of which {used} are in use" if used else ""
    vcpus, needed = int(answer["Quota"]["Value"]), peak * kind.vcpus
    free = max(0, vcpus - used)
    allowed = free // kind.vcpus
    text = f"the {called} is {vcpus}{in_use}"
    if allowed >= peak:
        return Quota(True, f"{text}, enough for {allowed} {kind.name}", allowed, free)
    text += (
        f"; {peak} {kind.name} need {needed}, and it allows {allowed}. Ask for more: "
        f"aws service-quotas request-service-quota-increase --region {cloud.region} "
        f"--service-code ec2 --quota-code {code} --desired-value {needed + used}"
    )
    return Quota(False, text, allowed, free)


async def _used(cloud: Cloud, code: str, market: Market) -> int:
    """Return the vCPUs of all instances in the region that count against a quota."""
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    counted = [
        seen.type
        for seen in await instances.find(cloud, running, patience_s=PATIENCE_S)
        if seen.spot == (market == "spot") and code_of(seen.type, market)[1] == code
    ]
    if not counted:
        return 0
    kinds = await types.describe(cloud, sorted(set(counted)))
    vcpus = {kind.name: kind.vcpus for kind in kinds}
    return sum(vcpus[name] for name in counted)
