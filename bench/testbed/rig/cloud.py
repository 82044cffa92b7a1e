"""The life of instances: pending, running with a machine, shutting down, terminated; and the
account of it.

The one rule: EC2 bills an instance from running until shutting-down, and this file alone decides
when those are. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.testbed.rig import aws, ways
from bench.testbed.rig.machines import Ground, Machine, Order, make
from bench.testbed.rig.metadata import Metadata
from bench.testbed.rig.timing import Timing

GONE = ("shutting-down", "terminated")
BY_USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
BY_INSTANCE = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
BY_SPOT = ("Server.SpotInstanceTermination", "Spot instance termination")
BY_FAULT = ("Server.InternalError", "Internal error on launch")


@dataclass(slots=True)
class Instance:
    """What the rig knows of an instance beyond moto. Times are wall clock, seconds since 1970."""

    id: str
    type: str
    zone: str
    address: str
    market: str
    token: str
    launched: float
    pending_s: float
    order: Order
    metadata: Metadata
    made: Any
    since: float | None = None
    until: float | None = None
    reason: str = ""
    vanished: bool = False
    machine: Machine | None = None


@dataclass(slots=True)
class Cloud:
    """All instances of a rig."""

    moto: aws.Moto
    ground: Ground
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    timing: Timing = field(default_factory=Timing)
    disk_bytes: int = 8 << 30
    instances: dict[str, Instance] = field(default_factory=dict)
    layers: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    distributions: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    without_tokens: bool = False
    consoles: dict[str, str] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)

    def live(self) -> list[Instance]:
        """Those that are pending or running."""
        return [
            instance
            for instance in self.instances.values()
            if instance.until is None and self.state(instance.id) not in GONE
        ]

    def unaddressed(self) -> list[str]:
        """Those whose addresses are not told yet."""
        late_s, now = self.timing.address_s, time.time()
        return [
            one.id
            for one in self.instances.values()
            if late_s and (one.since is None or now < one.since + late_s)
        ]

    def state(self, instance: str) -> str:
        return str(self.instances[instance].made.state)

    def launched(self, ids: list[str], user_data: bytes) -> None:
        """Take over instances that moto has just made: they are pending."""
        for name in ids:
            made = self.moto.ec2.get_instance(name)
            hidden = self.timing.hidden_s
            reservation = next(
                key for key, value in self.moto.ec2.reservations.items() if made in value.instances
            )
            market = "spot" if made.lifecycle == "spot" else "on-demand"
            order = Order(
                name,
                made.private_ip,
                made.public_ip,
                aws.hardware(made.instance_type),
                user_data,
                self.timing.boot_s,
                self.timing.nologin_s,
                self.timing.cold_s,
                self.disk_bytes,
                self.layers.get(made.image_id) or self.distributions.get(made.image_id, ()),
                made.image_id in self.distributions,
            )
            self.instances[name] = Instance(
                id=name,
                type=made.instance_type,
                zone=made.placement.zone,
                address=made.private_ip,
                market=market,
                token=made.client_token or "",
                launched=time.time(),
                pending_s=self.timing.pends_s(),
                order=order,
                metadata=_metadata(made, user_data, market, open_=self.without_tokens),
                made=made,
            )
            self.spawn(self._bring_up(self.instances[name]))
            if hidden > 0 and reservation in self.moto.ec2.reservations:
                self.spawn(self._hide(reservation, hidden))

    async def _hide(self, reservation: str, hidden_s: float) -> None:
        async with self.lock:
            if (taken := self.moto.ec2.reservations.pop(reservation, None)) is None:
                return
        await asyncio.sleep(hidden_s)
        async with self.lock:
            self.moto.ec2.reservations[reservation] = taken

    async def _bring_up(self, instance: Instance) -> None:
        """Pending as long as its disk and its cable take, and `pending_s` at least."""
        try:
            instance.machine = machine = await self._made(instance)
            await self._route(instance)
        except OSError as error:
            self.troubles.append(f"{instance.id} did not boot: {error}")
            await self.end(instance, BY_FAULT)
            return
        await asyncio.sleep(instance.launched + instance.pending_s - time.time())
        if instance.until is not None or self.instances.get(instance.id) is not instance:
            await machine.kill()
        else:
            instance.since = time.time()
            self._set_state(instance.id, "running", 16)
            if instance.vanished:
                await machine.drop()
            machine.switch_on()
        await machine.wait()
        self.consoles[instance.id] = self.console(instance)
        shutil.rmtree(self.ground.folder / instance.id, ignore_errors=True)
        if instance.until is None and not instance.vanished:
            await self.end(instance, BY_INSTANCE)

    def console(self, instance: Instance) -> str:
        """What its first processes have printed."""
        try:
            file = self.ground.folder / instance.id / "console"
            return file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return self.consoles.get(instance.id, "")

    def add_distribution(self, layers: tuple[Path, ...]) -> str:
        """An image of these folders, the upper ones first: all of a system that boots by itself."""
        made = self.moto.ec2.register_image(name=f"distribution-{len(self.distributions)}")
        made.root_device_type, made.root_device_name = "ebs", "/dev/sda1"
        self.distributions[made.id] = layers
        return str(made.id)

    def add_layer(self, layer: Path) -> str:
        """An image of this folder on the rig's own. It is copied: layers must not be on the root
        file system, which is one of them.
        """
        made = self.moto.ec2.register_image(name=f"layer-{len(self.layers)}")
        made.root_device_type, made.root_device_name = "ebs", "/dev/sda1"
        copy = self.ground.folder / str(made.id)
        shutil.copytree(layer, copy, symlinks=True)
        copy.chmod(0o755)
        self.layers[made.id] = (copy,)
        return str(made.id)

    async def route(self) -> None:
        """Have every instance reach, and be reached by, what groups and routes say now."""
        await asyncio.gather(*(self._route(one) for one in self.instances.values()))

    async def _route(self, instance: Instance) -> None:
        machine = instance.machine
        if machine is None or machine.clearing is not None or instance.until is not None:
            return
        try:
            await machine.link.route(ways.rules(self.moto.ec2, instance.made, self.ground.bridge))
        except OSError:
            if machine.clearing is None:  # else it ended meanwhile
                raise

    async def _made(self, instance: Instance) -> Machine:
        """Whole or not at all: half a machine would keep the address of the next."""
        making = asyncio.ensure_future(make(self.ground, instance.order, instance.metadata))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await (await making).kill()
            raise

    async def end(
        self, instance: Instance, why: tuple[str, str], *, silently: bool = False
    ) -> None:
        """Take the instance away: billing ends now, the machine with it, and its volumes when it is
        terminated.
        """
        if instance.until is not None:
            return
        instance.until = time.time()
        instance.reason = why[0]
        self._set_state(instance.id, "shutting-down", 32, why)
        if instance.machine is not None:
            await (instance.machine.drop() if silently else instance.machine.kill())
        self.spawn(self._finish(instance, why))

    async def _finish(self, instance: Instance, why: tuple[str, str]) -> None:
        await asyncio.sleep(self.timing.shutting_down_s)
        async with self.lock:
            if self.instances.get(instance.id) is instance:
                instance.made.terminate()
                self._set_state(instance.id, "terminated", 48, why)
        if self.timing.fading_s:
            await self._fade(instance)

    async def _fade(self, instance: Instance) -> None:
        """Tags of the terminated go before they do
        (docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html).
        """
        await asyncio.sleep(self.timing.fading_s)
        async with self.lock:
            self.moto.ec2.tags.pop(instance.id, None)

    async def imaged(self, image: str, instance: Instance, tags: dict[str, str]) -> None:
        """Take over an image that moto has just made: what is on the instance's disk is in it, and
        it is pending. `tags`: of its snapshot.
        """
        made = self.moto.ec2.amis[image]
        made.root_device_type, made.root_device_name, made.state = "ebs", "/dev/sda1", "pending"
        made.ebs_snapshot.add_tags(tags)
        folder = self.ground.folder / image
        folder.mkdir()
        folder.chmod(0o755)
        assert instance.machine is not None
        await instance.machine.image(folder)
        self.layers[image] = (folder, *instance.order.layers)
        self.spawn(self._available(made))

    async def _available(self, made: Any) -> None:
        await asyncio.sleep(self.timing.image_s)
        made.state = "available"

    async def vanish(self, instance: Instance) -> None:
        """Nobody answers any more, and EC2 says that all is well."""
        instance.vanished = True
        if instance.machine is not None:
            await instance.machine.drop()

    async def spot_notice(self, instance: Instance, seconds: float) -> None:
        """Tell the instance, and take it away after so long."""
        instance.metadata.spot_notice_at = time.time() + seconds
        self.spawn(self._reclaim(instance, seconds))

    async def _reclaim(self, instance: Instance, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.end(instance, BY_SPOT)

    async def clear(self) -> None:
        """End everything and forget it."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        machines = [
            instance.machine for instance in self.instances.values() if instance.machine is not None
        ]
        await asyncio.gather(*(machine.kill() for machine in machines), return_exceptions=True)
        for name in self.instances:
            shutil.rmtree(self.ground.folder / name, ignore_errors=True)
        for folders in self.layers.values():
            shutil.rmtree(folders[0], ignore_errors=True)
        self.layers.clear()
        self.distributions.clear()
        self.consoles.clear()
        self.instances.clear()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.troubles.append(f"the rig failed: {error!r}")

    def _set_state(
        self, instance: str, name: str, code: int, why: tuple[str, str] | None = None
    ) -> None:
        made = self.instances[instance].made
        if why is not None:
            self._set_reason(instance, why)  # first: moto answers from other threads
        made._state.name, made._state.code = name, code

    def _set_reason(self, instance: str, why: tuple[str, str]) -> None:
        made = self.instances[instance].made
        from moto.ec2.models.instances import StateReason

        when = datetime.fromtimestamp(self.instances[instance].until or time.time(), UTC).strftime(
            "%Y-%m-%d %H:%M:%S GMT"
        )
        made._reason = (
            f"User initiated ({when})"
            if why is BY_USER
            else f"{why[1]} ({when})"
            if why is not BY_FAULT
            else why[0]
        )
        made.state_reason = StateReason(f"{why[0]}: {why[1]}", why[0])


def _metadata(made: Any, user_data: bytes, market: str, *, open_: bool) -> Metadata:
    pages = {
        "ami-id": made.image_id,
        "ami-launch-index": str(made.ami_launch_index),
        "hostname": made.private_dns_name,
        "instance-action": "none",
        "instance-id": made.id,
        "instance-life-cycle": market,
        "instance-type": made.instance_type,
        "local-hostname": made.private_dns_name,
        "local-ipv4": made.private_ip,
        **({"public-ipv4": made.public_ip} if made.public_ip else {}),
        "placement/availability-zone": made.placement.zone,
        "placement/region": aws.REGION,
        "services/domain": "amazonaws.com",
        "services/partition": "aws",
        "security-groups": "\n".join(group.name for group in made.security_groups),
    }
    options = made.metadata_options
    return Metadata(
        pages,
        user_data,
        token_required=options.http_tokens == "required" and not open_,
        enabled=options.http_endpoint != "disabled",
    )
