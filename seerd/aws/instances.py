"""Instances and volumes in EC2's answers, by seerd's tags. An answer is a claim about some moment
after the call, and may lag behind, so nothing here concludes from silence
(docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html). Functions raise `AwsError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from seerd.aws.cloud import Cloud

RUN, COMMAND, NAME, OWNER, HARD_END = (
    "seerd:run",
    "seerd:command",
    "seerd:name",
    "seerd:owner",
    "seerd:hard-end",
)
"""The tags of everything that seerd makes."""
SINCE = "seerd:since"
"""The tag of an instance that another run had before: when it came to this one, in seconds since
1970; empty while it waits.
"""
KEPT = "/kept"
"""After the run's id in the tag of an instance that waits for another run."""

ENDING = frozenset({"shutting-down", "terminated"})
"""States without a bill and without return
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html). With GPUs `shutting-down`
may last for more than five minutes (github.com/aws/karpenter-provider-aws/issues/7019).
"""

MOST_VALUES = 200
"""Of all filters of a call (docs.aws.amazon.com/AWSEC2/latest/APIReference/
API_DescribeInstances.html).
"""

_PAGE = 1000
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """An instance in one answer of EC2. Times are wall clock, seconds since 1970."""

    instance: str
    state: str
    tags: Mapping[str, str]
    launched_at: float  # when EC2 took the launch, or the run took the instance
    ended_at: float | None  # when its end was asked for; None if EC2 does not say
    reason: tuple[str, str]  # (code, text) of its state
    private: str  # its private address; empty if it has none
    public: str  # its public address; empty if it has none
    type: str
    zone: str  # its availability zone
    spot: bool  # whether it is a spot instance
    vpc: str = ""  # its network
    subnet: str = ""
    groups: tuple[str, ...] = ()  # ids of its security groups

    @property
    def token(self) -> str:
        """The launch that it belongs to; empty if it has no such tag."""
        return self.tags.get(COMMAND, "")


@dataclass(frozen=True, slots=True)
class Volume:
    """A disk in one answer of EC2."""

    volume: str  # its id
    state: str
    tags: Mapping[str, str]
    gb: int  # its size in GB
    made_at: float  # when it was made, wall clock, seconds since 1970
    holders: frozenset[str] = frozenset()  # the instances that it is attached to

    def ends_with(self, ending: AbstractSet[str]) -> bool:
        """Return whether EC2 deletes it already, or will with the last of these instances."""
        if self.state == "deleting":
            return True
        return self.state == "in-use" and bool(self.holders) and self.holders <= ending


@dataclass(frozen=True, slots=True)
class EndedInstance:
    """EC2's answer to a termination."""

    before: str  # its state before
    now: str  # its state now


def tagged(tag: str, value: str) -> list[dict[str, Any]]:
    """Return the filter for everything with this tag."""
    return [{"Name": f"tag:{tag}", "Values": [value]}]


async def find(
    cloud: Cloud, filters: Sequence[Mapping[str, Any]], *, patience_s: float = 60.0
) -> list[SeenInstance]:
    """Return all instances that fit the filters, in the order of their launches. EC2 lists ended
    ones for about an hour.
    """
    rows = await cloud.pages(
        "ec2",
        "describe_instances",
        lambda answer: [row for group in answer["Reservations"] for row in group["Instances"]],
        patience_s=patience_s,
        Filters=list(filters),
        MaxResults=_PAGE,
    )
    return sorted(map(seen, rows), key=lambda s: (s.launched_at, s.instance))


async def find_among(cloud: Cloud, name: str, values: Sequence[str]) -> list[SeenInstance]:
    """Return the instances whose `name` in a filter is one of these values."""
    found: list[SeenInstance] = []
    for at in range(0, len(values), MOST_VALUES):
        part = list(values[at : at + MOST_VALUES])
        found += await find(cloud, [{"Name": name, "Values": part}])
    return found


async def volumes(cloud: Cloud, filters: Sequence[Mapping[str, Any]]) -> list[Volume]:
    """Return all volumes that fit the filters."""
    rows = await cloud.pages(
        "ec2", "describe_volumes", lambda a: a["Volumes"], Filters=list(filters), MaxResults=500
    )
    return [
        Volume(
            row["VolumeId"],
            row["State"],
            _tags(row),
            row.get("Size", 0),
            row["CreateTime"].timestamp(),
            frozenset(disk["InstanceId"] for disk in row.get("Attachments", [])),
        )
        for row in rows
    ]


async def end(cloud: Cloud, instances: Sequence[str]) -> dict[str, EndedInstance]:
    """Ask once for the end of these instances, when it is their turn; return EC2's answers."""
    answer = await cloud.call("ec2", "terminate_instances", InstanceIds=list(instances))
    return {
        row["InstanceId"]: EndedInstance(row["PreviousState"]["Name"], row["CurrentState"]["Name"])
        for row in answer["TerminatingInstances"]
    }


async def tag(cloud: Cloud, instance: str, tags: Mapping[str, str]) -> None:
    """Change these tags of an instance and its disks."""
    own = await volumes(cloud, [{"Name": "attachment.instance-id", "Values": [instance]}])
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    resources = [instance, *(volume.volume for volume in own)]
    await cloud.ask("ec2", "create_tags", Resources=resources, Tags=pairs)


def tag_time(at: float) -> str:
    """Write a moment (wall clock, seconds since 1970) as tags have it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seen(row: Mapping[str, Any]) -> SeenInstance:
    """Read one instance of an answer of DescribeInstances or RunInstances."""
    reason = row.get("StateReason", {})
    # such as "User initiated (2026-01-31 12:00:00 GMT)"
    ended = _WHEN.search(row.get("StateTransitionReason") or "")
    ended_at = datetime.fromisoformat(f"{ended[1]}+00:00").timestamp() if ended else None
    return SeenInstance(
        instance=row["InstanceId"],
        state=row["State"]["Name"],
        tags=_tags(row),
        launched_at=float(_tags(row).get(SINCE) or row["LaunchTime"].timestamp()),
        ended_at=ended_at,
        reason=(reason.get("Code") or "", reason.get("Message") or ""),
        private=row.get("PrivateIpAddress") or "",
        public=row.get("PublicIpAddress") or "",
        type=row.get("InstanceType", ""),
        zone=row.get("Placement", {}).get("AvailabilityZone", ""),
        spot=row.get("InstanceLifecycle") == "spot",
        vpc=row.get("VpcId") or "",
        subnet=row.get("SubnetId") or "",
        groups=tuple(group["GroupId"] for group in row.get("SecurityGroups", ())),
    )


def _tags(row: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in row.get("Tags", [])}
