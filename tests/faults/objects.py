"""The store of checkpoints: what agents have put there, as the daemon and other agents find it.

The one rule: a checkpoint is there when its manifest is; bytes alone are not a checkpoint. What was
put once is changed by `keep` alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from seerd.agent.manifest import Manifest
from seerd.agent.protocol import Ask, Grant, Parts, Slot
from seerd.errors import StoreError
from seerd.stores.base import slot_name, slot_number
from tests.faults.timeline import Timeline
from tests.faults.weather import Chance

GRANTED = 3


@dataclass(frozen=True, slots=True)
class Model:
    """What a trial has learned: whose it is, after how many reports, how good."""

    trial: str
    reports: int
    metric: float | None

    def content(self) -> bytes:
        """The bytes of its checkpoint."""
        return json.dumps([self.trial, self.reports, self.metric]).encode()

    @property
    def sha256(self) -> str:
        """Of these bytes."""
        return hashlib.sha256(self.content()).hexdigest()


class Objects:
    """All of the run's. `bytes_only`: put, and not named by a manifest yet, or never."""

    def __init__(self) -> None:
        self.whole: dict[tuple[str, str], Model] = {}
        self.bytes_only: dict[tuple[str, str], Model] = {}

    def put_bytes(self, trial: str, name: str, model: Model) -> None:
        """The bytes are there."""
        self.bytes_only[trial, name] = model

    def put_manifest(self, trial: str, name: str) -> None:
        """The checkpoint exists, unless its bytes have been deleted meanwhile: those of an attempt
        that is over, and came late.
        """
        if (trial, name) in self.bytes_only:
            self.whole[trial, name] = self.bytes_only.pop((trial, name))

    def newest(self, trial: str, names: Sequence[str]) -> Model | None:
        """The first of these that can be restored."""
        return next(
            (self.whole[trial, name] for name in names if (trial, name) in self.whole), None
        )


class VirtualStore:
    """The daemon's way to it: `seerd.stores.base.Store`."""

    def __init__(self, objects: Objects, timeline: Timeline, chance: Chance) -> None:
        self._objects = objects
        self._timeline = timeline
        self._chance = chance

    @property
    def address(self) -> str:
        """Agents need grants."""
        return ""

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def time(self) -> None:
        """It does not tell."""

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant:
        """Places for the next checkpoints. Fails without credentials."""
        await self._trip("grants")
        puts = [slot(slot_name(attempt, number)) for number in range(first, first + GRANTED)]
        return Grant(trial, attempt, puts, [slot(name) for name in checkpoints])

    async def parts(self, ask: Ask) -> Parts:
        """Never in parts."""
        return Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        """Older ones than the newest of these are removed."""
        await self._trip("store")
        newest = max((order(name) for name in names), default=(0, 0))
        for held in (self._objects.whole, self._objects.bytes_only):
            for key in [
                k for k in held if k[0] == trial and k[1] not in names and order(k[1]) < newest
            ]:
                del held[key]

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Manifest]:
        """What this attempt has put behind that one."""
        await self._trip("store")
        later = sorted(
            name
            for owner, name in self._objects.whole
            if owner == trial and order(name)[0] == attempt and order(name) > order(newest)
        )
        return [self._stored(name, self._objects.whole[trial, name]) for name in later]

    async def set_aside(self, known: Container[str]) -> dict[str, float]:
        """Nothing: names are of one attempt. To look takes its time."""
        await asyncio.sleep(self._chance.lasts("look for others", 0.02, 3.0))
        return {}

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        """Write it, if it is there and what was confirmed."""
        await self._trip("store")
        model = self._objects.whole.get((trial, name))
        if model is None:
            raise StoreError(f"there is no checkpoint {name} of {trial}", damaged=True)
        if model.sha256 != sha256:
            raise StoreError(f"checkpoint {name} of {trial} is damaged", damaged=True)
        write(to, model.content())

    async def manifest(self, trial: str, name: str) -> Manifest:
        """What it says of itself."""
        await self._trip("store")
        model = self._objects.whole.get((trial, name))
        if model is None:
            raise StoreError(f"there is no checkpoint {name} of {trial}", damaged=True)
        return self._stored(name, model)

    def place(self, trial: str, name: str) -> str:
        """An address that nobody reads."""
        return f"{trial}/{name}"

    async def _trip(self, what: str) -> None:
        await asyncio.sleep(self._chance.lasts("store trip", 0.01, 0.5))
        if self._chance.during(f"{what} down", self._timeline.now) or self._chance.hits(
            f"{what} fails"
        ):
            raise StoreError("the store does not answer")

    @staticmethod
    def _stored(name: str, model: Model) -> Manifest:
        return Manifest(
            name, model.reports, {"accuracy": model.metric}, model.sha256, len(model.content())
        )


def write(to: Path, content: bytes) -> None:
    """A new file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(content)


def slot(name: str) -> Slot:
    """A place, with URLs that nobody reads."""
    return Slot(name, f"put {name}", f"put {name}.json")


def order(name: str) -> tuple[int, int]:
    """Attempt and number of a checkpoint's name."""
    attempt = name.partition("-")[0]
    return (int(attempt) if attempt.isdecimal() else 0, slot_number(name))
