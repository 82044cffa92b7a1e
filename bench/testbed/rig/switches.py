"""The switches of a rig, by hand and in tests: what goes wrong, what is asked, and the way back to
an empty account.

The one rule: a switch does one thing and says at once whether it could.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.testbed.rig import aws, network
from bench.testbed.rig.buckets import Buckets
from bench.testbed.rig.cloud import BY_SPOT, Cloud, Instance
from bench.testbed.rig.ec2 import DISK_KEY, Bought, Limits, Pool
from bench.testbed.rig.faults import Fault, Faults
from bench.testbed.rig.proxy import Proxy
from bench.testbed.rig.timing import Timing, fast


@dataclass(slots=True)
class Control:
    """One rig."""

    cloud: Cloud
    proxy: Proxy
    bridge: network.Bridge
    facts: dict[str, Any]
    quickly: bool = False

    def settle(self, *, bare: bool = False) -> None:
        """An image, a security group, the ways to the internet and to S3, and a bucket, as a
        person's account has them; `bare`: the image, and the way to the internet.
        """
        ec2 = self.cloud.moto.ec2
        other = ec2.register_image(name="arm-ubuntu-22.04")
        other.architecture = "arm64"
        image = ec2.register_image(name="gpu-ubuntu-22.04", description="The rig's image")
        for made in (other, image):
            made.root_device_type, made.root_device_name = "ebs", "/dev/sda1"
        vpc = ec2.default_vpc.id
        (main,) = (
            table
            for table in ec2.route_tables.values()
            if table.vpc_id == vpc and table.main_association_id
        )
        gateway = ec2.create_internet_gateway()
        ec2.attach_internet_gateway(gateway.id, vpc)
        ec2.create_route(main.id, "0.0.0.0/0", gateway_id=gateway.id)
        self.proxy.image = image.id
        self.facts |= {
            "image": image.id,
            "subnets": self.cloud.moto.subnets(),
            "vpc": ec2.default_vpc.id,
            "image_parameter": aws.IMAGE_PARAMETER,
        }
        if bare:
            self.facts |= {"security_group": "", "bucket": ""}
            self.proxy.ec2.limits.quota |= {
                (family, market): 0 for family in "PG" for market in ("on-demand", "spot")
            }
        else:
            self._furnish(main.id)

    def _furnish(self, table: str) -> None:
        """What a person makes before the first run. `table`: the network's main route table."""
        ec2 = self.cloud.moto.ec2
        group = ec2.create_security_group(
            "seerd-rig", "ssh from the coordinator, everything among instances"
        )
        ec2.authorize_security_group_ingress(
            group.id, "tcp", "22", "22", [{"CidrIp": ec2.default_vpc.cidr_block}]
        )
        ec2.authorize_security_group_ingress(
            group.id, "-1", None, None, [], source_groups=[{"GroupId": group.id}]
        )
        to_s3 = f"com.amazonaws.{aws.REGION}.s3"
        ec2.create_vpc_endpoint(ec2.default_vpc.id, to_s3, "Gateway", None, route_table_ids=[table])
        bucket = f"seerd-rig-{secrets.token_hex(4)}"
        self.cloud.moto.s3.create_bucket(bucket, aws.REGION)
        self.facts |= {"security_group": group.id, "bucket": bucket}

    def pace(self) -> None:
        """As EC2 is, with its limits and a session of a role that is new for whoever asks; or as
        fast as it goes, for one user who may ask as often as they like.
        """
        self.cloud.timing = fast() if self.quickly else Timing()
        self.proxy.buckets = None if self.quickly else Buckets()
        self.proxy.sessions.role = "" if self.quickly else "seerd"

    async def reset(self, quickly: bool, *, bare: bool) -> dict[str, Any]:
        """A fresh account and no instances; the endpoint and the keys stay."""
        self.quickly = quickly
        async with self.cloud.lock:
            await self.cloud.clear()
            self.cloud.moto.reset()
            self.pace()
            self.cloud.disk_bytes = 8 << 30
            self.cloud.without_tokens = False
            self.cloud.troubles.clear()
            self.proxy.faults = Faults()
            self.proxy.calls.clear()
            self.proxy.sessions.clear()
            self.proxy.judge.wrong.clear()
            self.proxy.ec2.limits = Limits()
            self.proxy.ec2.tokens.clear()
            self.proxy.ec2.disk_key = DISK_KEY
            self.settle(bare=bare)
        return self.facts


YES = {True, "1", "true"}
Switch = Callable[[Control, dict[str, Any]], Awaitable[Any]]


def _find(rig: Control, given: dict[str, Any]) -> Instance:
    name = given.get("instance", "")
    if name not in rig.cloud.instances:
        raise web.HTTPNotFound(
            text=f"the rig has no instance {name!r}; it has {sorted(rig.cloud.instances)}"
        )
    return rig.cloud.instances[name]


def _machine(rig: Control, given: dict[str, Any]) -> Any:
    machine = _find(rig, given).machine
    if machine is None or machine.clearing is not None:
        raise web.HTTPConflict(text=f"{given['instance']} is not up")
    return machine


async def _spot_notice(rig: Control, given: dict[str, Any]) -> None:
    await rig.cloud.spot_notice(_find(rig, given), float(given.get("seconds", 120)))


async def _rebalance(rig: Control, given: dict[str, Any]) -> None:
    _find(rig, given).metadata.rebalance_at = time.time()


async def _maintain(rig: Control, given: dict[str, Any]) -> None:
    seconds = given["seconds"]
    at = None if seconds is None else time.time() + float(seconds)
    _find(rig, given).metadata.maintenance_at = at


async def _lose(rig: Control, given: dict[str, Any]) -> None:
    await rig.cloud.end(_find(rig, given), BY_SPOT, silently=True)


async def _vanish(rig: Control, given: dict[str, Any]) -> None:
    await rig.cloud.vanish(_find(rig, given))


async def _partition(rig: Control, given: dict[str, Any]) -> None:
    await _machine(rig, given).partition()


async def _heal(rig: Control, given: dict[str, Any]) -> None:
    await _machine(rig, given).heal()


async def _slow(rig: Control, given: dict[str, Any]) -> None:
    await _machine(rig, given).slow(float(given.get("delay_s", 0.0)), float(given.get("loss", 0.0)))


async def _press_reset(rig: Control, given: dict[str, Any]) -> None:
    _machine(rig, given).reset()


async def _console(rig: Control, given: dict[str, Any]) -> str:
    return rig.cloud.console(_find(rig, given))


async def _distribution(rig: Control, given: dict[str, Any]) -> str:
    return rig.cloud.add_distribution(tuple(Path(layer) for layer in given["layers"].split(":")))


async def _layer(rig: Control, given: dict[str, Any]) -> str:
    return rig.cloud.add_layer(Path(given["layer"]))


async def _end_session(rig: Control, given: dict[str, Any]) -> None:
    rig.proxy.sessions.ended.add(str(given["key"]))


async def _without_tokens(rig: Control, given: dict[str, Any]) -> None:
    rig.cloud.without_tokens = True


async def _fill_disk(rig: Control, given: dict[str, Any]) -> None:
    _machine(rig, given).fill_disk(int(given.get("free_bytes", 0)))


async def _mount_disk(rig: Control, given: dict[str, Any]) -> None:
    _machine(rig, given).mount_disk(str(given["folder"]), int(given["size_bytes"]))


async def _gpus(rig: Control, given: dict[str, Any]) -> None:
    machine = _machine(rig, given)
    machine.set_gpus(
        int(given.get("count", machine.order.hardware.gpus)), given.get("health", "ok")
    )


async def _hold_memory(rig: Control, given: dict[str, Any]) -> None:
    pid = given.get("pid")
    _machine(rig, given).hold_memory(
        int(given.get("gpu", 0)), int(given.get("mib", 0)), None if pid is None else int(pid)
    )


async def _timing(rig: Control, given: dict[str, Any]) -> None:
    disk = given.pop("disk_bytes", None)
    if disk is not None:
        rig.cloud.disk_bytes = int(disk)
    rig.cloud.timing = Timing(
        **(asdict(rig.cloud.timing) | {name: float(value) for name, value in given.items()})
    )


async def _capacity(rig: Control, given: dict[str, Any]) -> None:
    pool = Pool(given["type"], given["zone"], given.get("market", "on-demand"))
    if given.get("instances") is None:
        rig.proxy.ec2.limits.capacity.pop(pool, None)
    else:
        rig.proxy.ec2.limits.capacity[pool] = int(given["instances"])


async def _buy(rig: Control, given: dict[str, Any]) -> str:
    name, pool = f"cr-0{secrets.token_hex(8)}", Pool(given["type"], given["zone"], "on-demand")
    rig.proxy.ec2.limits.bought[name] = Bought(pool, int(given["instances"]))
    return name


async def _quota(rig: Control, given: dict[str, Any]) -> None:
    rig.proxy.ec2.limits.quota[given["family"], given.get("market", "on-demand")] = int(
        given["vcpus"]
    )


async def _buckets(rig: Control, given: dict[str, Any]) -> None:
    rig.proxy.buckets = Buckets()


async def _throttled(rig: Control, given: dict[str, Any]) -> dict[str, int]:
    return {} if rig.proxy.buckets is None else rig.proxy.buckets.throttled


async def _fault(rig: Control, given: dict[str, Any]) -> None:
    if given.get("times") is not None:
        given["times"] = int(given["times"])
    rig.proxy.faults.rules.append(Fault(**(given | {"rate": float(given.get("rate", 1.0))})))


async def _no_faults(rig: Control, given: dict[str, Any]) -> None:
    rig.proxy.faults.rules.clear()


async def _instances(rig: Control, given: dict[str, Any]) -> list[dict[str, Any]]:
    return [_shown(rig, instance) for instance in rig.cloud.live()]


async def _account(rig: Control, given: dict[str, Any]) -> list[dict[str, Any]]:
    return [_shown(rig, instance) for instance in rig.cloud.instances.values()]


async def _calls(rig: Control, given: dict[str, Any]) -> dict[str, int]:
    return dict(rig.proxy.calls)


async def _troubles(rig: Control, given: dict[str, Any]) -> list[str]:
    return rig.cloud.troubles + rig.proxy.judge.wrong


async def _facts(rig: Control, given: dict[str, Any]) -> dict[str, Any]:
    return rig.facts


async def _reset(rig: Control, given: dict[str, Any]) -> dict[str, Any]:
    asked, bare = given.get("fast"), given.get("bare") in YES
    return await rig.reset(rig.quickly if asked is None else asked in YES, bare=bare)


def _shown(rig: Control, instance: Instance) -> dict[str, Any]:
    machine = instance.machine
    up = machine is not None and machine.clearing is None
    return {
        "id": instance.id,
        "type": instance.type,
        "zone": instance.zone,
        "address": instance.address,
        "market": instance.market,
        "token": instance.token,
        "state": rig.cloud.state(instance.id),
        "launched": instance.launched,
        "since": instance.since,
        "until": instance.until,
        "reason": instance.reason,
        "gpus": instance.order.hardware.gpus,
        "pid": machine.pid if machine is not None and up else None,
        "folder": str(rig.cloud.ground.folder / instance.id),
        "public": instance.order.public or "",
    }


SWITCHES: dict[str, Switch] = {
    "spot-notice": _spot_notice,
    "rebalance": _rebalance,
    "maintain": _maintain,
    "lose": _lose,
    "vanish": _vanish,
    "partition": _partition,
    "heal": _heal,
    "slow": _slow,
    "press-reset": _press_reset,
    "console": _console,
    "distribution": _distribution,
    "layer": _layer,
    "without-tokens": _without_tokens,
    "end-session": _end_session,
    "fill-disk": _fill_disk,
    "mount-disk": _mount_disk,
    "gpus": _gpus,
    "hold-memory": _hold_memory,
    "timing": _timing,
    "capacity": _capacity,
    "buy": _buy,
    "quota": _quota,
    "buckets": _buckets,
    "throttled": _throttled,
    "fault": _fault,
    "no-faults": _no_faults,
    "instances": _instances,
    "account": _account,
    "calls": _calls,
    "troubles": _troubles,
    "facts": _facts,
    "reset": _reset,
}


async def switch(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in SWITCHES:
        raise web.HTTPNotFound(
            text=f"the rig has no switch {name!r}; it has {', '.join(SWITCHES)}\n"
        )
    body = await request.read()
    given = dict(request.query) | (json.loads(body) if body else {})
    try:
        answer = await SWITCHES[name](request.app["rig"], given)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise web.HTTPBadRequest(text=f"{name}: {error!r}\n") from error
    return web.json_response({"ok": True} if answer is None else answer)
