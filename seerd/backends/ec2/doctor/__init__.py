"""What is checked in AWS. If AWS does not take the credentials, nothing else is asked: every answer
would be the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from seerd.aws import disk_keys, instances
from seerd.aws.cloud import Cloud
from seerd.aws.credentials import Lifetime
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.identity import Introduction, introduce, owner_of
from seerd.aws.instances import RUN, tagged
from seerd.aws.network import SecurityGroup, Subnet
from seerd.aws.policy import NOBODY, SPOT_ROLE, SPOT_SERVICE, Needs, dry_run, has_spot_role
from seerd.backends.backend import MARGIN_S
from seerd.backends.ec2.asking import outlasts
from seerd.backends.ec2.doctor import network, renting
from seerd.backends.ec2.doctor.renting import AwsNotes, Rented
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import check_filled_in, settings_of
from seerd.backends.ec2.request import Candidate, run_instances
from seerd.backends.ec2.sweeping import Ec2Sweeper
from seerd.backends.examining import Case, Finding, Level, store_findings
from seerd.spec.spec import Spec
from seerd.stores.by_address import by_address
from seerd.stores.s3.address import Address
from seerd.units import format_duration

CLOCK_WARNING_S, CLOCK_PROBLEM_S = 60.0, 240.0
"""How far off the clock may be, seconds: AWS refuses requests from five minutes on."""
NOT_ASKED = Finding(
    "AWS", "warning", "nothing else in AWS was looked at, since it does not take these credentials"
)
RUN_NAME = "seerd-doctor"
UNKNOWN_OWNER = "doctor"  # stands for an owner that is not known: nothing has this tag
SCRIPT = "#!/bin/sh\n"
_NOBODY = frozenset({ErrorKind.CREDENTIALS, ErrorKind.UNCLEAR, ErrorKind.THROTTLED})


async def examined(case: Case, keys: Ec2Keys) -> list[Finding]:
    """Make all checks in AWS."""
    async with Ec2Sweeper(keys.region) as cloud:
        notes = AwsNotes(aws=cloud, case=case, keys=keys)
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
            _last(notes, who, lifetime)
        store, data = case.spec.cluster.store or "", case.spec.train.data
        in_ec2, in_stores = await asyncio.gather(
            _in_ec2(AwsNotes(aws=cloud, case=case, keys=keys), owner_of(who.arn)),
            store_findings(store, data, region),
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
    """Return what the policy for this spec has to permit; AWS is asked for the account. Raises
    `UsageError` for names that are still an example's.
    """
    check_filled_in(spec, keys)
    async with Cloud(keys.region) as cloud:
        try:
            region = cloud.region
        except AwsError:
            region = "*"
        who = await introduce(cloud) if region != "*" else None
        key = ""
        if who is not None and who.error is None:
            with contextlib.suppress(AwsError):  # the policy is printed before there are rights
                key = await disk_keys.default_key(cloud)
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
        spot=keys.is_spot and not keys.capacity,
        capacity=keys.capacity or "",
        store=(at.bucket, at.prefix),
        data=tuple((address.bucket, address.prefix) for address in data),
        disk_key="" if disk_keys.is_of_aws(key) else key,
    )


def _last(notes: AwsNotes, who: Introduction, lifetime: Lifetime) -> None:
    """Note whose the credentials are, and whether they outlast a run that begins now."""
    needed_s = (notes.case.spec.limits.deadline_s or 3600.0) + MARGIN_S
    ends, todo = outlasts(lifetime, needed_s, time.time())
    found = f"{who.arn} (from {lifetime.source})" + (f"; they {ends}" if ends else "")
    notes.note("credentials", "warning" if todo else "ok", found, todo)


async def _in_ec2(notes: AwsNotes, owner: str) -> list[Finding]:
    """Check what would be rented, the network, and the permissions for instances and volumes: each
    call that a run makes, as a dry run or about nothing, so that EC2 does nothing. `owner`: that of
    the credentials; empty: not known.
    """
    rented = await renting.look(notes)
    subnets, groups = await network.look(notes, rented)
    before = len(notes.lines)
    asked = notes.aws.find_instances(owner or UNKNOWN_OWNER)
    left = await notes.ask("instances", "ec2:DescribeInstances", asked)
    disks = instances.volumes(notes.aws, tagged(RUN, RUN_NAME))
    await notes.ask("volumes", "ec2:DescribeVolumes", disks)
    await _launch(notes, owner, rented, subnets, groups)
    if notes.keys.is_spot:  # an account's first spot request makes the role if it may
        has_role = await notes.ask("spot role", "iam:GetRole", has_spot_role(notes.aws), "warning")
        if has_role:
            notes.ok("spot role", f"the account has {SPOT_ROLE}")
        elif has_role is not None:
            found = f"the account has no {SPOT_ROLE} yet; its first spot request is refused unless "
            todo = f"once: aws iam create-service-linked-role --aws-service-name {SPOT_SERVICE}"
            notes.warn("spot role", f"{found}these credentials may make it", todo)
    live = [instance.id for instance in left or []]
    ends = dry_run(notes.aws, "terminate_instances", InstanceIds=live[:1] or [NOBODY])
    if (error := await notes.ask("permissions", "ec2:TerminateInstances", ends)) is not None:
        notes.refused("permissions", "ec2:TerminateInstances", error)
    if not notes.forbidden and not any(line.missing for line in notes.lines[before:]):
        notes.ok("permissions", "describing, launching, tagging and terminating instances")
    if live:
        found = f"{len(live)} of yours are there already"
        notes.warn("instances", found, "seerd sweep --dry-run shows whose they are")
    elif left is not None and owner:
        notes.ok("instances", "none of yours is there")
    return notes.lines


async def _launch(
    notes: AwsNotes,
    owner: str,
    rented: Rented,
    subnets: Sequence[Subnet],
    groups: Sequence[SecurityGroup],
) -> None:
    """Ask for one instance as a dry run, place by place until a place has the type."""
    places = [Candidate(k.name, s.subnet, s.zone) for k in rented.types for s in subnets]
    image, bought = rented.image, rented.bought
    if bought is not None and subnets:
        places = [place for place in places if place.zone == bought.zone]
        if not places:
            found = f"{bought.id} is in {bought.zone}, and no subnet of the run is"
            notes.problem("launch", found, "add one of that zone to cluster.subnets")
            return
    if image is None or not places:
        missing = "a subnet" if rented.types else "a type"
        missing = missing if image else "the image"
        notes.warn("launch", f"ec2:RunInstances was not asked for, since {missing} is not known")
        return
    settings = settings_of(
        notes.keys,
        run=RUN_NAME,
        name=notes.case.spec.name,
        owner=owner or UNKNOWN_OWNER,
        gpus=rented.types[0].gpus,
        keys=Path(),
        hard_end=0.0,
        instance_types=tuple(kind.name for kind in rented.types),
        security_groups=(
            tuple(group.group for group in groups) if notes.keys.security_groups else ()
        ),
        max_usd_per_h=notes.keys.price,
        block=bought is not None and bought.block,
    )
    error: AwsError | None = None
    for place in places:
        request = run_instances(settings, "doctor", place, image, SCRIPT)
        del request["ClientToken"]  # a dry run makes nothing that could be made twice
        error = await dry_run(notes.aws, "run_instances", **request)
        if error is None or error.kind not in {ErrorKind.ELSEWHERE, ErrorKind.CAPACITY}:
            break
    if error is not None:
        notes.refused("launch", "ec2:RunInstances", error)
        return
    found = f"permitted and well-formed for {place}"
    notes.ok("launch", f"{found}; a dry run asks for neither quota nor capacity")
