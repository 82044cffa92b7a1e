"""The instances of a canary. If this process is killed, each powers itself off minutes later, and
`seerd sweep` finds it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from seerd.backends.backend import GRACE_S, PYTHON
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import settings_of
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ssh.remote import AgentOptions, Bundle
from seerd.clock import wall
from seerd.commands.canary.launching import WatchedCloud, WatchedDoor
from seerd.commands.canary.outcome import LONGEST_S, CanaryRental, WatchedLaunch
from seerd.commands.options import SpecOptions
from seerd.shell.home import Home
from seerd.spec.spec import Spec

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
        self.cluster, self.folder = plan.cluster, folder
        self.run = f"{plan.run}-{tokens[0]}"
        self.has_objects = False  # whether something of it may lie in the bucket
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
        self.door = WatchedDoor(Bundle(zip_, source), options, self.cloud)
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

    async def launch(self, token: str) -> WatchedLaunch:
        """Launch an instance. Raises `LaunchError`, after it was given back."""
        await self.provider.launch(token, LONGEST_S)
        return self.cloud.launches[token]

    async def run_program(self, token: str, program: str, for_s: float = 60.0) -> str:
        """Run a Python program on an instance, and return what it prints. Raises `ProviderError` as
        `WatchedDoor.run` does.
        """
        instance = self.cloud.launches[token].instance
        return await self.door.run(instance, f"{PYTHON} -I -", program, for_s)

    def usd(self) -> float:
        """Return about how many USD its instances cost."""
        now = wall()
        seconds = sum(launch.billed_s(now) for launch in self.cloud.launches.values())
        return seconds / 3600 * self.rental.usd_per_h


def python_of(spec: Spec) -> str:
    """Return the interpreter that trains."""
    return spec.train.python or PYTHON
