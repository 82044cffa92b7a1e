"""EC2 as it is on a bad day: answers that lag behind, lost answers, throttling, no capacity,
instances that die at birth.

The one rule: an effect happens or does not, whatever the caller hears, and however long the caller
still lives to hear it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError

from bench.testbed.rig.buckets import Buckets
from bench.testbed.rig.timing import Timing
from seerd.aws.cloud import Cloud
from seerd.aws.reservations import ENDS_BEFORE_S
from tests.faults.strains import Block
from tests.faults.timeline import EPOCH, Loop, Timeline
from tests.faults.weather import Chance

RESERVATION = "cr-1"
ZONES = ("us-east-1a", "us-east-1b")
EC2 = Timing()
PENDING_S, ADDRESS_S = (EC2.pending_s, 25.0), (1.0, 2.0)
LOOK_S, RUN_S = (EC2.look_s, 2 * EC2.look_s), (EC2.run_s, 2 * EC2.run_s)
"""Seconds from a launch to running, and from then until the address is told; what an answer takes,
and that to a launch.
"""
SHUTTING_DOWN_S, LONGEST_SHUTTING_DOWN_S = EC2.shutting_down_s, 600.0
FADING_S = EC2.fading_s
"""From terminated until nobody is told its tags any more."""
CALM = frozenset({"describe_instance_type_offerings", "describe_spot_price_history"})
"""Questions without weather: what is never another answer here."""
VOLUME_S = 2.0
"""From terminated until the disk is deleted."""
STALE_S = 3.0
"""So old is the state that a stale answer tells, at most."""


@dataclass(slots=True)
class Instance:
    """One instance as EC2 has it. Times are seconds since the run began; it is billed from
    `running` until `ended`. `address_s`: from running until its address is told.
    """

    id: str
    token: str
    type: str
    subnet: str
    tags: Mapping[str, str]
    user_data: str
    launched: float
    visible: float
    address: str
    address_s: float
    running: float | None = None
    ended: float | None = None
    terminated: float | None = None
    faded: bool = False
    reason: tuple[str, str] = ("", "")
    states: list[tuple[float, str]] = field(default_factory=list)
    spot: bool = True

    @property
    def command(self) -> str:
        """The launch that brought it."""
        return self.tags.get("seerd:command", "")

    @property
    def told_tags(self) -> Mapping[str, str]:
        """What is told of its tags now."""
        return {} if self.faded else self.tags

    def billed_s(self, now: float, minimum_s: float = 60.0) -> float:
        """Seconds billed until now."""
        if self.running is None:
            return 0.0
        return max(minimum_s, (now if self.ended is None else min(now, self.ended)) - self.running)

    def shows_address(self, when: float) -> bool:
        """Whether its address is told by then."""
        return self.running is not None and self.running + self.address_s <= when

    def state_at(self, when: float) -> str:
        """Its state at a moment."""
        return [state for since, state in self.states if since <= when][-1]

    def go(self, now: float, state: str) -> None:
        """It has another state from now on."""
        self.states.append((now, state))


class Ec2:
    """The region. `booting`: told when an instance runs, `ending` when it has ended; `questions`:
    when it was asked what instances there are.
    """

    def __init__(self, timeline: Timeline, chance: Chance) -> None:
        self.instances: dict[str, Instance] = {}
        self.questions: list[float] = []
        self.buckets = Buckets()
        self.booting: Callable[[Instance], None] = lambda instance: None
        self.ending: Callable[[Instance], None] = lambda instance: None
        self.said: Callable[[str], None] = lambda line: None
        self.block: Block | None = None  # what was bought; None: nothing was
        self._timeline = timeline
        self._chance = chance

    def live(self) -> list[Instance]:
        """Those that cost, or will."""
        return [instance for instance in self.instances.values() if instance.ended is None]

    def end(self, instance: Instance, code: str, text: str) -> None:
        """It ends now, whoever has asked for it: from `shutting-down` on it is not billed."""
        if instance.ended is not None:
            return
        now = self._timeline.now
        instance.ended, instance.reason = now, (code, text)
        instance.go(now, "shutting-down")
        self._timeline.after(self._shutting_down_s(), lambda: self._terminates(instance))
        self.said(f"{instance.id} ends: {code}")
        self.ending(instance)

    def _shutting_down_s(self) -> float:
        if self._chance.hits("slow to shut down"):
            return self._chance.lasts("shutting down", SHUTTING_DOWN_S, LONGEST_SHUTTING_DOWN_S)
        return SHUTTING_DOWN_S

    def _terminates(self, instance: Instance) -> None:
        instance.terminated = self._timeline.now
        instance.go(self._timeline.now, "terminated")
        self._timeline.after(FADING_S, lambda: self._fades(instance))

    def _fades(self, instance: Instance) -> None:
        instance.faded = True

    # ------------------------------------------------------------ what is asked of it

    def do(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one call now. Raises `ClientError`."""
        answer: dict[str, Any] = getattr(self, f"_{operation}")(request)
        return answer

    def _run_instances(self, request: Mapping[str, Any]) -> dict[str, Any]:
        token = request.get("ClientToken", f"none {len(self.instances)}")
        for known in self.instances.values():
            if known.token == token:
                return self._again(known)
        dry = _is_spot(request) and self._chance.during("no capacity", self._timeline.now)
        if dry or self._chance.hits("capacity refused"):
            raise refusal("InsufficientInstanceCapacity", 500)
        if self.block is not None and not self._has_left(self.block):
            raise refusal("ReservationCapacityExceeded", 400)
        if self._chance.hits("quota refused"):
            raise refusal("VcpuLimitExceeded", 400)
        return {"Instances": [self._row(self._made(token, request), self._timeline.now)]}

    def _has_left(self, block: Block) -> bool:
        """What shuts down is not free yet."""
        used = [instance for instance in self.instances.values() if instance.terminated is None]
        begun = block.begins_s <= self._timeline.now < block.ends_s
        return begun and len(used) < block.instances

    def _again(self, known: Instance) -> dict[str, Any]:
        if known.ended is not None:
            raise refusal("IdempotentInstanceTerminated", 400)
        return {"Instances": [self._row(known, self._timeline.now)]}

    def _made(self, token: str, request: Mapping[str, Any]) -> Instance:
        now, number = self._timeline.now, len(self.instances) + 1
        tags = {
            tag["Key"]: tag["Value"]
            for kind in request["TagSpecifications"][:1]
            for tag in kind["Tags"]
        }
        hidden_s = (
            self._chance.lasts("hidden", 1.0, 20.0) if self._chance.hits("hidden at first") else 0.0
        )
        instance = Instance(
            f"i-{number:017x}",
            token,
            request["InstanceType"],
            request["NetworkInterfaces"][0]["SubnetId"],
            tags,
            request["UserData"],
            now,
            now + hidden_s,
            f"10.0.{number // 200}.{number % 200 + 10}",
            self._chance.lasts(
                "address", *((2.0, 20.0) if self._chance.hits("address late") else ADDRESS_S)
            ),
        )
        instance.spot = _is_spot(request)
        instance.go(now, "pending")
        self.instances[instance.id] = instance
        self.said(f"{instance.id} is launched for {instance.command}")
        self._timeline.after(
            self._chance.lasts("pending", *PENDING_S), lambda: self._runs(instance)
        )
        return instance

    def _runs(self, instance: Instance) -> None:
        if instance.ended is not None:
            return
        if self._chance.hits("dies at birth"):
            self.end(instance, "Server.InternalError", "Internal error on launch")
            return
        instance.running = self._timeline.now
        instance.go(self._timeline.now, "running")
        self.booting(instance)

    def _describe_instances(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.questions.append(self._timeline.now)
        seen_at = self._seen_at()
        rows = [
            self._row(instance, max(seen_at, instance.launched))
            for instance in self.instances.values()
            if instance.visible <= self._timeline.now and fits(instance, request.get("Filters", ()))
        ]
        page = 2 if self._chance.hits("small pages") else 1000
        first = int(request.get("NextToken", 0))
        more = {"NextToken": str(first + page)} if first + page < len(rows) else {}
        return {"Reservations": [{"Instances": rows[first : first + page]}], **more}

    def _seen_at(self) -> float:
        """EC2 tells of a moment that may have passed."""
        lag_s = (
            self._chance.lasts("lag", 0.1, STALE_S) if self._chance.hits("stale answer") else 0.0
        )
        return self._timeline.now - lag_s

    def _describe_volumes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        now = self._timeline.now
        rows = [
            {
                "VolumeId": f"vol-{instance.id[2:]}",
                "State": "in-use",
                "Size": 100,
                "Tags": tag_rows(instance),
                "CreateTime": moment(instance.launched),
                "Attachments": [{"InstanceId": instance.id}],
            }
            for instance in self.instances.values()
            if fits(instance, request.get("Filters", ()))
            and (instance.terminated is None or now < instance.terminated + VOLUME_S)
        ]
        return {"Volumes": rows}

    def _terminate_instances(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """All of them, or none if one is not known (yet)."""
        found = [self.instances.get(name) for name in request["InstanceIds"]]
        there = [one for one in found if one is not None and one.visible <= self._timeline.now]
        if len(there) < len(found):
            raise refusal("InvalidInstanceID.NotFound", 400)
        return {"TerminatingInstances": [self._terminated(instance) for instance in there]}

    def _terminated(self, instance: Instance) -> dict[str, Any]:
        before = instance.state_at(self._timeline.now)
        self.end(instance, "Client.UserInitiatedShutdown", "User initiated shutdown")
        return {
            "InstanceId": instance.id,
            "PreviousState": {"Name": before},
            "CurrentState": {"Name": instance.state_at(self._timeline.now)},
        }

    def _describe_images(self, request: Mapping[str, Any]) -> dict[str, Any]:
        disks = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}]
        return {
            "Images": [
                {
                    "ImageId": request["ImageIds"][0],
                    "RootDeviceName": "/dev/sda1",
                    "BlockDeviceMappings": disks,
                }
            ]
        }

    def _describe_subnets(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "Subnets": [
                {"SubnetId": f"subnet-{zone[-1]}", "AvailabilityZone": zone, "VpcId": "vpc-1"}
                for zone in ZONES
            ]
        }

    def _describe_instance_type_offerings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        types = request["Filters"][0]["Values"]
        rows = [{"InstanceType": kind, "Location": zone} for kind in types for zone in ZONES]
        return {"InstanceTypeOfferings": rows}

    def _describe_capacity_reservations(self, request: Mapping[str, Any]) -> dict[str, Any]:
        block = self.block
        assert block is not None
        row = {
            "CapacityReservationId": request["CapacityReservationIds"][0],
            "ReservationType": "capacity-block",
            "InstanceType": "p3.8xlarge",
            "AvailabilityZone": ZONES[0],
            "TotalInstanceCount": block.instances,
            "State": "active" if block.begins_s <= self._timeline.now else "scheduled",
            "StartDate": moment(block.begins_s),
            "EndDate": moment(block.ends_s + ENDS_BEFORE_S),
        }
        return {"CapacityReservations": [row]}

    def _describe_spot_price_history(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """None: instances cost what the plan says."""
        return {"SpotPriceHistory": []}

    def _row(self, instance: Instance, when: float) -> dict[str, Any]:
        state = instance.state_at(when)
        over = state in {"shutting-down", "terminated"}
        row = {
            "InstanceId": instance.id,
            "State": {"Name": state},
            "Tags": tag_rows(instance),
            "LaunchTime": moment(instance.launched),
            "PrivateIpAddress": instance.address if instance.shows_address(when) else "",
            "InstanceType": instance.type,
            "Placement": {"AvailabilityZone": f"us-east-1{instance.subnet[-1]}"},
        }
        row |= {"InstanceLifecycle": "spot"} if instance.spot else {}
        if over and instance.ended is not None:
            row["StateReason"] = {"Code": instance.reason[0], "Message": instance.reason[1]}
            row["StateTransitionReason"] = (
                f"User initiated ({moment(instance.ended):%Y-%m-%d %H:%M:%S} GMT)"
            )
        return row


class Client:
    """EC2 as one process reaches it."""

    def __init__(self, ec2: Ec2, timeline: Timeline, chance: Chance, loop: Loop) -> None:
        self._ec2 = ec2
        self._timeline = timeline
        self._chance = chance
        self._loop = loop

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return partial(self._call, operation)

    async def _call(self, operation: str, **request: Any) -> dict[str, Any]:
        if operation in CALM:
            return self._ec2.do(operation, request)
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        takes_s = RUN_S if operation == "run_instances" else LOOK_S
        trip_s = self._chance.lasts("api trip", *takes_s)
        if self._chance.hits("slow answer"):
            trip_s += self._chance.lasts("slow answer", 1.0, 20.0)
        if self._chance.during("endpoint unreachable", self._timeline.now) or self._chance.hits(
            "never sent"
        ):
            self._timeline.after(
                trip_s, lambda: self._fail(answer, EndpointConnectionError(endpoint_url="ec2"))
            )
        else:
            self._timeline.after(
                trip_s / 2, lambda: self._arrives(operation, request, answer, trip_s / 2)
            )
        return await answer

    def _arrives(
        self,
        operation: str,
        request: Mapping[str, Any],
        answer: asyncio.Future[dict[str, Any]],
        back_s: float,
    ) -> None:
        refused = self._refused(operation)
        if refused is not None:
            self._timeline.after(back_s, lambda: self._fail(answer, refused))
            return
        try:
            given = self._ec2.do(operation, request)
        except ClientError as error:
            late = error
            self._timeline.after(back_s, lambda: self._fail(answer, late))
            return
        if self._chance.hits("lost answer"):
            self._timeline.after(30.0, lambda: self._fail(answer, TimeoutError("read timed out")))
        elif self._chance.hits("failed after all"):
            self._timeline.after(back_s, lambda: self._fail(answer, refusal("InternalError", 500)))
        else:
            self._timeline.after(back_s, lambda: self._give(answer, given))

    def _refused(self, operation: str) -> ClientError | None:
        now = self._timeline.now
        if not self._ec2.buckets.take(operation.title().replace("_", ""), now):
            return refusal("RequestLimitExceeded", 503)
        if self._chance.during("throttling storm", now) or self._chance.hits("throttled"):
            return refusal("RequestLimitExceeded", 503)
        if self._chance.during("credentials expired", now):
            return refusal("ExpiredToken", 400)
        if operation == "run_instances" and self._chance.hits("unknown refusal"):
            return refusal("NobodyKnowsThis", 400)
        if operation == "run_instances" and self._chance.hits("launch fails"):
            return refusal("ServiceUnavailable", 503)
        if operation == "terminate_instances" and self._chance.hits("termination fails"):
            return refusal("InternalError", 500)
        return None

    def _give(self, answer: asyncio.Future[dict[str, Any]], given: dict[str, Any]) -> None:
        if self._loop.alive and not answer.done():
            answer.set_result(given)

    def _fail(self, answer: asyncio.Future[dict[str, Any]], error: Exception) -> None:
        if self._loop.alive and not answer.done():
            answer.set_exception(error)


class VirtualCloud(Cloud):
    """seerd's own account of AWS, with this EC2 behind it instead of a connection."""

    def __init__(self, client: Client) -> None:
        super().__init__("us-east-1")
        self._client_here = client

    @property
    def region(self) -> str:
        """The one there is."""
        return "us-east-1"

    async def client(self, service: str, region: str | None = None) -> Any:
        return self._client_here


def refusal(code: str, status: int) -> ClientError:
    """As botocore raises it."""
    return ClientError(
        {
            "Error": {"Code": code, "Message": "as ordered"},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },  # type: ignore[typeddict-item]
        "call",
    )


def _is_spot(request: Mapping[str, Any]) -> bool:
    return request.get("InstanceMarketOptions", {}).get("MarketType") == "spot"


def fits(instance: Instance, filters: Any) -> bool:
    """Whether all filters take it."""
    for one in filters:
        name = one["Name"]
        named = {"instance-id": instance.id, "client-token": instance.token}
        value = named.get(name, instance.told_tags.get(name.removeprefix("tag:"), ""))
        if value not in one["Values"]:
            return False
    return True


def tag_rows(instance: Instance) -> list[dict[str, str]]:
    """Its tags as EC2 writes them."""
    return [{"Key": key, "Value": value} for key, value in instance.told_tags.items()]


def moment(at: float) -> datetime:
    """EC2 tells whole seconds."""
    return datetime.fromtimestamp(int(EPOCH + at), UTC)
