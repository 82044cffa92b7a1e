"""What is checked in AWS. If AWS does not take the credentials, nothing else is asked: every answer
would be the same.
"""

from __future__ import annotations

import asyncio
import time

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.identity import Introduction, introduce, owner_of
from seerd.aws.policy import Needs
from seerd.backends import stored
from seerd.backends.backend import MARGIN_S
from seerd.backends.ec2.doctor import network, permissions, renting
from seerd.backends.ec2.doctor.renting import AwsNotes, Ec2Case
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.examining import Case, Finding, Level
from seerd.spec.spec import Spec
from seerd.stores.by_address import by_address
from seerd.stores.s3.address import Address
from seerd.units import format_duration

CLOCK_WARNING_S, CLOCK_PROBLEM_S = 60.0, 240.0
"""How far off the clock may be, seconds: AWS refuses requests from five minutes on."""
NOT_ASKED = Finding(
    "AWS", "warning", "nothing else in AWS was looked at, since it does not take these credentials"
)
_NOBODY = frozenset({ErrorKind.CREDENTIALS, ErrorKind.UNCLEAR, ErrorKind.THROTTLED})


async def examined(asked: Case, keys: Ec2Keys) -> list[Finding]:
    """Make all checks in AWS."""
    case = Ec2Case(asked.spec, asked.home, asked.machine, asked.peak, keys)
    notes = AwsNotes()
    async with Cloud(case.keys.region) as cloud:
        try:
            region = cloud.region
            lifetime = await cloud.lifetime()
        except AwsError as error:
            notes.problem("credentials", str(error))
            return [*notes.lines, NOT_ASKED]
        notes.ok("region", region)
        who = await introduce(cloud)
        notes.lines += clock(who.ahead_s)
        if who.error is not None:
            notes.refused("credentials", "sts:GetCallerIdentity", who.error)
            if who.error.kind in _NOBODY:
                return [*notes.lines, NOT_ASKED]
        else:
            _last(notes, who, lifetime.source, None if lifetime.renewed else lifetime.ends_at, case)
        store, data = case.spec.cluster.store or "", case.spec.train.data
        in_ec2, in_stores = await asyncio.gather(
            _rented(cloud, case, owner_of(who.arn)), stored.findings(store, data, region)
        )
        return notes.lines + in_ec2 + in_stores


def clock(ahead_s: float | None) -> list[Finding]:
    """Judge this machine's clock, `ahead_s` seconds ahead of AWS's; None: unknown."""
    if ahead_s is None:
        return []
    off_s = abs(ahead_s)
    if off_s <= CLOCK_WARNING_S:
        return [Finding("clock", "ok", f"within {off_s + 1:.0f}s of AWS's", cloud=False)]
    side = "ahead of" if ahead_s > 0 else "behind"
    found = f"this machine's clock is {format_duration(round(off_s))} {side} AWS's"
    level: Level = "problem" if off_s > CLOCK_PROBLEM_S else "warning"
    todo = "set it (timedatectl set-ntp true); AWS refuses signatures of a clock that is 5m off"
    return [Finding("clock", level, found, todo, cloud=False)]


async def needs_of(spec: Spec, keys: Ec2Keys) -> Needs:
    """Return what the policy for this spec has to permit; AWS is asked for the account."""
    async with Cloud(keys.region) as cloud:
        try:
            region = cloud.region
        except AwsError:
            region = "*"
        who = await introduce(cloud) if region != "*" else None
    kept = spec.cluster.store or ""
    in_s3 = bool(kept) and by_address(kept).by_urls
    at = Address.parse(kept) if in_s3 else Address("YOUR-BUCKET", "seerd")
    data = [Address.parse(item.source) for item in spec.train.data]
    return Needs(
        region=region,
        account=(who.account if who else "") or "*",
        image=keys.image or "*",
        subnets=keys.subnets,
        groups=keys.security_groups,
        key=keys.key,
        spot=keys.market == "spot",
        store=(at.bucket, at.prefix),
        data=tuple((address.bucket, address.prefix) for address in data),
    )


def _last(
    notes: AwsNotes, who: Introduction, source: str, ends_at: float | None, case: Ec2Case
) -> None:
    """Note whose the credentials are, and whether they outlast a run that begins now."""
    found = f"{who.arn} (from {source})"
    if ends_at is None:
        notes.ok("credentials", found)
        return
    left_s = ends_at - time.time()
    needed_s = (case.spec.limits.deadline_s or 3600.0) + MARGIN_S
    ends = f"{found}; they end in {format_duration(max(0, round(left_s)))}"
    if left_s < needed_s:
        todo = f"a run takes up to {format_duration(needed_s)}: log in again first, or use a role"
        notes.warn("credentials", ends, todo)
    else:
        notes.ok("credentials", ends)


async def _rented(cloud: Cloud, case: Ec2Case, owner: str) -> list[Finding]:
    notes = AwsNotes()
    quote = await renting.look(notes, cloud, case)
    ground = await network.look(notes, cloud, case, quote)
    await permissions.look(notes, cloud, case, permissions.PermissionTarget(owner, quote, ground))
    return notes.lines
