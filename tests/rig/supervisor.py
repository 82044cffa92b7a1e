"""The rig's own process: moto, the endpoint in front of it, the machines, and the switches.

The one rule: it lives exactly as long as whoever holds the other end of its standard input, and takes everything with it.
usage: python -m tests.rig.supervisor FOLDER   (one JSON line on standard output when it is ready)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.rig import aws, network
from tests.rig.cloud import BY_SPOT, Cloud, Instance, Timing
from tests.rig.ec2 import Ec2, Limits, Pool
from tests.rig.faults import Fault, Faults
from tests.rig.layer import make_layer
from tests.rig.machines import Ground
from tests.rig.proxy import MAX_BODY, Proxy

ZONES = 6


@dataclass(slots=True)
class Supervisor:
    """One rig."""

    cloud: Cloud
    proxy: Proxy
    bridge: network.Bridge
    facts: dict[str, Any]

    def settle(self) -> None:
        """An image, a security group and a bucket, as a person's account has them."""
        ec2 = self.cloud.moto.ec2
        image = ec2.register_image(name="gpu-ubuntu-22.04", description="The rig's image")
        image.root_device_type, image.root_device_name = "ebs", "/dev/sda1"
        group = ec2.create_security_group("seerd-rig", "ssh from the coordinator, everything among instances")
        bucket = f"seerd-rig-{secrets.token_hex(4)}"
        self.cloud.moto.s3.create_bucket(bucket, aws.REGION)
        self.proxy.image = image.id
        self.facts |= {
            "image": image.id,
            "security_group": group.id,
            "bucket": bucket,
            "subnets": self.cloud.moto.subnets(),
            "vpc": ec2.default_vpc.id,
            "image_parameter": aws.IMAGE_PARAMETER,
        }

    async def reset(self) -> dict[str, Any]:
        """A fresh account and no instances; the endpoint and the keys stay."""
        async with self.cloud.lock:
            await self.cloud.clear()
            self.cloud.moto.reset()
            self.cloud.timing = Timing()
            self.cloud.disk_bytes = 8 << 30
            self.cloud.troubles.clear()
            self.proxy.faults = Faults()
            self.proxy.calls.clear()
            self.proxy.ec2.limits = Limits()
            self.proxy.ec2.tokens.clear()
            self.settle()
        return self.facts


Switch = Callable[[Supervisor, dict[str, Any]], Awaitable[Any]]


def _find(rig: Supervisor, given: dict[str, Any]) -> Instance:
    name = given.get("instance", "")
    if name not in rig.cloud.instances:
        raise web.HTTPNotFound(text=f"the rig has no instance {name!r}; it has {sorted(rig.cloud.instances)}")
    return rig.cloud.instances[name]


def _machine(rig: Supervisor, given: dict[str, Any]) -> Any:
    machine = _find(rig, given).machine
    if machine is None or machine.ended.is_set():
        raise web.HTTPConflict(text=f"{given['instance']} is not up")
    return machine


async def _spot_notice(rig: Supervisor, given: dict[str, Any]) -> None:
    await rig.cloud.spot_notice(_find(rig, given), float(given.get("seconds", 120)))


async def _rebalance(rig: Supervisor, given: dict[str, Any]) -> None:
    _find(rig, given).metadata.rebalance_at = time.time()


async def _lose(rig: Supervisor, given: dict[str, Any]) -> None:
    await rig.cloud.end(_find(rig, given), BY_SPOT, silently=True)


async def _vanish(rig: Supervisor, given: dict[str, Any]) -> None:
    await rig.cloud.vanish(_find(rig, given))


async def _partition(rig: Supervisor, given: dict[str, Any]) -> None:
    await _machine(rig, given).partition()


async def _heal(rig: Supervisor, given: dict[str, Any]) -> None:
    await _machine(rig, given).heal()


async def _slow(rig: Supervisor, given: dict[str, Any]) -> None:
    await _machine(rig, given).slow(float(given.get("delay_s", 0.0)), float(given.get("loss", 0.0)))


async def _fill_disk(rig: Supervisor, given: dict[str, Any]) -> None:
    _machine(rig, given).fill_disk(int(given.get("free_bytes", 0)))


async def _gpus(rig: Supervisor, given: dict[str, Any]) -> None:
    machine = _machine(rig, given)
    machine.set_gpus(int(given.get("count", machine.order.hardware.gpus)), given.get("health", "ok"))


async def _timing(rig: Supervisor, given: dict[str, Any]) -> None:
    disk = given.pop("disk_bytes", None)
    if disk is not None:
        rig.cloud.disk_bytes = int(disk)
    rig.cloud.timing = Timing(**(asdict(rig.cloud.timing) | {name: float(value) for name, value in given.items()}))


async def _capacity(rig: Supervisor, given: dict[str, Any]) -> None:
    pool = Pool(given["type"], given["zone"], given.get("market", "on-demand"))
    if given.get("instances") is None:
        rig.proxy.ec2.limits.capacity.pop(pool, None)
    else:
        rig.proxy.ec2.limits.capacity[pool] = int(given["instances"])


async def _quota(rig: Supervisor, given: dict[str, Any]) -> None:
    rig.proxy.ec2.limits.quota[given["family"], given.get("market", "on-demand")] = int(given["vcpus"])


async def _fault(rig: Supervisor, given: dict[str, Any]) -> None:
    if given.get("times") is not None:
        given["times"] = int(given["times"])
    rig.proxy.faults.rules.append(Fault(**(given | {"rate": float(given.get("rate", 1.0))})))


async def _no_faults(rig: Supervisor, given: dict[str, Any]) -> None:
    rig.proxy.faults.rules.clear()


async def _instances(rig: Supervisor, given: dict[str, Any]) -> list[dict[str, Any]]:
    return [_shown(rig, instance) for instance in rig.cloud.live()]


async def _account(rig: Supervisor, given: dict[str, Any]) -> list[dict[str, Any]]:
    return [_shown(rig, instance) for instance in rig.cloud.instances.values()]


async def _calls(rig: Supervisor, given: dict[str, Any]) -> dict[str, int]:
    return dict(rig.proxy.calls)


async def _troubles(rig: Supervisor, given: dict[str, Any]) -> list[str]:
    return rig.cloud.troubles


async def _facts(rig: Supervisor, given: dict[str, Any]) -> dict[str, Any]:
    return rig.facts


async def _reset(rig: Supervisor, given: dict[str, Any]) -> dict[str, Any]:
    return await rig.reset()


def _shown(rig: Supervisor, instance: Instance) -> dict[str, Any]:
    machine = instance.machine
    up = machine is not None and not machine.ended.is_set()
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
    }


SWITCHES: dict[str, Switch] = {
    "spot-notice": _spot_notice,
    "rebalance": _rebalance,
    "lose": _lose,
    "vanish": _vanish,
    "partition": _partition,
    "heal": _heal,
    "slow": _slow,
    "fill-disk": _fill_disk,
    "gpus": _gpus,
    "timing": _timing,
    "capacity": _capacity,
    "quota": _quota,
    "fault": _fault,
    "no-faults": _no_faults,
    "instances": _instances,
    "account": _account,
    "calls": _calls,
    "troubles": _troubles,
    "facts": _facts,
    "reset": _reset,
}


async def _switch(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in SWITCHES:
        raise web.HTTPNotFound(text=f"the rig has no switch {name!r}; it has {', '.join(SWITCHES)}\n")
    body = await request.read()
    given = dict(request.query) | (json.loads(body) if body else {})
    try:
        answer = await SWITCHES[name](request.app["rig"], given)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise web.HTTPBadRequest(text=f"{name}: {error!r}\n") from error
    return web.json_response({"ok": True} if answer is None else answer)


async def _run(folder: Path) -> None:
    bridge = network.claim_bridge(ZONES)
    _remove_stale(folder)
    try:
        image = folder / "image"
        shown = make_layer(image)
        moto = aws.Moto(bridge.vpc_cidr)
        (folder / "machines").mkdir()
        cloud = Cloud(moto, Ground(bridge, folder / "machines", image, shown))
        keys = {"AKIARIG" + secrets.token_hex(6).upper() + "A": secrets.token_urlsafe(30)}
        rig = Supervisor(cloud, Proxy(moto, Ec2(cloud), keys), bridge, {})
        await _serve(rig, keys)
    finally:
        bridge.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(mine: Path) -> None:
    """Folders of rigs whose supervisor was killed."""
    (mine / "owner").write_text(network.identity(os.getpid()))
    for folder in mine.parent.glob("seerd-rig-*"):
        with contextlib.suppress(OSError):
            if not network.alive((folder / "owner").read_text()):
                shutil.rmtree(folder, ignore_errors=True)


async def _serve(rig: Supervisor, keys: dict[str, str]) -> None:
    app = web.Application(client_max_size=MAX_BODY)
    app["rig"] = rig
    app.router.add_route("*", "/rig/{name}", _switch)
    app.router.add_route("*", "/{path:.*}", rig.proxy.answer)
    await rig.proxy.open()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, rig.bridge.address, 0)
    await site.start()
    port = runner.addresses[0][1]
    ((key, secret),) = keys.items()
    rig.facts |= {
        "endpoint": f"http://{rig.bridge.address}:{port}",
        "key": key,
        "secret": secret,
        "region": aws.REGION,
        "bridge": rig.bridge.name,
    }
    rig.settle()
    print(json.dumps(rig.facts), flush=True)
    try:
        await _until_left()
    finally:
        await rig.cloud.clear()
        await rig.proxy.close()
        await runner.cleanup()


async def _until_left() -> None:
    """Until standard input ends: whoever started this is gone, however that happened."""
    left = asyncio.get_running_loop().create_future()

    def look() -> None:
        if not os.read(0, 4096) and not left.done():
            left.set_result(None)

    asyncio.get_running_loop().add_reader(0, look)
    await left


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(_run(Path(sys.argv[1])))
        except network.NoRigError as error:
            print(json.dumps({"unavailable": str(error)}), flush=True)
            return 1
    return 0


if __name__ == "__main__":
    # Nothing is left to do, and taking moto's modules apart takes as long as all of the above.
    os._exit(main())
