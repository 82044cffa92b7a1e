"""What the credentials permit with instances: each call that a run makes, as a dry run or about
nothing, so that EC2 does nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import RUN, tagged
from seerd.aws.policy import NOBODY, NOTHING, SPOT_ROLE, SPOT_SERVICE, dry_run, has_spot_role
from seerd.backends.base import Left
from seerd.backends.ec2 import sweeping
from seerd.backends.ec2.doctor.network import Ground
from seerd.backends.ec2.doctor.renting import AwsNotes, Ec2Case, Rented
from seerd.backends.ec2.offer import settings_of
from seerd.backends.ec2.request import Candidate, Ec2Settings, run_instances
from seerd.backends.examining import Level

RUN_NAME = "seerd-doctor"
SCRIPT = "#!/bin/sh\n"


@dataclass(frozen=True, slots=True)
class PermissionTarget:
    """Who would rent, and what."""

    owner: str  # the owner of the credentials; empty: not known
    rented: Rented  # what would be rented
    ground: Ground  # where it would be


async def look(notes: AwsNotes, cloud: Cloud, case: Ec2Case, target: PermissionTarget) -> None:
    """Check the permissions for instances and volumes."""
    before = len(notes.lines)
    left = await notes.ask("instances", "ec2:DescribeInstances", _left(cloud, target.owner))
    disks = instances.volumes(cloud, tagged(RUN, RUN_NAME))
    await notes.ask("volumes", "ec2:DescribeVolumes", disks)
    await _launch(notes, cloud, case, target)
    if case.keys.market == "spot":
        await _spot_role(notes, cloud)
    live = [instance.id for instance in left or []]
    ends = dry_run(cloud, "terminate_instances", InstanceIds=live[:1] or [NOBODY])
    await _dry(notes, "ec2:TerminateInstances", ends)
    await _dry(notes, "ec2:DeleteVolume", dry_run(cloud, "delete_volume", VolumeId=NOTHING))
    if not any(line.missing for line in notes.lines[before:]):
        found = "describing, launching, tagging and terminating instances, deleting volumes"
        notes.ok("permissions", found)
    if live:
        found = f"{len(live)} of yours are there already"
        notes.warn("instances", found, "seerd sweep --dry-run shows whose they are")
    elif left is not None:
        notes.ok("instances", "none of yours is there")


async def _left(cloud: Cloud, owner: str) -> list[Left]:
    if owner:
        return await sweeping.instances_of(cloud, owner)
    await instances.find(cloud, tagged(RUN, RUN_NAME))
    return []


async def _launch(notes: AwsNotes, cloud: Cloud, case: Ec2Case, target: PermissionTarget) -> None:
    """Ask for one instance as a dry run, place by place until a place has the type."""
    places = [
        Candidate(kind.name, s.subnet, s.zone)
        for kind in target.rented.types
        for s in target.ground.subnets
    ]
    image = target.rented.image
    if image is None or not places:
        missing = "a subnet" if target.rented.types else "a type"
        missing = missing if image else "the image"
        notes.warn("launch", f"ec2:RunInstances was not asked for, since {missing} is not known")
        return
    error: AwsError | None = None
    for place in places:
        request = run_instances(_settings(case, target), "doctor", place, image, SCRIPT)
        del request["ClientToken"]  # a dry run makes nothing that could be made twice
        error = await dry_run(cloud, "run_instances", **request)
        if error is None or error.kind not in {ErrorKind.ELSEWHERE, ErrorKind.CAPACITY}:
            break
    if error is not None:
        notes.refused("launch", "ec2:RunInstances", error)
        return
    found = f"permitted and well-formed for {place}"
    notes.ok("launch", f"{found}; a dry run asks for neither quota nor capacity")


async def _spot_role(notes: AwsNotes, cloud: Cloud) -> None:
    """Look for the role for spot; the first request makes it if it may."""
    has_role = await notes.ask("spot role", "iam:GetRole", has_spot_role(cloud), "warning")
    if has_role:
        notes.ok("spot role", f"the account has {SPOT_ROLE}")
    elif has_role is not None:
        notes.warn(
            "spot role",
            f"the account has no {SPOT_ROLE} yet; its first spot request is refused unless these "
            "credentials may make it",
            f"once: aws iam create-service-linked-role --aws-service-name {SPOT_SERVICE}",
        )


async def _dry(notes: AwsNotes, action: str, asked: Awaitable[AwsError | None]) -> None:
    """Note a refusal: only a warning for deleting volumes, which `seerd sweep` alone does."""
    try:
        error = await asked
    except AwsError as failed:
        error = failed
    if error is not None:
        level: Level = "warning" if action == "ec2:DeleteVolume" else "problem"
        notes.refused("permissions", action, error, level)


def _settings(case: Ec2Case, target: PermissionTarget) -> Ec2Settings:
    groups = tuple(group.group for group in target.ground.groups)
    return settings_of(
        case.keys,
        run=RUN_NAME,
        name=case.spec.name,
        owner=target.owner or "doctor",
        gpus=target.rented.types[0].gpus,
        keys=Path(),
        hard_end=0.0,
        instance_types=tuple(kind.name for kind in target.rented.types),
        security_groups=groups if case.keys.security_groups else (),
        key=target.ground.key,
        max_usd_per_h=case.keys.price,
    )
