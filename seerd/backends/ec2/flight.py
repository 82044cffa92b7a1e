"""One launch: from asking for an instance to an agent that answers, or back to nothing. Whatever
ends it early (a refusal, an instance that ends, a cancellation), it first finds out what EC2 has
made of its requests and gives that back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from seerd.aws import instances
from seerd.aws.errors import AGAIN, AwsError, ErrorKind
from seerd.aws.userdata import Boot, user_data
from seerd.backends.base import Launched, LaunchProgress, LaunchStage
from seerd.backends.ec2.fleet import HUNT_S
from seerd.backends.ec2.launch_context import LaunchContext, machine
from seerd.backends.ec2.register import BY_ITSELF, RegisterEntry
from seerd.backends.ec2.request import Candidate, run_instances
from seerd.backends.ec2.taking_over import take_over
from seerd.backends.ssh.connecting import UnreachableError
from seerd.clock import wall
from seerd.errors import LaunchError, ProviderError
from seerd.units import format_duration

LET_IN = (
    "aws ec2 authorize-security-group-ingress --region {region} --group-id {group} --protocol tcp "
    "--port 22 --cidr {source}/32"
)
TO_PUBLIC = (
    "; if its security group does not let this machine in, type: {let_in}; if it does, its subnet "
    "has no route to an internet gateway. `seerd doctor` shows the group's rules"
)
TO_PRIVATE = (
    '; `cluster.address` is "private": such an address is reached from inside its network alone, '
    'from elsewhere set address = "public"; if its security group does not let this machine in, '
    "type, with this machine's own address in that network: {let_in}"
)
THROUGH_ENDPOINT = (
    "; is there an EC2 Instance Connect Endpoint in {vpc}? aws ec2 "
    "describe-instance-connect-endpoints shows it; if not, type: aws ec2 "
    "create-instance-connect-endpoint --subnet-id {subnet}. The instances' security group must let "
    "in that of the endpoint at port 22"
)
"""What to do about an instance that may never have been reached."""
AGAIN_S = 15.0  # between two reports of why nobody can log in, at least, seconds
ASK_S = 120.0  # how long EC2 may be busy or broken before a launch is given up, seconds
PENDING_S = 420.0
"""How long an instance may be pending, seconds. That costs nothing, and is no part of its boot."""
LEAST_S = 30.0
"""How long to wait for an agent at least, seconds: an instance may have booted long before this
process takes its launch up.
"""
ELSEWHERE = frozenset({ErrorKind.CAPACITY, ErrorKind.ELSEWHERE, ErrorKind.QUOTA})
"""Refusals after which another place is tried. A quota is for one family of types."""


class Flight:
    """The launch of one token. Run `fly` as a task; when cancelled, that gives back what it has."""

    def __init__(
        self,
        context: LaunchContext,
        token: str,
        orphan_timeout_s: float | None = None,
        most_gpus: int | None = None,
    ) -> None:
        self._context = context
        self._token = token
        self._most_gpus = most_gpus  # the most GPUs that its instance may have; None: any number
        self._orphan_timeout_s = orphan_timeout_s
        self._begun = _now()
        self.entry: RegisterEntry | None = None  # its instance; None: it is still unknown
        self._call: asyncio.Task[RegisterEntry] | None = None
        self._unclear = False
        self._first_asked: float | None = None
        self._why = self._advice = ""  # why nobody can log in, and what to do about it
        self._reported: tuple[str, float] = "", -math.inf  # the cause reported last, and when
        self._answered = math.inf  # when EC2 had answered
        # whether a cancellation leaves everything as it is, for another process to take up
        self.abandoned = False
        # whether it is giving back already; cancelling the task now would leave that undone
        self.undoing = False

    async def fly(self) -> Launched:
        """Return the ready instance. Raises `LaunchError` after giving back everything."""
        try:
            return await self._launch()
        except asyncio.CancelledError:
            if self.abandoned:
                if self._call is not None:
                    self._call.cancel()
                    await asyncio.gather(self._call, return_exceptions=True)
                raise
            setback = LaunchError(f"launch {self._token} was called off", retry=False)
        except LaunchError as error:
            setback = error
        except AwsError as error:
            setback = LaunchError(
                str(error),
                retry=error.kind in AGAIN | {ErrorKind.SPENT, ErrorKind.CREDENTIALS},
                unknown=error.kind is ErrorKind.UNKNOWN,
            )
        except ProviderError as error:
            setback = LaunchError(str(error), retry=True)
        except Exception:
            await self._undone(LaunchError("a bug", retry=False))
            raise
        raise await self._undone(setback)

    async def _launch(self) -> Launched:
        settings = self._context.settings
        if (left_s := self._context.begins - wall()) > 0:
            left = format_duration(math.ceil(left_s))
            raise LaunchError(f"{settings.capacity} begins in {left}", retry=True)
        adopted = await take_over(self._context, self._token, self._fits)
        self.entry = entry = adopted or await self._taken_up() or await self._asked()
        self._answered = _now()
        where, price = f"{entry.type} in {entry.zone}", self._context.price(entry)
        gpus = settings.sizes.get(entry.type)
        self._report("launched", where=where, usd_per_h=price, gpus=gpus)
        pending = f"was not running after {PENDING_S:.0f}s"
        await self._until(entry, lambda: entry.ran, PENDING_S, pending)
        self._report("running")
        public = settings.address == "public"
        kind = "public or private" if public else "private"
        unseen = (
            f"runs, but EC2 has shown no {kind} address of it for {settings.address_s:.0f}s; look "
            "whether its subnet and network give one (`cluster.address`, `cluster.subnets`)"
        )
        address = (lambda: entry.shows(public=public), settings.address_s, unseen, "ssh")
        await self._until(entry, *address)
        assert entry.span.since is not None
        if adopted is not None:
            return self._reached(entry)
        left_s = settings.boot_s - (wall() - entry.span.since)
        await self._ready(entry, max(min(LEAST_S, settings.boot_s), left_s))
        return self._reached(entry)

    def _reached(self, entry: RegisterEntry) -> Launched:
        assert entry.span.since is not None
        entry.handed_over = True
        self._report("reached")
        gpus = self._context.settings.sizes.get(entry.type) or self._context.settings.gpus
        return Launched(entry.instance, gpus, entry.span.since, entry.paid_until)

    async def _taken_up(self) -> RegisterEntry | None:
        """Return the live instance of an earlier try of this launch; None if there is none."""
        self._first_asked = self._context.keys.asked(self._token)
        self._context.keys.host(self._token)
        if self._first_asked is None:
            return None
        self._unclear = True
        entries = await self._context.fleet.find_launched(self._token)
        self._unclear = not entries
        live = [entry for entry in entries if not entry.ended]
        if entries and not live:
            raise LaunchError(
                f"{entries[0].instance} ended before it could be used: {entries[0].why}", retry=True
            )
        for entry in live[1:]:
            await self._context.fleet.end(entry.instance)
        return live[0] if live else None

    async def _asked(self) -> RegisterEntry:
        """Launch a new instance at the first place that gives one."""
        context = self._context
        places, lane = context.places, context.cloud.lanes["run_instances"]
        while True:
            # Only after waiting for the turn is a place chosen: other launches have learned more.
            await lane.turn(lambda: places.next(self._begun, _now(), self._fits) is not None)
            if (place := places.next(self._begun, _now(), self._fits)) is None:
                refusals = places.refusals(self._fits)
                raise exhausted(refusals, others=bool(context.fleet.register.live()))
            try:
                entry = await self._ask_at(place)
            except AwsError as error:
                if error.kind is ErrorKind.SPENT:  # EC2 remembers the request of an earlier try
                    entries = await context.fleet.find_launched(self._token)
                    live = [entry for entry in entries if not entry.ended]
                    if not live:
                        raise
                    return live[0]
                if error.kind not in ELSEWHERE:
                    raise
                places.refused(place, error, _now())
            else:
                places.gave(place)
                return entry

    def _fits(self, kind: str) -> bool:
        gpus = self._context.settings.sizes.get(kind)
        return gpus is None or self._most_gpus is None or gpus <= self._most_gpus

    async def _ask_at(self, candidate: Candidate) -> RegisterEntry:
        """Send the same request until there is an answer; a call is never cancelled."""
        settings, keys = self._context.settings, self._context.keys
        host, client = keys.host(self._token), keys.client()  # on disk before any request
        boot = Boot(
            settings.run,
            settings.hard_end,
            host.private,
            host.public,
            client.public,
            root=settings.root,
            orphan_timeout_s=self._orphan_timeout_s,
            python=settings.python,
            containers=settings.containers,
            scratch=settings.scratch or "",
            keep_s=settings.keep_s,
        )
        image = self._context.image
        request = run_instances(settings, self._token, candidate, image, user_data(boot))
        began, failures = wall(), 0
        while True:
            self._call = asyncio.create_task(self._run_instances(request, began))
            try:
                return await asyncio.shield(self._call)
            except AwsError as error:
                # Stays so whatever is answered later: an earlier call may have launched one.
                self._unclear = self._unclear or error.kind is ErrorKind.UNCLEAR
                failures += 1
                if error.kind not in AGAIN or wall() > began + ASK_S:
                    raise
            await self._context.cloud.lanes["run_instances"].again(failures)

    async def _run_instances(self, request: dict[str, Any], asked_at: float) -> RegisterEntry:
        answer = await self._context.cloud.call("ec2", "run_instances", **request)
        seen = instances.seen(answer["Instances"][0])
        if self._first_asked is not None:  # an earlier process may have asked for this instance
            asked_at = max(self._first_asked, min(seen.launched_at, asked_at))
        return self._context.fleet.register.expect(seen, self._token, asked_at, wall())

    def _report(self, what: LaunchStage, **more: Any) -> None:
        assert self.entry is not None
        self._context.report(LaunchProgress(self._token, self.entry.instance, what, **more))

    def _failed(self, error: UnreachableError) -> None:
        """Note why nobody could log in just now, and report it if that lasts."""
        entry, now = self.entry, _now()
        assert entry is not None
        self._why, self._advice = str(error), self._advice_on(entry) if error.no_way else ""
        why, (before, reported_at) = self._why + self._advice, self._reported
        first_s = self._answered + self._context.settings.unreached_s
        if why != before and now >= max(first_s, reported_at + AGAIN_S):
            self._reported = why, now
            self._report("unreached", why=why)

    def _advice_on(self, entry: RegisterEntry) -> str:
        settings = self._context.settings
        public = settings.address == "public"
        if settings.address == "instance-connect":
            return THROUGH_ENDPOINT.format(vpc=entry.vpc, subnet=entry.subnet)
        let_in = LET_IN.format(
            region=self._context.cloud.region,
            group=next(iter(entry.groups or settings.security_groups), "GROUP"),
            source='"$(curl -s https://checkip.amazonaws.com)"' if public else "ADDRESS",
        )
        return (TO_PUBLIC if public else TO_PRIVATE).format(let_in=let_in)

    async def _until(
        self,
        entry: RegisterEntry,
        true: Callable[[], bool],
        for_s: float,
        problem: str,
        cause: str = "",
    ) -> None:
        """Wait until `true()` holds. Raises `LaunchError` if the instance ends, or after `for_s`
        seconds, with this `cause`.
        """
        fleet = self._context.fleet
        try:
            async with asyncio.timeout(for_s):
                await fleet.until(lambda: entry.ended or true())
        except TimeoutError:
            blind = f": {fleet.blind}" if fleet.blind else ""
            why = f"{entry.instance} {problem}{blind}"
            raise LaunchError(why, retry=True, cause="" if blind else cause) from None
        self._check(entry)

    async def _ready(self, entry: RegisterEntry, patience_s: float) -> None:
        """Wait for its agent for up to `patience_s` seconds, unless the instance ends."""
        context = self._context
        reaching = context.remote.ready(
            machine(context, entry), patience_s, on_failure=self._failed
        )
        ready = asyncio.create_task(reaching)
        ended = asyncio.create_task(context.fleet.until(lambda: entry.ended))
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            self._check(entry)
            await ready
        except LaunchError:
            raise
        except ProviderError as error:
            raise LaunchError(f"{error}{self._advice}", retry=True, cause="ssh") from error
        finally:
            for task in (ready, ended):
                task.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)
        self._check(entry)

    def _check(self, entry: RegisterEntry) -> None:
        if entry.ended:
            why = entry.why or "it was terminated"
            unused = entry.reason == BY_ITSELF
            seen = f": {self._why}{self._advice}" if self._why else self._advice_on(entry)
            nobody = f". Nobody had logged in by then{seen}" if unused else ""
            raise LaunchError(
                f"{entry.instance} ended before its agent answered: {why}{nobody}",
                retry=not entry.hopeless,
                cause="ssh" if unused else "",
            )

    async def _undone(self, setback: LaunchError) -> LaunchError:
        """Give back everything; return the setback with the time for which instances ran."""
        self.undoing = True
        if self._call is not None:
            await asyncio.wait({self._call})
            error = self._call.exception()
            if isinstance(error, AwsError) and error.kind is ErrorKind.UNCLEAR:
                self._unclear = True
        context = self._context
        if self._unclear:
            try:
                await context.fleet.hunt(self._token, wall() + HUNT_S)
            except AwsError as error:
                unknown = (
                    f"what launch {self._token} has brought could not be found out, and may "
                    f"run until its hard end: {error}"
                )
                setback = LaunchError(f"{setback}\n{unknown}", retry=False)
        brought = context.fleet.register.of(self._token)
        for entry in brought:
            await context.remote.forget(entry.instance)
        try:
            span = await context.fleet.end_all(brought)
        except ProviderError as failure:
            since = min((e.span.since for e in brought if e.span.since is not None), default=None)
            return LaunchError(f"{setback}\n{failure}", retry=False, since=since)
        return LaunchError(
            str(setback),
            retry=setback.retry,
            since=span.since,
            until=span.until,
            unknown=setback.unknown,
            cause=setback.cause,
        )


def exhausted(refusals: Sequence[tuple[Candidate, AwsError]], *, others: bool) -> LaunchError:
    """Return the error of a launch that no place has given an instance: a line for each cause.
    Asking again may help if capacity was missing, or if `others`, instances of the same run, use up
    the quota.
    """
    if not refusals:
        return LaunchError("no type with so few GPUs is offered in the run's zones", retry=True)
    kinds = {error.kind for _, error in refusals}
    goes_on = ErrorKind.CAPACITY not in kinds and ErrorKind.QUOTA in kinds and others
    zones: dict[str, dict[str, list[str]]] = {}  # AWS's code -> type -> zones
    for place, error in refusals:
        zones.setdefault(error.code, {}).setdefault(place.type, []).append(place.zone)
    errors = {error.code: error for _, error in reversed(refusals)}  # the first of each code
    lines = [
        "; ".join(f"{kind} in {', '.join(dict.fromkeys(where))}" for kind, where in types.items())
        + f": {errors[code]}"
        for code, types in zones.items()
    ]
    why = "no instance could be had: " + "\n  ".join(lines)
    why += "\nThe run goes on with the instances that it has." if goes_on else ""
    return LaunchError(why, retry=ErrorKind.CAPACITY in kinds or goes_on)


def _now() -> float:
    return asyncio.get_running_loop().time()
