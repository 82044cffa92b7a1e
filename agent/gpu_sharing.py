"""How many GPUs of this machine the run may use, and which its attempts have. They are leased from
an attempt's start until nothing of it is left; a run above its share ends attempts. The daemon
numbers slots from 0 (`protocol.Start`); an attempt gets those with its numbers if they are free,
else others: parts of one GPU, or whole GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

from seerd.agent import clock
from seerd.agent.gpu_devices import Device, cpu_slots
from seerd.agent.gpu_keeper import Keeper
from seerd.agent.gpu_leases import (
    LeaseFolder,
    LeaseFolderError,
    RunHere,
    Use,
    folder_path,
    free,
    gpu_of,
    leases_text,
    part_name,
    pools,
)
from seerd.agent.gpu_shares import Claim, fair_shares
from seerd.agent.protocol import Complained, Fact, Noticed, Shared
from seerd.agent.threads import came_before

LOOK_S = 0.5  # seconds between looks at the other runs
IDLE_S = 15.0
"""Seconds for which GPUs that a run does not use stay its own, as between two rounds of trials."""
PATIENCE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Seconds after which a waiting attempt is reported; doubled each time, up to the second."""
log = logging.getLogger("agent")


@dataclass(eq=False)
class _Request:
    """An attempt that waits for slots, by the daemon's numbers."""

    attempt: str
    slots: Sequence[int]
    answer: asyncio.Future[Any]  # done once it has them, or with the reason why it gets none
    reported_at: float
    pause_s: float = PATIENCE_S


class _Place(NamedTuple):
    """A GPU, or a part of one."""

    device: Device
    part: int = 0
    parts: int = 1  # how many of these a GPU has

    @property
    def lease(self) -> str:
        """Name of the lock that is its own."""
        return part_name(self.device.lease, self.part, self.parts)


class _Holding(NamedTuple):
    """What an attempt has, and the leases of that."""

    devices: dict[int, Device]  # by the daemon's numbers of GPUs
    places: list[_Place]
    slots: int
    leases: list[int]
    since: float  # seconds since 1970


class SharedGpus:
    """The GPUs of a machine that other runs may use too. Raises `LeaseFolderError` if it has no
    place for leases.

    `run` has this run's weight and the most slots that it can use. `was`: how many the daemon takes
    it that it may use; None: all. `now` returns monotonic seconds.
    """

    def __init__(
        self,
        run: RunHere,
        devices: list[Device],
        was: Optional[int],
        report: Callable[[list[Fact]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._devices = devices
        self.share = run.most if was is None else was
        self._is_reported = was is not None
        self._report = report
        self._now = now
        self._folder = LeaseFolder(folder_path())
        self._folder.tidy()
        self._own = self._folder.register(run.run)
        self._own.write(run)
        self._keeper = Keeper(run.run)
        self._held: dict[str, _Holding] = {}
        self._waiting: list[_Request] = []
        self._peak, self._peak_at = 0, now()
        self._looked_at = -math.inf

    def names(self, attempt: str) -> list[str]:
        """Return CUDA's names of the GPUs that an attempt has."""
        return [device.name for device in self._held[attempt].devices.values()]

    def _assigned(self) -> dict[int, str]:
        devices = (item for held in self._held.values() for item in held.devices.items())
        return {gpu: device.name for gpu, device in devices}

    def shown(self, gpus: Sequence[int]) -> list[str]:
        """Return CUDA's names of GPUs by the daemon's numbers: for those that no attempt has, of
        the device with that number; empty for one that an attempt has under another.
        """
        assigned, usual = self._assigned(), [device.name for device in self._devices]
        rest = [name if name not in assigned.values() else "" for name in usual[: len(gpus)]]
        return [assigned.get(gpu, rest[gpu]) for gpu in gpus]

    async def take(self, attempt: str, slots: Sequence[int], stopped: asyncio.Event) -> bool:
        """Wait until an attempt has its slots (True) or is stopped. Raises `OSError`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = _Request(attempt, slots, answer, self._now())
        self._waiting.append(request)
        self._serve()
        if not answer.done():
            log.info("%s waits for %d slots", attempt, len(slots))
            if not await came_before(answer, stopped):
                self._waiting.remove(request)
                self._write_use()
                return False
        answer.result()
        return attempt in self._held

    def give_back(self, attempt: str) -> None:
        """Free the GPUs of an attempt of which nothing is left."""
        held = self._held.pop(attempt, None)
        if held is not None:
            self._keeper.release(attempt)
            free(held.leases)
            self._serve()

    def widen(self, attempt: str, slots: Sequence[int]) -> bool:
        """Lease what an attempt lacks of so many slots on its GPU, these if they are free; return
        whether it has them all.
        """
        held, parts = self._held.get(attempt), self._run.parts
        if held is None or len(slots) - held.slots > self._room():
            return False
        (device,), numbers = held.devices.values(), [slot % parts for slot in slots]
        places = [_Place(device, number, parts) for number in [*numbers, *range(parts)]]
        others = [place for place in dict.fromkeys(places) if place not in held.places]
        leased = self._first_leased(len(slots) - held.slots, [others])
        if leased is None:
            return False
        leases = [lease for some in leased.values() for lease in some]
        try:
            self._keeper.hold(attempt, leases)
        except OSError:
            free(leases)
            return False
        self._held[attempt] = held._replace(
            places=[*held.places, *leased], slots=len(slots), leases=[*held.leases, *leases]
        )
        self._write_use()
        return True

    def look(self) -> None:
        """Look at the other runs, update the share, and serve waiting attempts. Called often."""
        if self._now() - self._looked_at >= LOOK_S:
            self._looked_at = self._now()
            with contextlib.suppress(OSError):  # of a full table of files: the next look sees them
                self._see_others()
            self._write_use()
        if self._waiting:
            self._serve()

    def left(self) -> Optional[list[str]]:
        """Return CUDA's names of the GPUs that no other run uses; None if all are such."""
        own = {place.lease for held in self._held.values() for place in held.places}
        theirs = set(map(gpu_of, set(self._folder.leased()) - own))
        names = [device.name for device in self._devices if device.lease not in theirs]
        return None if len(names) == len(self._devices) else names

    def need(self, least: int, parts: int) -> None:
        """Note how many slots a GPU has from now on, and how many the smallest trial needs: a share
        below that is of no use.
        """
        most = self._run.most // self._run.parts * parts
        if not self._is_reported:
            self.share = most
        least = max(1, min(least, most))
        self._run = replace(self._run, parts=parts, most=most, least=least)
        self._own.write(self._run)

    def close(self) -> None:
        """Leave the machine; leases that attempts still have end with this process."""
        self._own.close()
        self._keeper.close()
        self._folder.close()

    def _see_others(self) -> None:
        """Look at the other runs; report the share if it has changed: at least one slot, counted as
        if this run wanted all that it can use, in the smallest slots of them all.
        """
        others = [run for run in self._folder.runs() if _key(run) != _key(self._run)]
        if self._devices[0] in cpu_slots(1):
            # The highest count of CPU slots is right.
            theirs = [sum(name.startswith("slot-") for name in run.pool) for run in others]
            self._devices = cpu_slots(max([self._run.most // self._run.parts, *theirs]))
        pool = {device.lease for device in self._devices}
        rivals = [run for run in others if pool & pools([run])]
        share, why = self._run.most, "no other run is here any more"
        if rivals:
            total = len(pool | pools(rivals))
            ranked = sorted([replace(self._run, wants=self._run.most), *rivals], key=_key)
            fine = max(run.parts for run in ranked)
            units = [fine // run.parts for run in ranked]  # of each run's slots
            claims = [
                Claim(str(at), run.wants * unit, run.weight, run.least * unit)
                for at, (run, unit) in enumerate(zip(ranked, units))
            ]
            own = next(at for at, run in enumerate(ranked) if _key(run) == _key(self._run))
            share = max(1, fair_shares(total * fine, claims)[str(own)] // units[own])
            names = [f"{run.run} of {run.user} (weight {run.weight:g})" for run in rivals]
            what = "1 GPU is" if total == 1 else f"{total} GPUs are"
            why = f"{what} shared with {', '.join(names)}"
        if share != self.share:
            self.share, self._is_reported = share, True
            self._report([Shared(0, clock.now(), share, why)])
        self._report_waits()

    def _room(self) -> int:
        """Return how many more slots this run may use."""
        return self.share - sum(held.slots for held in self._held.values())

    def _serve(self) -> None:
        for request in list(self._waiting):
            fits = len(request.slots) <= self._room()
            leased = self._leased(request.slots) if fits else None
            if leased is not None:
                self._waiting.remove(request)
                self._hand_over(request, leased)
        self._write_use()

    def _hand_over(self, request: _Request, leased: dict[_Place, list[int]]) -> None:
        leases = [lease for some in leased.values() for lease in some]
        try:
            self._keeper.hold(request.attempt, leases)
        except OSError as error:
            free(leases)
            request.answer.set_exception(error)
        else:
            gpus = sorted({slot // self._run.parts for slot in request.slots})
            devices = dict(zip(gpus, (place.device for place in leased)))
            own = (devices, list(leased), len(request.slots), leases)
            self._held[request.attempt] = _Holding(*own, time.time())
            request.answer.set_result(None)

    def _leased(self, slots: Sequence[int]) -> Optional[dict[_Place, list[int]]]:
        parts, every = self._run.parts, self._devices
        gpus, count = sorted({slot // parts for slot in slots}), len(slots)
        if count % parts:
            return self._first_leased(count, self._parts(gpus[0], [slot % parts for slot in slots]))
        choices = self._choices(gpus, [_Place(device) for device in every])
        return self._first_leased(len(gpus), choices)

    def _first_leased(
        self, count: int, choices: Iterable[Sequence[_Place]]
    ) -> Optional[dict[_Place, list[int]]]:
        """Lease so many places of the first choice that has them; None if none has."""
        for some in choices:
            got: dict[_Place, list[int]] = {}
            for at, place in enumerate(some):
                lacking = count - len(got)
                if not 0 < lacking <= len(some) - at:
                    break
                leases = self._folder.lease_part(place.device.lease, place.part, place.parts)
                if leases is not None:
                    got[place] = leases
            if len(got) == count:
                return got
            free(lease for leases in got.values() for lease in leases)
        return None

    def _choices(self, numbers: Sequence[int], every: Sequence[_Place]) -> Iterator[list[_Place]]:
        """Yield places, the best choice first: of the same numbers, aligned neighbours, any."""
        count = len(numbers)
        yield [every[number] for number in numbers if number < len(every)]
        yield from (list(every[at : at + count]) for at in range(0, len(every) - count + 1, count))
        yield list(every)

    def _parts(self, gpu: int, numbers: Sequence[int]) -> Iterator[list[_Place]]:
        """Yield parts of one GPU: of that with this number, of those on which the run has parts
        already, so that whole ones stay free, then of others.
        """
        parts, every = self._run.parts, self._devices
        mine = {device for held in self._held.values() for device in held.devices.values()}
        ranks = {device: (at != gpu, device not in mine) for at, device in enumerate(every)}
        for device in sorted(every, key=lambda device: ranks[device]):
            yield from self._choices(numbers, [_Place(device, n, parts) for n in range(parts)])

    def _write_use(self) -> None:
        uses = {
            place.lease: Use(attempt, held.since)
            for attempt, held in self._held.items()
            for place in held.places
        }
        now, used = self._now(), sum(held.slots for held in self._held.values())
        demand = used + sum(len(request.slots) for request in self._waiting)
        if demand >= self._peak or now - self._peak_at > IDLE_S:
            self._peak, self._peak_at = demand, now
        # A run that has used its share lately wants all that it could use.
        wants = self._run.most if self._peak >= self.share else self._peak
        pool = [device.lease for device in self._devices]
        changed = replace(self._run, wants=wants, pool=pool, uses=uses)
        if changed != self._run:
            self._run = changed
            self._own.write(changed)

    def _report_waits(self) -> None:
        late = [wait for wait in self._waiting if self._now() - wait.reported_at > wait.pause_s]
        if late:
            held = self._folder.holders(self._folder.runs(dead=True))
            pool = {device.lease for device in self._devices}
            rest = {lease: run for lease, run in held.items() if _key(run) != _key(self._run)}
            why = shown(
                {name: run for name, run in rest.items() if gpu_of(name) in pool}, self._folder
            )
        for request in late:
            request.reported_at = self._now()
            request.pause_s = min(2 * request.pause_s, LONGEST_PAUSE_S)
            trial, _, attempt = request.attempt.rpartition("/")
            self._report([Complained(0, clock.now(), trial, int(attempt), "waits", why)])


def shared(
    run: RunHere, own: list[Device], was: Optional[int], report: Callable[[list[Fact]], None]
) -> Optional[SharedGpus]:
    """Return a machine's GPUs as shared ones; None, and a note, without a place for leases."""
    try:
        return SharedGpus(run, own, was, report)
    except (LeaseFolderError, OSError) as error:
        why = f"other runs on this machine are not seen, and do not see this one: {error}"
        report([Noticed(0, clock.now(), "cold", None, why)])
        return None


def shown(held: dict[str, Optional[RunHere]], folder: LeaseFolder) -> str:
    """Say who has which GPUs, and what to do if it is no run."""
    names: dict[str, list[str]] = {}
    for lease, run in held.items():
        who = f"a process that is no run of seerd, and that `fuser -v {folder.path}/*` names,"
        if run is not None:
            dead = "" if run.lives else ", whose agent has died,"
            who = f"the run {run.run} of {run.user}{dead}"
        names.setdefault(who, []).append(lease)
    parts = [f"{who} has {leases_text(leases)}" for who, leases in names.items()]
    return "; ".join(parts) or "they are about to be free"


def _key(run: Optional[RunHere]) -> tuple[float, str]:
    """Return what tells one run's stay from others, sorted by their arrival."""
    return (0.0, "") if run is None else (run.since, run.run)
