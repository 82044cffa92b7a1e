"""What the tests of whole systems share: the real provider, what is on a disk beside the
distribution, and a look inside.

The one rule: an instance gets its user data from a real launch and nothing else. A test that wants
nobody to care for it has its coordinator go away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.testbed.rig import Rig, RigInstance
from bench.testbed.rig.guest import until
from bench.testbed.rig.machines import CGROUPS
from seerd.aws.keys import Keys
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.provider import Ec2Provider, Ec2Settings
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.errors import LaunchError

BOOT_S = 150.0
"""The most seconds that a boot may take; beside much else on two cores it takes half a minute."""
INSIDE_S = 10.0
TOKEN = "1.0"
TIMER = "seerd-hard-end.timer"
WATCHDOG = "seerd-deserted.service"
BY_ITSELF = "Client.InstanceInitiatedShutdown"

HANGS = """\
[Unit]
Description=A unit of the image that never comes up
[Service]
Type=oneshot
ExecStart=/bin/sleep infinity
"""


@dataclass(frozen=True, slots=True)
class Guests:
    """A rig with an image of a whole system, and what a coordinator has for it.

    folder    the coordinator's: keys, the agent
    hard_end  of the instances, seconds since 1970
    lease_s   of their agents
    """

    rig: Rig
    image: str
    folder: Path
    hard_end: float = field(default_factory=lambda: time.time() + 3600)
    lease_s: float = 60.0

    def play(self, scenario: Callable[[Ec2Provider], Awaitable[None]]) -> None:
        """Have a coordinator do this. If it fails, what the instances have printed is shown."""
        try:
            asyncio.run(self._played(scenario))
        except BaseException:
            for name in self.rig.account():
                print(f"--- console of {name}\n{self.rig.console(name)}")
            raise

    async def _played(self, scenario: Callable[[Ec2Provider], Awaitable[None]]) -> None:
        provider = Ec2Provider(self._settings(), self._remote())
        try:
            await provider.open()
            await scenario(provider)
        finally:
            await provider.close()

    def leave_alone(self, orphan_timeout_s: float | None = None) -> str:
        """Have a coordinator launch an instance and go away; the instance."""

        async def scenario(provider: Ec2Provider) -> None:
            launch = asyncio.create_task(provider.launch(TOKEN, orphan_timeout_s))
            await asyncio.to_thread(until, self.rig.instances)
            await provider.close()
            await asyncio.gather(launch, return_exceptions=True)

        self.play(scenario)
        (one,) = self.rig.instances()
        return one.id

    def _settings(self) -> Ec2Settings:
        return Ec2Settings(
            run="2026-11-20-guest",
            name="digits",
            owner="arn:aws:iam::123456789012:user/me",
            region="us-east-1",
            instance_types=("p3.8xlarge",),
            gpus=4,
            image=self.image,
            subnets=(self.rig.subnets["us-east-1a"],),
            security_groups=(self.rig.security_group,),
            hard_end=self.hard_end,
            boot_s=BOOT_S,
            keys=self.folder / "keys",
        )

    def _remote(self) -> Remote:
        bundle, source = self.folder / "agent.pyz", self.folder / "source"
        if not bundle.exists():
            build_agent(bundle)
            source.mkdir()
            (source / "train.py").write_text("pass\n")
        options = AgentOptions(
            run="2026-11-20-guest",
            gpus=4,
            cuda=False,
            lease_s=self.lease_s,
            grace_s=2.0,
            power_off=True,
            spot=False,
            python="python3",
        )
        return Remote(Bundle(bundle, source), options)

    def host_key(self) -> str:
        """The public key that the instance was given."""
        return Keys(self.folder / "keys").host(TOKEN).public

    # What is seen from outside.

    def the_one(self) -> RigInstance:
        """The only instance there has been."""
        (one,) = self.rig.account().values()
        return one

    def ended(self) -> RigInstance | None:
        """The only instance, once it is billed no more."""
        one = self.the_one()
        return None if one.until is None else one

    def inside(self, *words: str) -> str:
        """What a command prints that root runs there; empty where nothing has booted or all ends.

        A system that shuts down stops every process before it kills it, and nsenter, which does as
        its child, would stay stopped.
        """
        pid = self.the_one().pid
        if pid is None:
            return ""
        enter = ("nsenter", "--target", str(pid), "--all", "--wd=/", "--", *words)
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                enter, capture_output=True, text=True, timeout=INSIDE_S, check=False
            )
            return done.stdout.strip()
        return ""

    def has(self, path: str) -> bool:
        """Whether this is on its disk."""
        return Path(f"/proc/{self.the_one().pid}/root{path}").exists()

    def power_off_at(self) -> float | None:
        """When its timer powers it off, seconds since 1970; None while there is no timer."""
        with contextlib.suppress(ValueError):
            for timer in json.loads(
                self.inside("systemctl", "list-timers", TIMER, "--output=json")
            ):
                return int(timer["next"]) / 1e6
        return None

    def watched(self) -> bool:
        """Whether the watchdog runs that ends it without an agent."""
        return self.inside("systemctl", "is-active", WATCHDOG) == "active"

    def control_group(self) -> Path:
        """The folder of its control group (cgroups(7), "/proc/[pid]/cgroup")."""
        (group,) = re.findall(
            r"(?m)^0::/([^/]+)", Path(f"/proc/{self.the_one().pid}/cgroup").read_text()
        )
        folders = [Path("/sys/fs/cgroup") / base / group for base in CGROUPS]
        return next(folder for folder in folders if folder.is_dir())

    def boot_id(self) -> str:
        """Which of its boots this is; empty where nothing has booted."""
        with contextlib.suppress(OSError):
            root = Path(f"/proc/{self.the_one().pid}/root")
            return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
        return ""

    def reboot(self) -> None:
        """Reboot it as a person does, and wait until it has."""
        self._until_rebooted(lambda: self.inside("systemctl", "reboot"))

    def press_reset(self) -> None:
        """Reboot it from one moment to the next, and wait until it has."""
        self._until_rebooted(lambda: self.rig.press_reset(self.the_one().id))

    def _until_rebooted(self, reboot: Callable[[], object]) -> None:
        before = until(self.boot_id)
        reboot()
        until(lambda: self.boot_id() not in ("", before) or self.ended(), BOOT_S)


async def came(launch: Awaitable[Any]) -> bool:
    """Whether a launch has brought an instance."""
    try:
        await launch
    except LaunchError as error:
        print(f"the launch failed: {error}")
        return False
    return True


def sshd_by_socket(layer: Path) -> Path:
    """Lay out a disk on which sshd is started by a connection, as on Ubuntu since 22.10
    (discourse.ubuntu.com/t/sshd-now-uses-socket-based-activation-ubuntu-22-10-and-later/30189).
    """
    units = layer / "etc/systemd/system"
    for folder in ("multi-user.target.wants", "sockets.target.wants"):
        (units / folder).mkdir(parents=True)
    # A name that the layer below does not give (Documentation/filesystems/overlayfs.rst).
    os.mknod(units / "multi-user.target.wants/ssh.service", stat.S_IFCHR, os.makedev(0, 0))
    (units / "sockets.target.wants/ssh.socket").symlink_to("/lib/systemd/system/ssh.socket")
    return layer


def sshd_by_service(layer: Path) -> Path:
    """Lay out a disk as Debian has it."""
    layer.mkdir()
    return layer


def unit_that_hangs(layer: Path) -> Path:
    """Lay out a disk with a unit that `multi-user.target` waits for, for ever."""
    wants = layer / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants.parent / "hangs.service").write_text(HANGS)
    (wants / "hangs.service").symlink_to("/etc/systemd/system/hangs.service")
    return layer
