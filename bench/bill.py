"""The ledger of runs beside the rig's bill: two instance types, spot with on-demand ones behind it,
and a spot instance that is taken away. Prints JSON. Takes root, as the rig does.

`python bench/bill.py [--minutes 1.5 3.5]` makes a run of so many minutes each. `more` is how much
the ledger is above the bill, in money and in GPU time (`must`: from 0 to 0.01). `early_s` is how
much sooner the ledger has an instance begin than the rig, `late_s` how much later it has it end:
that does not depend on how long it runs, so its share of the bill of a longer run is smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.eight import events
from bench.testbed.ec2_world import FOUR_GPUS, Coordinator, Job
from bench.testbed.rig import Rig, RigInstance
from bench.testbed.rig.ec2 import spot_price
from bench.testbed.rig.prices import PRICES

OTHER = "p3.8xlarge"
LEAST_S = 60.0
WITHIN_S = 120.0
MUST = (0.0, 0.01)


def begin(coordinator: Coordinator, minutes: float) -> None:
    """Write a spec that gets one spot instance, one on-demand one, and then those of a dearer
    type.
    """
    rig = coordinator.rig
    for number, zone in enumerate(rig.subnets):
        rig.set_capacity(FOUR_GPUS, zone, 0 if number else 1, "spot")
        rig.set_capacity(FOUR_GPUS, zone, 0 if number else 1)
        rig.set_capacity(OTHER, zone, 0, "spot")
    policy = 'name = "random"\ntrials = 3\np_min = 4\np_max = 4'
    limits, deadline_s = "max_gpus = 12", round(60 * minutes)
    job = Job(f"{deadline_s}s", f"{round(20 * minutes)}gpu-min", policy=policy, limits=limits)
    coordinator.write(job)
    text = coordinator.spec.read_text().replace(f'"{FOUR_GPUS}"', json.dumps([FOUR_GPUS, OTHER]))
    text = text.replace('market = "on-demand"', 'market = ["spot", "on-demand"]')
    coordinator.spec.write_text(text)


def usd(instance: RigInstance, seconds: float) -> float:
    """What so many seconds of an instance cost."""
    price = PRICES[instance.type]
    if instance.market == "spot":
        price = spot_price(instance.type, instance.zone)
    return price * max(LEAST_S, seconds) / 3600


def compared(coordinator: Coordinator) -> dict[str, Any]:
    """Compare a run that is over with what the rig has counted."""
    account, origin = coordinator.rig.account(), events(coordinator)[1]
    ledger = coordinator.json("ledger", "last")
    charges = {charge["instance"]: charge for charge in ledger["charges"]}
    early_s, late_s, bill, gpu_s = [], [], 0.0, 0.0
    for name, instance in account.items():
        if instance.since is None or instance.until is None:
            continue
        ran_s = instance.until - instance.since
        bill += usd(instance, ran_s)
        gpu_s += instance.gpus * max(LEAST_S, ran_s)
        early_s.append(round(instance.since - origin - charges[name]["since_s"], 3))
        late_s.append(round(origin + charges[name]["until_s"] - instance.until, 3))
    return {
        "instances": sorted(f"{i.type} {i.market}" for i in account.values()),
        "bill_usd": round(bill, 4),
        "ledger_usd": ledger["spent_usd"],
        "more": {
            "usd": round(ledger["spent_usd"] / bill - 1, 4),
            "gpu_min": round(ledger["spent_gpu_min"] * 60 / gpu_s - 1, 4),
        },
        "early_s": sorted(early_s),
        "late_s": sorted(late_s),
    }


def main() -> None:
    """Print what came of each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.5, 3.5])
    rows = []
    for minutes in parser.parse_args().minutes:
        with (
            Rig.start(fast=True) as rig,
            tempfile.TemporaryDirectory() as folder,
            Coordinator(rig, Path(folder)) as coordinator,
        ):
            rig.set_boot(pending_s=1.0, boot_s=0.5)
            begin(coordinator, minutes)
            run = coordinator.start("run", str(coordinator.spec), "--plain")
            coordinator.says(": ready with ", times=3, within_s=WITHIN_S)
            coordinator.trained(reports=6, within_s=WITHIN_S)
            (taken,) = [one for one in rig.instances() if one.market == "spot"]
            rig.spot_notice(taken.id, 10.0)
            coordinator.ends(run, 0, 60 * minutes + WITHIN_S)
            rows.append({"minutes": minutes} | compared(coordinator))
    print(json.dumps({"must": MUST, "load": os.getloadavg()[0], "runs": rows}, indent=1))


if __name__ == "__main__":
    main()
