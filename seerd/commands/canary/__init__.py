"""`seerd canary`: proves on the user's own account, for some cents, what seerd relies on, and keeps
what it has measured for later plans. What it may cost at most is computed and printed before
anything is rented, and is never above the cap.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from json import dumps
from pathlib import Path

import typer

from seerd.aws import images, prices
from seerd.aws.cloud import Cloud
from seerd.aws.identity import introduce, owner_of
from seerd.aws.images import Image
from seerd.aws.policy import canary_policy
from seerd.backends.ec2.doctor import needs_of
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.uncounted import speed_usd_per_h
from seerd.commands.canary.expedition import CanaryResult, fly
from seerd.commands.canary.launching import SMALL, CanaryPlan
from seerd.commands.canary.outcome import (
    DEAREST,
    LONGEST_GPU_S,
    LONGEST_S,
    CanaryRental,
    CheckOutcome,
    OutcomeLog,
    cap_usd,
    check_cap,
)
from seerd.commands.canary.report import (
    canary_view,
    kept_times,
    names_of,
    report_json,
    write_report,
)
from seerd.commands.canary.terminals import SESSION
from seerd.commands.common import tell, writing
from seerd.commands.giving_back import audible, teller, until_signal
from seerd.commands.options import SpecOptions
from seerd.errors import CloudError, UsageError
from seerd.planning import cloud_times
from seerd.runs.clusters import rented, with_command
from seerd.shell.home import Home
from seerd.spec.spec import Spec
from seerd.telling.working import working
from seerd.units import format_duration

# What costs little and has the memory for an image that was made for larger types, by architecture.
SMALL_TYPES = {"x86_64": "t3.small", "arm64": "t4g.small"}
GPU_TYPE = "g4dn.xlarge"
USUAL_DISK_GB = 100  # GB of a root disk whose size is not in the image


def canary(asked: SpecOptions, home: Home, *, gpu: bool, policy_only: bool, json: bool) -> None:
    """Fly a canary, and print its report; or print the IAM policy that it needs. Raises
    `typer.Exit`, with 1 if a check has failed; `UsageError`, `CloudError` and `CapError` for what
    cannot be begun; and what `fly` raises.
    """
    spec = asked.job()
    if policy_only:
        needs = asyncio.run(needs_of(spec, rented(spec).keys))
        print(dumps(canary_policy(needs, SESSION), indent=2))
        return
    say = teller(sys.stderr if json else sys.stdout)
    with working("looking at the account: types, prices, images, quota"):
        plan = asyncio.run(planned(spec, asked, home, gpu=gpu))
    rented_types = f"{plan.small.instances} {plan.small.type}"
    if plan.gpu is not None:
        rented_types += f" and one {plan.gpu.type} for {format_duration(LONGEST_GPU_S)}"
    cost = f"at most ${plan.most_usd:.3f}, of ${cap_usd(gpu=plan.gpu is not None):.2f}"
    say(
        f"{plan.run}: renting {rented_types} in {plan.cluster.region}. It costs {cost} that it "
        f"ever may; the instances end by themselves after {format_duration(LONGEST_S)}"
    )
    at, names = time.time(), set(names_of(plan))

    def say_outcome(outcome: CheckOutcome) -> None:
        why = "" if outcome.result == "passed" else f": {outcome.said}"
        say(f"{outcome.result:<8} {outcome.check}{why}")

    with tempfile.TemporaryDirectory(prefix="seerd-canary-") as folder:
        result = until_signal(
            lambda: fly(plan, OutcomeLog(say_outcome, say), Path(folder)), say, "everything"
        )
    raise typer.Exit(conclude(plan, result, at, names, say, json=json))


def conclude(
    plan: CanaryPlan,
    result: CanaryResult,
    at: float,
    names: Collection[str],
    say: Callable[[str], None],
    *,
    json: bool,
) -> int:
    """Print the report, keep it, and return the exit status: 1 if a check has failed, or if not all
    could be kept. It was paid for, so a failure here does not keep the rest back. `names`: what the
    report must not have.
    """
    results = report_json(plan, result, at, names)
    kept: dict[str, Path | None] = {}  # the files of times for plans, by type
    for times in kept_times(plan, result, at):
        path = _saved(partial(cloud_times.keep, plan.home.path, times), say)
        kept[times.instance_type] = path
        if path is not None:
            say(f"seerd plan uses the times of {times.instance_type} from now on: {path}")
    results["kept"] = [kind for kind, path in kept.items() if path is not None]
    report = _saved(lambda: write_report(plan.home.path, plan.run, results), say)
    with audible(sys.stdout):
        tell(results, canary_view, json=json)
        sys.stdout.flush()
    if report is not None:
        say(f"for an issue, without accounts, addresses and names: {report}")
    return 1 if results["failed"] or None in (report, *kept.values()) else 0


async def planned(spec: Spec, asked: SpecOptions, home: Home, *, gpu: bool) -> CanaryPlan:
    """Plan what will be rented. Raises `UsageError`, `CloudError`, and `CapError` if it might cost
    too much.
    """
    kind = with_command(spec, "canary")
    kind.check(spec)
    cluster: Ec2Keys = kind.keys
    for folder in (home.path / "clouds", home.path / "canaries"):
        with writing(f"nothing was started: {folder}, where what is found out will be kept,"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"{}")
    async with Cloud(cluster.region) as cloud:
        who = await introduce(cloud)
        if who.error is not None:
            raise who.error
        image = await images.resolve(cloud, cluster.image)
        small_type = SMALL_TYPES.get(image.architecture, SMALL_TYPES["x86_64"])
        small = await _rental(cloud, small_type, len(SMALL), LONGEST_S, image)
        with_gpu = None
        if gpu:
            if image.architecture == "arm64":
                raise UsageError(f"--gpu rents a {GPU_TYPE}, and the image is for arm64")
            with_gpu = await _rental(cloud, GPU_TYPE, 1, LONGEST_GPU_S, image)
            with_gpu = replace(with_gpu, speed_usd_per_h=DEAREST * speed_usd_per_h(cluster))
        region = cloud.region
    rentals = [small, *([with_gpu] if with_gpu else [])]
    return CanaryPlan(
        spec=spec,
        cluster=replace(cluster, region=region, image=image.image),
        asked=asked,
        home=home,
        run=f"canary-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
        owner=owner_of(who.arn),
        arn=who.arn,
        small=small,
        gpu=with_gpu,
        most_usd=check_cap(rentals),
    )


async def _rental(
    cloud: Cloud, kind: str, count: int, longest_s: float, image: Image
) -> CanaryRental:
    """Look up the price. Raises `CloudError` if AWS does not tell it: then there is no cap."""
    try:
        price = await prices.on_demand(cloud, kind)
    except CloudError as error:
        raise CloudError(f"nothing was started: what {kind} costs is unknown: {error}") from error
    disk_gb = sum(gb for _, gb in image.disks) or USUAL_DISK_GB
    bursts = kind in SMALL_TYPES.values()
    return CanaryRental(kind, count, price.usd_per_h, longest_s, disk_gb, bursts)


def _saved(save: Callable[[], Path], say: Callable[[str], None]) -> Path | None:
    """Save something, and return its file; print why if that fails, and go on."""
    try:
        return save()
    except UsageError as error:
        say(str(error))
        return None
