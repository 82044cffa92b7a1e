"""EC2's query API where moto is kinder than AWS, or knows less: launching, terminating, prices of
spot.

The one rule: what is refused is refused before anything happened, with AWS's code, and a client
token gives the same instances again.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

from aiohttp import web

from bench.testbed.rig import aws
from bench.testbed.rig.cloud import BY_USER, GONE, Cloud, Instance
from bench.testbed.rig.machines import decode_user_data
from bench.testbed.rig.prices import PRICES, SPOT_SHARE
from bench.testbed.rig.ways import CHANGING
from bench.testbed.rig.wire import AwsError, Call, ec2_response

MAX_USER_DATA = 16 * 1024
NO_CAPACITY = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you "
    "requested ({zone}). Our system will be working on "
    "provisioning additional capacity. You can currently get {type} capacity by not "
    "specifying an Availability Zone in your request or "
    "choosing another zone."
)
MOST_VALUES = 200
TOO_MANY = "The maximum number of filter values specified on a single call is {most}"
TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
GP3 = "3000", "125"
"""IOPS and MiB/s of a disk for which nothing was asked."""
NO_QUOTA = (
    "You have requested more vCPU capacity than your current vCPU limit of {limit} allows for "
    "the instance bucket that the specified "
    "instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to "
    "request an adjustment to this limit."
)
INSTANCES = (
    "StartInstances",
    "StopInstances",
    "CreateFleet",
    "RequestSpotInstances",
    "RequestSpotFleet",
)
"""What would make or change instances behind the rig's back."""

Forward = Callable[[dict[str, str] | None], Awaitable[tuple[int, bytes]]]


@dataclass(frozen=True, slots=True)
class Pool:
    """Where capacity is: one instance type in one zone, for one market."""

    type: str
    zone: str
    market: str


@dataclass(frozen=True, slots=True)
class Bought:
    """A Capacity Reservation."""

    pool: Pool
    total: int
    users: set[str] = field(default_factory=set)  # the ids of all instances that it ever had


@dataclass(slots=True)
class Limits:
    """What there is to have. `capacity`: instances that may be live at once, where it is limited;
    `quota`: vCPUs per (family, market); `bought`: reservations by their ids; `requests`: for more
    quota.
    """

    capacity: dict[Pool, int] = field(default_factory=dict)
    quota: dict[tuple[str, str], int] = field(default_factory=dict)
    bought: dict[str, Bought] = field(default_factory=dict)
    requests: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Launched:
    """What a client token has brought."""

    fingerprint: str
    reply: bytes
    ids: list[str]


DISK_KEY = "alias/aws/ebs"
"""What encrypts disks unless the account says otherwise."""


@dataclass(slots=True)
class Ec2:
    """The EC2 API of a rig."""

    cloud: Cloud
    limits: Limits = field(default_factory=Limits)
    tokens: dict[str, Launched] = field(default_factory=dict)
    disk_key: str = DISK_KEY
    # of each instance's disks: IOPS, and MiB/s
    speeds: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def answer(self, call: Call, forward: Forward) -> web.Response:
        """One call. Raises AwsError."""
        _refuse(call)
        if call.action == "RunInstances":
            async with self.cloud.lock:
                return await self._run(call, forward)
        if call.action == "TerminateInstances":
            return await self._terminate(call)
        if call.action == "RebootInstances":
            return self._reboot(call)
        if call.action in {"GetEbsDefaultKmsKeyId", "ModifyEbsDefaultKmsKeyId"}:
            self.disk_key = call.params.get("KmsKeyId", self.disk_key)
            return ec2_response(call.action, f"<kmsKeyId>{self.disk_key}</kmsKeyId>")
        if call.action == "CreateImage":
            async with self.cloud.lock:
                return await self._create_image(call, forward)
        if call.action == "DescribeCapacityReservations":
            return self._reservations(call)
        if call.action == "DescribeSpotPriceHistory":
            return self._spot_prices(call)
        if call.action in {"DescribeInstanceTypes", "DescribeInstanceTypeOfferings"}:
            return _xml(*await forward(None))
        async with self.cloud.lock:
            status, body = await forward(None)
            if call.action in CHANGING:
                await self.cloud.route()
        return _xml(status, self._corrected(call, body))

    def _corrected(self, call: Call, body: bytes) -> bytes:
        """What moto answers, as EC2 would."""
        if call.action == "DescribeInstances":
            body = _without_addresses_of_the_gone(body)
            body = _without_addresses_of(body, self.cloud.unaddressed())
        if call.action == "DescribeVpcEndpoints":  # the model of the API has them capitalized
            for state in (b"available", b"deleted"):
                written = b"<state>%b</state>" % state
                body = body.replace(written, b"<state>%b</state>" % state.capitalize())
        if call.action == "DescribeVolumes":
            body = _with_speeds(body, self.speeds)
        if call.action == "DescribeImages":
            # EC2 knows one platform, Windows, and of other images says none.
            body = body.replace(b"<platform>Linux/UNIX</platform>", b"")
        return body

    async def _run(self, call: Call, forward: Forward) -> web.Response:
        token, print_ = call.params.get("ClientToken", ""), _fingerprint(call.params)
        if token and (before := self.tokens.get(token)):
            if before.fingerprint != print_:
                raise AwsError(
                    "IdempotentParameterMismatch",
                    "Client token has been used before with different parameters: arguments "
                    "on this idempotent request are inconsistent with "
                    "arguments used in previous request(s).",
                )
            again = _with_states(before.reply, [self.cloud.instances[name] for name in before.ids])
            return _xml(200, _without_addresses_of(again, self.cloud.unaddressed()))
        asked = self._check(call)
        if call.params.get("DryRun") == "true":
            raise AwsError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set."
            )
        count = self._granted(call, asked)
        status, body = await forward(_for_moto(call.params, count))
        if status != 200:
            return _xml(status, body)
        ids = re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", body.decode())
        self.cloud.launched(ids, _user_data(call))
        self.speeds |= dict.fromkeys(ids, _speed(call))
        if bought := self.limits.bought.get(call.params.get(TARGET, "")):
            bought.users.update(ids)
        if token:
            self.tokens[token] = Launched(print_, body, ids)
        return _xml(200, _without_addresses_of(body, self.cloud.unaddressed()))

    def _check(self, call: Call) -> Pool:
        """Everything that AWS finds out before it looks for capacity."""
        params, ec2 = call.params, self.cloud.moto.ec2
        low, high = call.number("MinCount"), call.number("MaxCount")
        if low > high:
            raise AwsError("InvalidParameterValue", "Min count cannot be greater than max count")
        kind = params.get("InstanceType", "m1.small")
        if not aws.known_type(kind):
            raise AwsError("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        _check_image(ec2, params.get("ImageId"))
        key = params.get("KeyName")
        if key is not None and key not in ec2.key_pairs:
            raise AwsError("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
        zone = _check_subnet(ec2, params)
        for group in call.listed("SecurityGroupId") + call.listed(
            "NetworkInterface.1.SecurityGroupId"
        ):
            if ec2.get_security_group_from_id(group) is None:
                raise AwsError(
                    "InvalidGroup.NotFound", f"The security group '{group}' does not exist"
                )
        _user_data(call)
        market = params.get("InstanceMarketOptions.MarketType", "on-demand")
        if market not in {"spot", "on-demand"}:
            raise AwsError(
                "InvalidParameterValue", f"Value ({market}) for parameter MarketType is invalid."
            )
        if kind not in offered_in(zone):
            raise AwsError(
                "Unsupported",
                f"Your requested instance type ({kind}) is not supported in your requested "
                f"Availability Zone ({zone}).",
            )
        return Pool(kind, zone, market)

    def _granted(self, call: Call, pool: Pool) -> int:
        """How many of MinCount to MaxCount there are. Raises AwsError if it is fewer than
        MinCount.
        """
        low, high = call.number("MinCount"), call.number("MaxCount")
        _check_bid(call, pool)
        live, size = self.cloud.live(), aws.vcpus(pool.type)
        if target := call.params.get(TARGET):
            bought = self.limits.bought.get(target)
            if bought is None or bought.pool != pool:
                raise AwsError("InvalidParameterValue", f"{target} is not for such an instance")
            if (free := self._free(bought)) < low:
                raise AwsError("ReservationCapacityExceeded", f"{target} has {free} instances left")
            return min(high, free)
        family = aws.bucket_of_quota(pool.type)
        limit = self.limits.quota.get((family, pool.market))
        if limit is not None:
            used = sum(
                aws.vcpus(one.type)
                for one in live
                if one.market == pool.market and aws.bucket_of_quota(one.type) == family
            )
            high = min(high, max(0, (limit - used) // size))
            if high < low and pool.market == "spot":
                raise AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            if high < low:
                raise AwsError("VcpuLimitExceeded", NO_QUOTA.format(limit=limit))
        room = self.limits.capacity.get(pool)
        if room is not None:
            taken = sum(1 for one in live if Pool(one.type, one.zone, one.market) == pool)
            high = min(high, max(0, room - taken))
        if high < low and pool.market == "spot":
            raise AwsError(
                "InsufficientInstanceCapacity",
                "There is no Spot capacity available that matches your request.",
            )
        if high < low:
            raise AwsError(
                "InsufficientInstanceCapacity", NO_CAPACITY.format(type=pool.type, zone=pool.zone)
            )
        return high

    async def _terminate(self, call: Call) -> web.Response:
        ids = self._named(call)
        items = "".join(
            await asyncio.gather(
                *(self._terminate_one(self.cloud.instances[name]) for name in dict.fromkeys(ids))
            )
        )
        return ec2_response("TerminateInstances", f"<instancesSet>{items}</instancesSet>")

    def _reboot(self, call: Call) -> web.Response:
        """https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RebootInstances.html"""
        for name in self._named(call):
            instance = self.cloud.instances[name]
            try:
                if instance.machine is None or instance.until is not None:
                    raise FileNotFoundError(name)
                instance.machine.reboot()
            except OSError as error:
                raise AwsError(
                    "IncorrectState",
                    f"The instance '{name}' is not in a state from which it can be rebooted.",
                ) from error
        return ec2_response("RebootInstances", "<return>true</return>")

    def _named(self, call: Call) -> list[str]:
        """The instances that a call is about, if all are there and it is no dry run. Raises
        AwsError.
        """
        ids = call.listed("InstanceId")
        if not ids:
            raise AwsError("MissingParameter", "The request must contain the parameter InstanceId")
        visible = {made.id for made in self.cloud.moto.ec2.all_instances()}
        unknown = [name for name in ids if name not in visible]
        if any(not re.fullmatch(r"i-[0-9a-f]{8,17}", name) for name in unknown):
            raise AwsError("InvalidInstanceID.Malformed", f'Invalid id: "{unknown[0]}"')
        if unknown:
            raise AwsError("InvalidInstanceID.NotFound", _do_not_exist(unknown))
        if call.params.get("DryRun") == "true":
            raise AwsError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set."
            )
        return ids

    async def _terminate_one(self, instance: Instance) -> str:
        before = instance.made._state.code, instance.made._state.name
        await self.cloud.end(instance, BY_USER)
        now = instance.made._state.code, instance.made._state.name
        states = _state("currentState", now) + _state("previousState", before)
        return f"<item><instanceId>{instance.id}</instanceId>{states}</item>"

    async def _create_image(self, call: Call, forward: Forward) -> web.Response:
        """https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html, without the
        reboot.
        """
        name, instance = (
            call.params.get("Name", ""),
            self.cloud.instances.get(call.params.get("InstanceId", "")),
        )
        if instance is None:
            raise AwsError(
                "InvalidInstanceID.NotFound", _do_not_exist([call.params.get("InstanceId", "")])
            )
        if instance.machine is None or instance.machine.clearing is not None:
            raise AwsError(
                "IncorrectInstanceState",
                "The instance is not in a state from which it can be imaged.",
            )
        for made in self.cloud.moto.ec2.amis.values():
            if made.name == name:
                raise AwsError(
                    "InvalidAMIName.Duplicate",
                    f"AMI name {name} is already in use by AMI {made.id}",
                )
        tags: dict[str, str] = {}
        asked = dict(call.params)
        for key, kind in call.params.items():
            if (
                match := re.fullmatch(r"TagSpecification\.(\d+)\.ResourceType", key)
            ) and kind == "snapshot":
                head = f"TagSpecification.{match.group(1)}."
                names = {
                    k: v for k, v in asked.items() if k.startswith(head) and k.endswith(".Key")
                }
                tags |= {
                    v: asked.get(k.removesuffix("Key") + "Value", "") for k, v in names.items()
                }
                asked = {
                    k: v for k, v in asked.items() if not k.startswith(head)
                }  # moto knows tags of images only
        status, body = await forward(asked)
        if status == 200:
            (image,) = re.findall(r"<imageId>(ami-[0-9a-f]+)</imageId>", body.decode())
            await self.cloud.imaged(image, instance, tags)
        return _xml(status, body)

    def _free(self, bought: Bought) -> int:
        return bought.total - sum(instance.id in bought.users for instance in self.cloud.live())

    def _reservations(self, call: Call) -> web.Response:
        """https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeCapacityReservations.html"""
        items = ""
        for name in call.listed("CapacityReservationId") or list(self.limits.bought):
            bought = self.limits.bought.get(name)
            if bought is None:
                code = "InvalidCapacityReservationId.NotFound"
                raise AwsError(code, f"The capacity reservation '{name}' does not exist")
            items += (
                f"<item><capacityReservationId>{name}</capacityReservationId>"
                f"<instanceType>{bought.pool.type}</instanceType>"
                f"<availabilityZone>{bought.pool.zone}</availabilityZone>"
                f"<totalInstanceCount>{bought.total}</totalInstanceCount>"
                f"<availableInstanceCount>{self._free(bought)}</availableInstanceCount>"
                "<state>active</state><startDate>2026-11-01T00:00:00.000Z</startDate>"
                "<endDateType>unlimited</endDateType><reservationType>default</reservationType>"
                "</item>"
            )
        inside = f"<capacityReservationSet>{items}</capacityReservationSet>"
        return ec2_response("DescribeCapacityReservations", inside)

    def _spot_prices(self, call: Call) -> web.Response:
        """A price for each type and zone, and the one before it an hour ago: the history begins
        with the price that held at StartTime.
        """
        filters = _filters(call)
        kinds = call.listed("InstanceType") or filters.get("instance-type") or sorted(PRICES)
        zones = (
            [call.params["AvailabilityZone"]]
            if "AvailabilityZone" in call.params
            else filters.get("availability-zone") or list(aws.ZONES)
        )
        now = datetime.now(UTC).replace(microsecond=0)
        items = ""
        for kind in kinds:
            if not aws.known_type(kind):
                raise AwsError("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
            for index, zone in enumerate(zones):
                for age_h, share in ((0.2, SPOT_SHARE), (3.5, SPOT_SHARE * 1.1)):
                    price = PRICES.get(kind, 1.0) * (share + 0.01 * index)
                    then = (now - timedelta(hours=age_h)).isoformat().replace("+00:00", ".000Z")
                    items += (
                        f"<item><instanceType>{kind}</instanceType>"
                        "<productDescription>Linux/UNIX</productDescription>"
                        f"<spotPrice>{price:.6f}</spotPrice><timestamp>{then}</timestamp>"
                        f"<availabilityZone>{zone}</availabilityZone></item>"
                    )
        return ec2_response(
            "DescribeSpotPriceHistory",
            f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/>",
        )


def offered_in(zone: str) -> set[str]:
    """The instance types of a zone."""
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(aws.REGION, [])
    return {offer["InstanceType"] for offer in offers if offer["Location"] == zone}


def _check_image(ec2: Any, image: str | None) -> None:
    if image is None:
        raise AwsError("MissingParameter", "The request must contain the parameter ImageId")
    if not re.fullmatch(r"ami-[0-9a-f]{8,17}", image) and image not in ec2.amis:
        raise AwsError("InvalidAMIID.Malformed", f'Invalid id: "{image}" (expecting "ami-...")')
    if image not in ec2.amis:
        raise AwsError("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")


def _check_subnet(ec2: Any, params: dict[str, str]) -> str:
    """The zone that is asked for: the subnet's, the placement's, or the first."""
    subnet = params.get("SubnetId") or params.get("NetworkInterface.1.SubnetId")
    placement = params.get("Placement.AvailabilityZone")
    if subnet is None:
        if placement is not None and placement not in aws.ZONES:
            raise AwsError("InvalidParameterValue", f"Invalid availability zone: [{placement}]")
        return placement or aws.ZONES[0]
    zones = {name: by_zone for by_zone, named in ec2.subnets.items() for name in named}
    if subnet not in zones:
        raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
    return str(zones[subnet])


def _check_bid(call: Call, pool: Pool) -> None:
    bid = call.params.get("InstanceMarketOptions.SpotOptions.MaxPrice")
    least = spot_price(pool.type, pool.zone)
    if bid is not None and float(bid) < least:
        raise AwsError(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {bid} is lower than the minimum required Spot request "
            f"fulfillment price of {least:.4f}.",
        )


def spot_price(kind: str, zone: str) -> float:
    """Dollars an hour in this zone now."""
    return PRICES.get(kind, 1.0) * (SPOT_SHARE + 0.01 * aws.ZONES.index(zone))


def _user_data(call: Call) -> bytes:
    try:
        raw = decode_user_data(call.params.get("UserData", ""))
    except (ValueError, OSError) as error:
        raise AwsError(
            "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data."
        ) from error
    if len(call.params.get("UserData", "")) * 3 // 4 > MAX_USER_DATA:
        raise AwsError("InvalidParameterValue", "User data is limited to 16384 bytes")
    return raw


def _for_moto(params: dict[str, str], count: int) -> dict[str, str]:
    """The same request for so many instances; the root volume goes with its instance and has the
    image's size unless that was asked otherwise.
    """
    changed = params | {"MinCount": str(count), "MaxCount": str(count)}
    for key in params:
        mapping = re.match(r"(BlockDeviceMapping\.\d+\.Ebs)\.", key)
        if mapping:
            changed.setdefault(f"{mapping.group(1)}.DeleteOnTermination", "true")
            changed.setdefault(f"{mapping.group(1)}.VolumeSize", "8")
    return changed


def _speed(call: Call) -> tuple[str, str]:
    """IOPS and MiB/s of the first disk that is asked for; those of gp3 otherwise."""
    disk = "BlockDeviceMapping.1.Ebs"
    iops, mib_s = (call.params.get(f"{disk}.{name}", "") for name in ("Iops", "Throughput"))
    return iops or GP3[0], mib_s or GP3[1]


def _with_speeds(body: bytes, speeds: dict[str, tuple[str, str]]) -> bytes:
    """Volumes as fast as they were asked for, which moto does not keep."""
    root = ET.fromstring(body)
    name, of, _ = root.tag.rpartition("}")
    space = name + of  # none in a refusal
    if space:
        ET.register_namespace("", space[1:-1])
    for volume in root.iterfind(f"{space}volumeSet/{space}item"):
        instance = volume.findtext(f".//{space}instanceId", "")
        for name, value in zip(("iops", "throughput"), speeds.get(instance, GP3), strict=True):
            element = volume.find(f"{space}{name}")
            if element is None:
                element = ET.SubElement(volume, f"{space}{name}")
            element.text = value
    return ET.tostring(root, encoding="utf-8")


def _fingerprint(params: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(params.items())).encode()).hexdigest()


def _with_states(reply: bytes, instances: list[Instance]) -> bytes:
    """An earlier answer again, with the states of now."""
    text = reply.decode()
    for instance in instances:
        code, name = instance.made._state.code, instance.made._state.name
        before, found, after = text.partition(f"<instanceId>{instance.id}</instanceId>")
        state = re.compile(r"<instanceState>.*?</instanceState>", re.DOTALL)
        text = before + found + state.sub(_state("instanceState", (code, name)), after, count=1)
    return text.encode()


def _state(tag: str, state: tuple[int, str]) -> str:
    return f"<{tag}><code>{state[0]}</code><name>{state[1]}</name></{tag}>"


def _refuse(call: Call) -> None:
    """Raises AwsError for what is refused whatever there is."""
    if call.action in INSTANCES:
        raise AwsError("UnsupportedOperation", f"The rig does not offer {call.action}")
    if sum(map(len, _filters(call).values())) > MOST_VALUES:
        raise AwsError("FilterLimitExceeded", TOO_MANY.format(most=MOST_VALUES))


def _filters(call: Call) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, name in call.params.items():
        if match := re.fullmatch(r"Filter\.(\d+)\.Name", key):
            found[name] = call.listed(f"Filter.{match.group(1)}.Value")
    return found


def _without_addresses_of_the_gone(body: bytes) -> bytes:
    """A terminated instance has no address, no interface, no subnet and no volume; moto keeps
    them.
    """
    text = body.decode()
    if not any(f"<name>{state}</name>" in text for state in GONE):
        return body
    pieces = re.split(
        r"(?=<item>\s*<(?:amiLaunchIndex|instanceId|architecture)>)|(?=<instanceId>)", text
    )
    return "".join(
        _stripped(piece) if "<name>terminated</name>" in piece else piece for piece in pieces
    ).encode()


def _without_addresses_of(body: bytes, instances: list[str]) -> bytes:
    """What is told of instances that run and have no address yet
    (github.com/aws/aws-parallelcluster-node/issues/692).
    """
    text = body.decode()
    for name in instances:
        before, found, after = text.partition(f"<instanceId>{name}</instanceId>")
        own, next_one, rest = after.partition("<instanceId>i-")
        for tag in ("privateIpAddress", "ipAddress"):
            own = re.sub(rf"<{tag}>.*?</{tag}>", "", own)
        text = before + found + own + next_one + rest
    return text.encode()


def _stripped(item: str) -> str:
    for tag in (
        "privateIpAddress",
        "ipAddress",
        "ipAddress",
        "subnetId",
        "vpcId",
        "networkInterfaceSet",
        "blockDeviceMapping",
    ):
        item = re.sub(rf"<{tag}>.*?</{tag}>|<{tag}\s*/>", "", item, flags=re.DOTALL)
    return item


def _do_not_exist(ids: list[str]) -> str:
    if len(ids) == 1:
        return f"The instance ID '{ids[0]}' does not exist"
    return f"The instance IDs '{', '.join(ids)}' do not exist"


def _xml(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="text/xml")
