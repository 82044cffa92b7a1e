"""Instances of EC2: rented one by one, watched together, and given back for certain. Each is known
by its launch's token and its id. The token is in its tags from its first moment, so it can be found
even if everything else is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from seerd.aws import images, instances, network, reservations
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.instances import RUN, tagged
from seerd.aws.keys import Keys
from seerd.backends.base import (
    Adopted,
    Connection,
    Launched,
    LaunchProgress,
    Leftovers,
    Loss,
    Provider,
    Span,
)
from seerd.backends.ec2.fleet import HUNT_S, Ec2Fleet
from seerd.backends.ec2.flight import Flight
from seerd.backends.ec2.kept import OFF_S, KeptInstance, KeptInstances, alike
from seerd.backends.ec2.launch_context import InstanceAccess, LaunchContext, machine
from seerd.backends.ec2.offer import PRICES_S, place_of
from seerd.backends.ec2.register import TAKEN, RegisterEntry, remains
from seerd.backends.ec2.request import Ec2Settings, LaunchPlaces, candidates, never, offered
from seerd.backends.ec2.rests import Rests
from seerd.backends.ec2.spot_prices import SpotPrices
from seerd.backends.ssh.connecting import RemoteMachine
from seerd.clock import unlimited, wall
from seerd.errors import LaunchError, ProviderError

__all__ = ["Ec2Provider", "Ec2Settings"]

UNDO_S = 30.0
"""How long a cancelled `launch` waits for being undone, seconds. Undoing goes on afterwards."""
SETTLE_S = 20.0
"""How long EC2's answers may lag behind accepted ends before they are believed, seconds."""
NO_WAY = (
    "; its subnet {subnet} has no way to S3. A gateway endpoint costs nothing: aws ec2 "
    "create-vpc-endpoint --region {region} --vpc-id {vpc} --service-name "
    "com.amazonaws.{region}.s3 --route-table-ids $(aws ec2 describe-route-tables --region {region} "
    "--filters Name=vpc-id,Values={vpc} --query 'RouteTables[].RouteTableId' --output text); a NAT "
    "gateway does it too, at a price"
)
NOT_FROM_THERE = (
    "; this machine may write there, so a policy of the bucket or of an endpoint of {vpc} does not "
    "let instances in {subnet} use it"
)
"""What to do where an instance cannot use the checkpoint store."""
_ID = re.compile(r"i-[0-9a-f]+")


class Ec2Provider(Provider):
    """The EC2 instances of one run: see `base.Provider`."""

    def __init__(
        self,
        settings: Ec2Settings,
        remote: InstanceAccess,
        cloud: Cloud | None = None,
        rests: Rests | None = None,
        kept: KeptInstances | None = None,
    ) -> None:
        self._settings = settings
        self._remote = remote
        self._rests = rests
        self._kept = kept
        self._cloud = cloud or Cloud(settings.region)
        own = (settings.run, settings.hard_end, self._cloud, self._busy, settings.mend_s)
        self._fleet = Ec2Fleet(*own)
        self._fleet.let_go |= set() if kept is None else kept.let_go
        self._keys = Keys(settings.keys)
        self._context: LaunchContext | None = None
        self._flights: dict[str, tuple[Flight, asyncio.Task[Launched]]] = {}
        self._awaited: set[str] = set()
        self._progress: asyncio.Queue[LaunchProgress] = asyncio.Queue()
        self._spot: SpotPrices | None = None
        self._pricing: asyncio.Task[None] | None = None

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None:
        """Look up the image, the subnets, and which of their zones offer the types, before anything
        is rented. Raises `CloudError`.
        """
        self._remote.lease_s = lease_s
        bought = None
        if self._settings.capacity:
            bought = await reservations.reservation(self._cloud, self._settings.capacity)
            self._settings = replace(
                self._settings,
                instance_types=(bought.type,),
                block=bought.block,
                market="on-demand",
                falls_back=False,
            )
        image = await images.resolve(self._cloud, self._settings.image)
        images.check(image, self._settings.instance_types)
        subnets = await network.subnets(self._cloud, self._settings.subnets)
        if bought is not None and not (subnets := [s for s in subnets if s.zone == bought.zone]):
            why = f"nothing was started: {bought.id} is in {bought.zone}, and no subnet of the run"
            raise AwsError(f"{why} is; give one in `cluster.subnets`", ErrorKind.REFUSED, "Subnet")
        self._fleet.places = places = candidates(self._settings, subnets)
        zones: dict[str, set[str]] = {}
        with contextlib.suppress(AwsError):  # then launches find out where a type is not offered
            zones = await network.offers(self._cloud, self._settings.instance_types)
        rests = self._rests
        self._keys.client()
        if self._settings.market == "spot":
            self._spot = SpotPrices(self._cloud, self._settings.instance_types)
            self._pricing = asyncio.create_task(self._keep_pricing(self._spot))
        self._context = LaunchContext(
            settings=self._settings,
            cloud=self._cloud,
            fleet=self._fleet,
            remote=self._remote,
            keys=self._keys,
            image=image,
            places=LaunchPlaces(offered(places, zones), never if rests is None else rests.rests),
            report=self._progress.put_nowait,
            price=self._price,
            begins=(bought and bought.begins) or 0.0,
            kept=self._kept,
        )

    def prolong(self, hard_end: float) -> None:
        """Move the hard end of future instances, seconds since 1970. A launch under way stays the
        same request: EC2 refuses one that is repeated otherwise.
        """
        self._settings = replace(self._settings, hard_end=hard_end)
        self._fleet.hard_end = hard_end
        if self._context is not None:
            self._context = replace(self._context, settings=self._settings)

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        self._awaited = set(tokens)
        seen = await self._fleet.find()
        # EC2's answers lag behind, and instances that ended a while ago have no tags any more.
        if missing := set(known) - {instance.instance for instance in seen}:
            await asyncio.sleep(1.0)
            seen += await self._fleet.find_known(sorted(missing))
        entries = [
            self._fleet.register.take_up(instance, wall())
            for instance in seen
            if instance.token not in self._awaited or instance.instance in known
        ]
        kept = [entry for entry in entries if entry.instance in known and not entry.ended]
        if self._spot is not None:
            self._spot.since = min((e.idle_at for e in kept), default=self._spot.since)
        for entry in kept:
            entry.handed_over = True
        others = [entry for entry in entries if entry.instance not in known]
        await self._fleet.end_all(entry for entry in others if not entry.ended)
        self._fleet.watch()
        losses = [Loss(other.instance, other.why, other.span, other.token) for other in others]
        return [entry.instance for entry in kept], losses

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        """See `base.Provider`. When cancelled, give back first, for up to `UNDO_S` seconds."""
        self._fleet.watch()

        def landed(done: asyncio.Task[Launched]) -> None:
            self._flights.pop(token, None)
            if not done.cancelled():
                done.exception()  # counts as retrieved, even if nobody waits for it

        if token not in self._flights:
            flight = Flight(self._opened(), token, orphan_timeout_s, most_gpus)
            task = asyncio.create_task(flight.fly())
            self._flights[token] = flight, task
            self._awaited.discard(token)
            task.add_done_callback(landed)
        try:
            return await asyncio.shield(self._flights[token][1])
        except asyncio.CancelledError:
            if token in self._flights:
                await asyncio.wait({self._give_up(token)}, timeout=UNDO_S)
            raise

    async def connect(self, instance: str) -> Connection:
        self._fleet.watch()  # the connection may have broken because the instance has ended
        return await self._remote.connect(self.machine(instance))

    async def end_agent(self, instance: str, grace_s: float) -> None:
        await self._remote.end_agent(self.machine(instance), grace_s)

    def without_store(self, instance: str, *, silent: bool, leave: bool = True) -> tuple[str, bool]:
        """Launch no more in the subnet of an instance that cannot use the checkpoint store, if
        `leave`. Return what to do, and whether another subnet is left then. `silent`: no answer
        came.
        """
        entry, region = self._live(instance), self._cloud.region
        advice = (NO_WAY if silent else NOT_FROM_THERE).format(
            subnet=entry.subnet, vpc=entry.vpc, region=region
        )
        return advice, leave and self._opened().places.leave(entry.subnet)

    def note_taken(self, instance: str) -> None:
        """Let the pool of a spot instance rest that AWS takes back."""
        if self._rests is not None and instance in self._fleet.register:
            entry = self._fleet.register[instance]
            if self._spot is not None and not self._fell_back(entry):
                self._rests.begin(entry.type, entry.zone)

    def place(self, instance: str) -> str:
        """Return where an instance is, as in `Quote.places`."""
        subnet = self._live(instance).subnet if self._settings.subnets else ""
        return place_of(self._settings.owner, self._cloud.region, subnet)

    def machine(self, instance: str) -> RemoteMachine:
        """Return how to log in to the instance. Raises `ProviderError` if it has ended."""
        return machine(self._opened(), self._live(instance))

    def address(self, instance: str) -> str:
        """Return its private address: instances of a run reach each other inside the network."""
        return self._live(instance).private

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        self._fleet.watch()
        self._awaited.discard(name)
        register = self._fleet.register
        if _ID.fullmatch(name):
            if name not in register:
                for seen in await self._fleet.find_known([name]):
                    register.take_up(seen, wall())
            if name not in register:
                return Span()
            if register[name].token in self._flights:
                await self._call_off(register[name].token)
            return await self._end([register[name]])
        if name in self._flights:
            return await self._call_off(name)
        asked = self._keys.asked(name)
        if asked is None and self._kept is not None and self._kept.taken(name) is not None:
            asked = 0.0
        if asked is not None and not register.of(name):
            await self._fleet.hunt(name, min(asked, wall()) + HUNT_S)
        return await self._end(register.of(name))

    async def let_go(self, instance: str, until: float, within_s: float) -> None:
        entry, context, kept = self._live(instance), self._opened(), self._kept
        if kept is None:
            raise ProviderError("instances of this run are not kept")
        access, place = machine(context, entry), (entry.type, entry.subnet, entry.spot)
        await kept.leave(access, until, within_s)
        like = alike(context.settings, context.image.image)
        (host_key,) = access.host_keys or ()
        about = KeptInstance(instance, like, place, until - OFF_S, host_key)
        self._fleet.let_go.add(instance)
        try:
            await kept.offer(self._cloud, access, self._settings.run, about)
        except ProviderError:
            self._fleet.let_go.discard(instance)
            raise
        self._fleet.register.let_go(instance, wall())

    async def loss(self) -> Loss:
        loss = await self._fleet.loss()
        if self._fleet.register[loss.instance].reason in TAKEN:
            self.note_taken(loss.instance)
        await self._remote.forget(loss.instance)
        return loss

    async def progress(self) -> LaunchProgress:
        """Wait for the next news of a launch that is not over."""
        return await self._progress.get()

    async def leftovers(self) -> Leftovers:
        """End what still runs, then return what is neither ended nor deleted, by the run's tag.
        Only an answer that is older than an accepted end is asked for again, for up to `SETTLE_S`
        seconds.
        """
        time = asyncio.get_running_loop().time
        settled = time() + SETTLE_S
        while True:
            asked, left = time(), await self._fleet.find()
            entries = [self._fleet.register.take_up(seen, wall()) for seen in left]
            with contextlib.suppress(ProviderError):  # what remains is in the result
                await self._fleet.end_all(
                    entry for entry in entries if not entry.ended and not entry.given_back
                )
            disks = await instances.volumes(self._cloud, tagged(RUN, self._settings.run))
            let_go = self._fleet.let_go
            disks = [disk for disk in disks if not disk.holders or disk.holders - let_go]
            leftovers = remains(left, disks)
            runs_on = any(not entry.ended for entry in entries)
            if not leftovers.costing or runs_on or asked > settled:
                return leftovers
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        """Stop watching and close connections. The next process takes up launches and ends."""
        for flight, task in self._flights.values():
            flight.abandoned = True
            task.cancel()
        await asyncio.gather(*(task for _, task in self._flights.values()), return_exceptions=True)
        if self._pricing is not None:
            self._pricing.cancel()
            await asyncio.gather(self._pricing, return_exceptions=True)
        await self._fleet.close()
        await self._remote.close()
        await self._cloud.close()

    def _price(self, entry: RegisterEntry) -> float | None:
        if self._spot is None or self._fell_back(entry):
            return self._settings.prices.get(entry.type)
        return self._spot.now(entry.type, entry.zone)

    def _fell_back(self, entry: RegisterEntry) -> bool:
        return self._settings.falls_back and not entry.spot

    async def _keep_pricing(self, spot: SpotPrices) -> None:
        """Report every change of the price of a spot instance."""
        while True:
            for change in await spot.changes():
                for entry in self._fleet.register.live():
                    is_its = (entry.type, entry.zone) == (change.type, change.zone)
                    if is_its and not self._fell_back(entry):
                        news = LaunchProgress(entry.token, entry.instance, "priced")
                        news = replace(news, usd_per_h=change.usd_per_h, since=change.at)
                        self._progress.put_nowait(news)
            await asyncio.sleep(PRICES_S)

    def _busy(self, token: str) -> bool:
        """Return whether an unknown instance with this token may be one that is awaited."""
        flight = self._flights.get(token)
        return token in self._awaited or (flight is not None and flight[0].entry is None)

    def _give_up(self, token: str) -> asyncio.Task[Launched]:
        """Make a launch give back what it has, unless it does so already; return its task."""
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
        return Span(error.since, error.until)

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
        if self._context is None:
            raise ProviderError("this provider has not been opened")
        return self._context
