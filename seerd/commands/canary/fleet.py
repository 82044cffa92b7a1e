"""The instances of a canary: what those of one type have in common, and how all is given back.

The one rule: however a canary goes, every instance is ended before anything else is told. If this
process ends first, each powers itself off minutes later, and `seerd sweep` finds it by its tags.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seerd.aws.errors import AwsError
from seerd.backends.backend import GRACE_S, PYTHON
from seerd.backends.base import Leftovers
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import settings_of
from seerd.backends.ec2.provider import Ec2Provider, Ec2Settings
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.clock import wall
from seerd.commands.canary import storage
from seerd.commands.canary.endings import Post
from seerd.commands.canary.launching import Watched, WatchedCloud, WatchedDoor
from seerd.commands.canary.outcome import LONGEST_S, CanaryRental, CheckOutcome, OutcomeLog
from seerd.commands.options import SpecOptions
from seerd.errors import SeerdError
from seerd.shell.home import Home
from seerd.spec.spec import Spec
from seerd.telling.summary import nothing_left

PROVED, LEASE, REBOOT, GPU = "proved", "lease", "reboot", "gpu"
"""The launches: what is looked at and terminated, what is left alone, what is rebooted, and what
has a GPU.
"""
SMALL = (PROVED, LEASE, REBOOT)
BOOT_S = 300.0
"""The most seconds from running until an agent has to answer."""


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """A canary that may fly."""

    spec: Spec
    cluster: Ec2Keys  # the spec's cluster
    asked: SpecOptions  # how the spec was named, and what is changed in it
    home: Home  # the folder of all runs
    run: str  # the tag of its instances
    owner: str  # who pays
    arn: str  # whose the credentials are
    small: CanaryRental  # the small instances
    gpu: CanaryRental | None  # the one with a GPU; None: there is none
    most_usd: float  # the most USD that all may cost


class CanaryFleet:
    """Instances of one type, with all that is needed to launch, reach and end them."""

    def __init__(
        self,
        plan: CanaryPlan,
        rental: CanaryRental,
        tokens: tuple[str, ...],
        hard_end: float,
        folder: Path,
    ) -> None:
        self.rental, self.tokens, self.hard_end = rental, tokens, hard_end
        self.run = f"{plan.run}-{tokens[0]}"
        source, zip_ = folder / "source", folder / "agent.pyz"
        source.mkdir(parents=True)
        build_agent(zip_)
        self.zip = hashlib.sha256(zip_.read_bytes()).hexdigest()
        gpu = tokens == (GPU,)
        options = AgentOptions(
            run=self.run,
            gpus=1,
            cuda=gpu,
            lease_s=LONGEST_S,
            grace_s=GRACE_S,
            power_off=True,
            spot=False,
            python=PYTHON,
        )
        self.cloud = WatchedCloud(plan.cluster.region, plan.cluster.address)
        self.door = WatchedDoor(Remote(Bundle(zip_, source), options), self.cloud)
        settings = _settings(plan, self.run, rental, hard_end, folder / "keys", gpu=gpu)
        self.provider = Ec2Provider(settings, self.door, self.cloud)
        self.post = Post(self.run, self.cloud, self.door, self.provider)
        self.shelf: storage.Shelf | None = None  # in which something may lie

    async def launch(self, token: str) -> Watched:
        """Launch an instance. Raises `LaunchError`, after it was given back."""
        await self.provider.launch(token, LONGEST_S)
        return self.cloud.launch(token)

    def usd(self) -> float:
        """About how many USD its instances cost."""
        now = wall()
        seconds = sum(one.moments.billed_s(now) for one in self.cloud.launches.values())
        return seconds / 3600 * self.rental.usd_per_h


def _settings(
    plan: CanaryPlan, run: str, rental: CanaryRental, hard_end: float, keys: Path, *, gpu: bool
) -> Ec2Settings:
    return settings_of(
        plan.cluster,
        run=run,
        name=plan.spec.name,
        owner=plan.owner,
        gpus=1,
        keys=keys,
        hard_end=hard_end,
        instance_types=(rental.type,),
        market="on-demand",
        boot_s=min(BOOT_S, plan.cluster.boot_s),
        key=None,
        volume_gb=None,
        throughput=None,
        load_rate=None,
        python=python_of(plan.spec) if gpu else "",
    )


def python_of(spec: Spec) -> str:
    """Return the interpreter that trains."""
    return spec.train.python or PYTHON


def tell_refusal(log: OutcomeLog, error: AwsError) -> None:
    """Tell at once that instances may be left. This is no check, and not of the report."""
    log.tell(CheckOutcome("giving back", "unknown", f"EC2 refuses: {error}"))


async def given_back(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> str:
    """End everything, and say whether anything is left."""
    ends = [one.provider.terminate(token) for one in fleets for token in one.tokens]
    left = [one.provider.leftovers() for one in fleets]
    complaint = asyncio.create_task(_complaint(fleets, log))
    # What could not be ended is asked for again by `leftovers`, and is named there.
    await asyncio.gather(*ends, return_exceptions=True)
    complaint.cancel()
    found = await asyncio.gather(*left, return_exceptions=True)
    stored = [line for one in fleets for line in await _emptied(one)]
    costing = [line for one, of in zip(found, fleets, strict=True) for line in _costing(one, of)]
    costing += stored
    if not costing:
        text = nothing_left(
            [line for one in found if isinstance(one, Leftovers) for line in one.ending]
        )
        log.add(CheckOutcome("nothing left", "passed", text))
        return text
    lines = "\n".join(costing)
    by = "instances power themselves off within minutes, and `seerd sweep` shows them"
    text = f"something is left that may cost; {by}:\n{lines}"
    log.add(CheckOutcome("nothing left", "failed", text))
    return text


async def _complaint(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> None:
    """Tell once why nothing can be given back, as soon as EC2 says so."""
    while True:
        await asyncio.sleep(1.0)
        for error in filter(None, (one.cloud.refuses_ends() for one in fleets)):
            return tell_refusal(log, error)


async def _emptied(fleet: CanaryFleet) -> list[str]:
    """Take out of the bucket what is left there, and return what cannot be."""
    if fleet.shelf is None:
        return []
    try:
        await storage.clean(fleet.shelf)
    except Exception as error:  # noqa: BLE001
        return [f"objects may be left in {fleet.shelf.address}/{fleet.run}: {why_of(error)}"]
    return []


def _costing(found: Leftovers | BaseException, fleet: CanaryFleet) -> list[str]:
    """List what is left that costs; if EC2 does not tell, what is known to have run."""
    if isinstance(found, Leftovers):
        return found.costing
    if not isinstance(found, Exception):
        raise found
    end = time.strftime("%H:%M:%S", time.localtime(fleet.hard_end))
    known = [
        f"instance {one} ({fleet.rental.type}) may still run, and powers itself off by {end}"
        for one in fleet.cloud.running()
    ]
    return [why_of(found), *known]


def why_of(error: Exception) -> str:
    """Say what went wrong."""
    return str(error) if isinstance(error, SeerdError) else f"{type(error).__name__}: {error}"
