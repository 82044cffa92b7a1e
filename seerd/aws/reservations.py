"""Capacity that was bought: On-Demand Capacity Reservations and Capacity Blocks
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-reservations.html,
/ec2-capacity-blocks.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind

ENDS_BEFORE_S = 1800.0
"""EC2 begins to end the instances of a block so long before the block's end."""
WAITING = frozenset({"scheduled", "payment-pending", "assessing", "delayed", "pending"})
"""States of what will begin later."""
OVER = frozenset({"expired", "cancelled", "failed", "payment-failed", "unsupported"})


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation. Times are wall clock, seconds since 1970."""

    id: str
    type: str  # of its instances
    zone: str  # their availability zone
    total: int  # how many instances it has
    free: int  # how many of them nobody uses now
    state: str  # as EC2 has it
    block: bool  # whether it is a Capacity Block
    begins: float | None = None  # None: it has begun
    ends: float | None = None  # when its instances end at the latest; None: it has no end

    @property
    def text(self) -> str:
        """What is free in it and when it begins and ends, for people."""
        says = f"{self.id}: {self.free} of {self.total} {self.type} in {self.zone} are free"
        for at, what in ((self.begins, "begins"), (self.ends, "its instances end")):
            moment = "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(" ", "minutes")
            says += f"; {what} at {moment}" if moment else ""
        return says


async def reservation(cloud: Cloud, named: str) -> Reservation:
    """Look a reservation up. Raises `AwsError` if there is none, or if it is over."""
    answer = await cloud.call(
        "ec2", "describe_capacity_reservations", CapacityReservationIds=[named]
    )
    row: dict[str, Any] = answer["CapacityReservations"][0]
    block = row.get("ReservationType") == "capacity-block"
    ends = row.get("EndDate")
    found = Reservation(
        id=named,
        type=row["InstanceType"],
        zone=row["AvailabilityZone"],
        total=row["TotalInstanceCount"],
        free=row.get("AvailableInstanceCount", 0),
        state=row["State"],
        block=block,
        begins=row["StartDate"].timestamp() if row["State"] in WAITING else None,
        ends=None if ends is None else ends.timestamp() - (ENDS_BEFORE_S if block else 0.0),
    )
    if found.state in OVER:
        why = f"nothing was started: {named} is {found.state}; change `cluster.capacity`"
        raise AwsError(why, ErrorKind.REFUSED, "CapacityReservation")
    return found
