"""Instances of EC2: rented one by one, watched together, given back for certain.

The one rule: an instance is known by its launch's token and its id, both of which are in its tags
from its first moment. Whoever lost everything else finds it by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Sequence

from seerd.errors import LaunchError, ProviderError
from seerd.shell.aws import images, instances, subnets
from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AwsError
from seerd.shell.aws.instances import ENDING, RUN, tagged
from seerd.shell.aws.keys import Keys
from seerd.shell.clock import wall
from seerd.shell.providers.base import Connection, Launched, Loss, Span
from seerd.shell.providers.ec2_fleet import HUNT_S, Ec2Fleet
from seerd.shell.providers.ec2_flight import Door, Flight, LaunchContext, machine, span_of
from seerd.shell.providers.ec2_register import RegisterEntry
from seerd.shell.providers.ec2_request import Ec2Settings, candidates
from seerd.shell.ssh.connecting import RemoteMachine

__all__ = ["Ec2Provider", "Ec2Settings"]

UNDO_S = 30.0
"""How long a caller who gives up a launch waits for its end. It goes on afterwards, and if this
process ends first, the next one does it.
"""

LEAVE_S = 60.0
"""How long instances that are shutting down are waited for before they count as left over."""

_ID = re.compile(r"i-[0-9a-f]+")


class Ec2Provider:
    """The instances of one run."""

    def __init__(self, settings: Ec2Settings, remote: Door, cloud: Cloud | None = None) -> None:
        self._settings = settings
        self._remote = remote
        self._cloud = cloud or Cloud(settings.region)
        self._fleet = Ec2Fleet(settings.run, settings.hard_end, self._cloud, self._busy)
        self._keys = Keys(settings.keys)
        self._ground: LaunchContext | None = None
        self._flights: dict[str, tuple[Flight, asyncio.Task[Launched]]] = {}
        self._awaited: set[str] = set()

    async def open(self) -> None:
        """Look up image and subnets, before anything is rented. Raises `CloudError`: credentials,
        region, permissions, image, subnets.
        """
        image = await images.resolve(self._cloud, self._settings.image)
        places = await subnets.resolve(self._cloud, self._settings.subnets)
        self._keys.client()
        self._ground = LaunchContext(
            settings=self._settings,
            cloud=self._cloud,
            fleet=self._fleet,
            remote=self._remote,
            keys=self._keys,
            image=image,
            candidates=candidates(self._settings, places),
        )

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> list[str]:
        """Those of `known` that live. What launches of `tokens` have brought is left for `launch`
        to find; the rest is ended.
        """
        self._awaited = set(tokens)
        found = await self._found(known)
        entries = [
            self._fleet.register.take_up(seen, wall())
            for seen in found
            if seen.token not in self._awaited or seen.instance in known
        ]
        kept = [entry for entry in entries if entry.instance in known and not entry.ended]
        for entry in kept:
            entry.handed_over = True
        await self._fleet.end_all(
            entry for entry in entries if entry.instance not in known and not entry.ended
        )
        self._fleet.watch()
        return [entry.instance for entry in kept]

    async def launch(self, token: str, orphan_timeout_s: float | None = None) -> Launched:
        """One instance for this token, its agent ready. Raises `LaunchError`. Cancelled, it gives
        back what it has first.
        """
        self._fleet.watch()
        task = self._fly(token, orphan_timeout_s)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if token in self._flights:
                await asyncio.wait({self._give_up(token)}, timeout=UNDO_S)
            raise

    async def connect(self, instance: str) -> Connection:
        """A byte stream to its agent. Raises `ProviderError`."""
        return await self._remote.connect(self.machine(instance))

    async def end_agent(self, instance: str, grace_s: float) -> None:
        """End its agent; its trials may save. Raises `ProviderError`."""
        await self._remote.end_agent(self.machine(instance), grace_s)

    def machine(self, instance: str) -> RemoteMachine:
        """How to log in there. Raises `ProviderError` if it is gone."""
        return machine(self._opened(), self._live(instance))

    def address(self, instance: str) -> str:
        """Its private address: instances of a run reach each other inside the network."""
        return self._live(instance).private

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        """End this instance, or what this token's launch has brought or would bring. Raises
        `ProviderError` if EC2 refuses for good.
        """
        self._fleet.watch()
        self._awaited.discard(name)
        if _ID.fullmatch(name):
            return await self._terminate_instance(name)
        if name in self._flights:
            return await self._call_off(name)
        asked = self._keys.asked(name)
        if asked is not None and not self._fleet.register.of(name):
            await self._fleet.hunt(name, min(asked, wall()) + HUNT_S)
        return await self._end(self._fleet.register.of(name))

    async def loss(self) -> Loss:
        """The next instance that has ended without being given back."""
        loss = await self._fleet.loss()
        await self._remote.forget(loss.instance)
        return loss

    async def leftovers(self) -> list[str]:
        """Instances that have not ended and volumes that are not deleted, by the run's tag. What
        still runs is ended first.
        """
        await self._end_what_runs()
        end = asyncio.get_running_loop().time() + LEAVE_S
        while True:
            there = [seen for seen in await self._fleet.find() if seen.state != "terminated"]
            disks = [
                v
                for v in await instances.volumes(self._cloud, tagged(RUN, self._settings.run))
                if v.state != "deleted"
            ]
            leaving = all(seen.state in ENDING for seen in there)
            if not (there or disks) or not leaving or asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(1.0)
        lines = [f"instance {s.instance} ({s.type}, {s.zone}) is {s.state}" for s in there]
        return lines + [f"volume {v.volume} ({v.gb} GB) is {v.state}" for v in disks]

    async def _end_what_runs(self) -> None:
        """Nothing of a run that is over has a reason to run; what cannot be ended is named by
        `leftovers`.
        """
        entries = [self._fleet.register.take_up(seen, wall()) for seen in await self._fleet.find()]
        with contextlib.suppress(ProviderError):
            await self._fleet.end_all(
                entry for entry in entries if not entry.ended and not entry.given_back
            )

    async def close(self) -> None:
        """Stop watching and close connections; what is being launched or ended is left for the next
        process.
        """
        for flight, task in self._flights.values():
            flight.abandon()
            task.cancel()
        await asyncio.gather(*(task for _, task in self._flights.values()), return_exceptions=True)
        await self._fleet.close()
        await self._remote.close()
        await self._cloud.close()

    # ------------------------------------------------------------ launches

    def _fly(self, token: str, orphan_timeout_s: float | None) -> asyncio.Task[Launched]:
        """The launch of this token: the one under way, or a new one."""
        if token not in self._flights:
            flight = Flight(self._opened(), token, orphan_timeout_s)
            task = asyncio.create_task(flight.fly())
            self._flights[token] = flight, task
            self._awaited.discard(token)
            task.add_done_callback(lambda done: self._landed(token, done))
        return self._flights[token][1]

    def _landed(self, token: str, task: asyncio.Task[Launched]) -> None:
        self._flights.pop(token, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may be left

    def _busy(self, token: str) -> bool:
        """Whether an instance of this token that nobody knows may be one that is being waited
        for.
        """
        flight = self._flights.get(token)
        return token in self._awaited or (flight is not None and flight[0].searching)

    def _give_up(self, token: str) -> asyncio.Task[Launched]:
        """Have a launch give back what it has, if it does not do so already; its task."""
        flight, task = self._flights[token]
        if not flight.undoing:
            task.cancel()
        return task

    async def _call_off(self, token: str) -> Span:
        task = self._give_up(token)
        await asyncio.wait({task})
        error = task.exception()
        if isinstance(error, AwsError):
            raise ProviderError(
                f"what launch {token} has brought could not be found out, and may run until "
                f"its hard end: {error}"
            ) from error
        if not isinstance(error, LaunchError):
            return await self._end(self._fleet.register.of(token))
        if error.since is not None and error.until is None:
            raise ProviderError(str(error))
        return span_of(error)

    # ------------------------------------------------------------ instances

    async def _found(self, known: Sequence[str]) -> list[instances.SeenInstance]:
        """All instances of the run; asked a second time if some that should be there are
        missing.
        """
        found = await self._fleet.find()
        if set(known) - {seen.instance for seen in found}:
            await asyncio.sleep(1.0)
            found = await self._fleet.find()
        return found

    async def _terminate_instance(self, instance: str) -> Span:
        if instance not in self._fleet.register:
            filters = [
                *tagged(RUN, self._settings.run),
                {"Name": "instance-id", "Values": [instance]},
            ]
            for seen in await instances.find(self._cloud, filters):
                self._fleet.register.take_up(seen, wall())
        if instance not in self._fleet.register:
            return Span()
        entry = self._fleet.register[instance]
        if entry.token in self._flights:
            await self._call_off(entry.token)
        return await self._end([entry])

    async def _end(self, entries: Sequence[RegisterEntry]) -> Span:
        for entry in entries:
            entry.given_back = True
            await self._remote.forget(entry.instance)
        return await self._fleet.end_all(entries)

    def _live(self, instance: str) -> RegisterEntry:
        if instance not in self._fleet.register:
            raise ProviderError(f"{instance} is not of this run")
        entry = self._fleet.register[instance]
        if entry.ended:
            raise ProviderError(f"{instance} has ended" + (f": {entry.why}" if entry.why else ""))
        return entry

    def _opened(self) -> LaunchContext:
        if self._ground is None:
            raise ProviderError("this provider has not been opened")
        return self._ground
