"""The rig's own process: moto, the endpoint in front of it, the machines, and the switches.

The one rule: it lives exactly as long as whoever holds the other end of its standard input, and
takes everything with it. usage: python -m bench.testbed.rig.supervisor FOLDER [fast]   (one JSON
line on standard output when it is ready)
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
from pathlib import Path

from aiohttp import web

from bench.testbed.rig import aws, network
from bench.testbed.rig.cloud import Cloud
from bench.testbed.rig.ec2 import Ec2
from bench.testbed.rig.layer import make_layer
from bench.testbed.rig.machines import Ground, remove_groups
from bench.testbed.rig.proxy import MAX_BODY, Proxy
from bench.testbed.rig.switches import Control, switch

ZONES = 6


async def _run(folder: Path, *, quickly: bool) -> None:
    bridge = network.claim_bridge(ZONES)
    _remove_stale(folder)
    remove_groups(f"rig{bridge.slot}v*")
    try:
        image = folder / "image"
        shown = make_layer(image)
        moto = aws.Moto(bridge.vpc_cidr, bridge.public)
        (folder / "machines").mkdir()
        cloud = Cloud(moto, Ground(bridge, folder / "machines", image, shown))
        keys = {"AKIARIG" + secrets.token_hex(6).upper() + "A": secrets.token_urlsafe(30)}
        rig = Control(cloud, Proxy(moto, Ec2(cloud), keys), bridge, {}, quickly)
        rig.pace()
        await _serve(rig, keys)
    finally:
        bridge.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(mine: Path) -> None:
    """Folders of rigs whose supervisor was killed."""
    (mine / "owner").write_text(network.identity(os.getpid()))
    for folder in mine.parent.glob("seerd-rig-*"):
        with contextlib.suppress(OSError):
            owner = (folder / "owner").read_text()
            if owner and not network.alive(owner):
                shutil.rmtree(folder, ignore_errors=True)


async def _serve(rig: Control, keys: dict[str, str]) -> None:
    app = web.Application(client_max_size=MAX_BODY)
    app["rig"] = rig
    app.router.add_route("*", "/rig/{name}", switch)
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
        "outside": rig.bridge.public(0),
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
            asyncio.run(_run(Path(sys.argv[1]), quickly="fast" in sys.argv[2:]))
        except network.NoRigError as error:
            print(json.dumps({"unavailable": str(error)}), flush=True)
            return 1
    return 0


if __name__ == "__main__":
    # Nothing is left to do, and taking moto's modules apart takes as long as all of the above.
    os._exit(main())
