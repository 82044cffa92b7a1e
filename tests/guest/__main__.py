"""How long a whole system boots on this machine: `python -m tests.guest --boots 3` prints JSON.

Seconds are counted from the moment from which EC2 bills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.testbed.rig import NoRigError, Rig
from bench.testbed.rig.guest import until
from seerd.backends.ec2.provider import Ec2Provider
from tests.guest.kit import BOOT_S, TOKEN, Guests


def boot(rig: Rig, disk: Path, folder: Path) -> dict[str, float]:
    """Boot one, power it off, and return when what was there."""
    rig.reset()
    guest = Guests(rig, rig.add_distribution(disk), folder)
    at: dict[str, float] = {}

    async def scenario(provider: Ec2Provider) -> None:
        launch = asyncio.create_task(provider.launch(TOKEN))
        await asyncio.to_thread(until, guest.power_off_at, BOOT_S)
        at["timer"] = time.time()
        await launch
        at["agent"] = time.time()
        guest.inside("systemctl", "poweroff")
        at["ended"] = (await asyncio.to_thread(until, guest.ended, BOOT_S)).until

    guest.play(scenario)
    since = guest.the_one().since or 0.0
    return {what: when - since for what, when in at.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boots", type=int, default=3)
    boots = parser.parse_args().boots
    disk = Path(os.environ.get("SEERD_GUEST", "build/guest/root")).resolve()
    if not disk.is_dir():
        print(f"there is no {disk}: sudo make guest makes it", file=sys.stderr)
        return 1
    try:
        rig = Rig.start(fast=True)
    except NoRigError as error:
        print(error, file=sys.stderr)
        return 1
    os.environ |= rig.env | {"AWS_CONFIG_FILE": "/dev/null"}
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = "/dev/null"
    found = []
    with rig:
        for _ in range(boots):
            with tempfile.TemporaryDirectory() as folder:
                found.append(boot(rig, disk, Path(folder)))
    seconds = {what: round(statistics.median(one[what] for one in found), 1) for what in found[0]}
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"boots": boots, "median_s": seconds, "cores": os.cpu_count(), "load": load}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
