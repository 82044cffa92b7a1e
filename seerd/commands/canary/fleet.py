"""The instances of a canary, and how all is given back. Every instance is ended before anything
else is printed. If this process is killed, each powers itself off minutes later, and `seerd sweep`
finds it.
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
from seerd.backends.ec2.provider import Ec2Provider
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

# the launches: checked and terminated, left alone, rebooted, with a GPU
PROVED, LEASE, REBOOT, GPU = "proved", "lease", "reboot", "gpu"
SMALL = (PROVED, LEASE, REBOOT)
BOOT_S = 300.0  # the most seconds from running until an agent has to answer


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
        settings = settings_of(
            plan.cluster,
            run=self.run,
            name=plan.spec.name,
            owner=plan.owner,
            gpus=1,
            keys=folder / "keys",
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
        self.provider = Ec2Provider(settings, self.door, self.cloud)
        self.post = Post(self.run, self.cloud, self.door, self.provider)
        self.shelf: storage.Shelf | None = None  # in which something may lie

    async def launch(self, token: str) -> Watched:
        """Launch an instance. Raises `LaunchError`, after it was given back."""
        await self.provider.launch(token, LONGEST_S)
        return self.cloud.launch(token)

    def usd(self) -> float:
        """Return about how many USD its instances cost."""
        now = wall()
        seconds = sum(one.moments.billed_s(now) for one in self.cloud.launches.values())
        return seconds / 3600 * self.rental.usd_per_h


def python_of(spec: Spec) -> str:
    """Return the interpreter that trains."""
    return spec.train.python or PYTHON


def tell_refusal(log: OutcomeLog, error: AwsError) -> None:
    """Print at once that instances may be left. This is no check, and not in the report."""
    log.tell(CheckOutcome("giving back", "unknown", f"EC2 refuses: {error}"))


async def given_back(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> str:
    """End everything, and return a line on what is left."""
    ends = [one.provider.terminate(token) for one in fleets for token in one.tokens]
    left = [one.provider.leftovers() for one in fleets]
    complaint = asyncio.create_task(_complaint(fleets, log))
    # What could not be ended is asked for again by `leftovers`, and is named there.
    await asyncio.gather(*ends, return_exceptions=True)
    complaint.cancel()
    answers = await asyncio.gather(*left, return_exceptions=True)
    stored = [line for one in fleets for line in await _emptied(one)]
    costing = [line for one, of in zip(answers, fleets, strict=True) for line in _costing(one, of)]
    costing += stored
    if costing:
        by = "instances power themselves off within minutes, and `seerd sweep` shows them"
        text = "\n".join([f"something is left that may cost; {by}:", *costing])
        log.add(CheckOutcome("nothing left", "failed", text))
    else:
        ending = [line for one in answers if isinstance(one, Leftovers) for line in one.ending]
        text = nothing_left(ending)
        log.add(CheckOutcome("nothing left", "passed", text))
    return text


async def _complaint(fleets: Sequence[CanaryFleet], log: OutcomeLog) -> None:
    """Print once why nothing can be given back, as soon as EC2 says so."""
    while True:
        await asyncio.sleep(1.0)
        for error in filter(None, (one.cloud.refuses_ends() for one in fleets)):
            return tell_refusal(log, error)


async def _emptied(fleet: CanaryFleet) -> list[str]:
    """Remove the canary's objects from the bucket; return a line on what cannot be removed."""
    if fleet.shelf is None:
        return []
    try:
        await storage.clean(fleet.shelf)
    except Exception as error:  # noqa: BLE001
        return [f"objects may be left in {fleet.shelf.address}/{fleet.run}: {why_of(error)}"]
    return []


def _costing(answer: Leftovers | BaseException, fleet: CanaryFleet) -> list[str]:
    """List what is left that costs; if EC2 does not answer, what has run."""
    if isinstance(answer, Leftovers):
        return answer.costing
    if not isinstance(answer, Exception):
        raise answer
    end = time.strftime("%H:%M:%S", time.localtime(fleet.hard_end))
    running = [
        f"instance {one} ({fleet.rental.type}) may still run, and powers itself off by {end}"
        for one in fleet.cloud.running()
    ]
    return [why_of(answer), *running]


def why_of(error: Exception) -> str:
    """Return what went wrong."""
    return str(error) if isinstance(error, SeerdError) else f"{type(error).__name__}: {error}"
