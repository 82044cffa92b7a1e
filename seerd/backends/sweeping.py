"""What runs have left behind, whatever rents it.

The one rule: nothing without seerd's tags and this owner's name is ever touched, and no journal is
needed to find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Left:
    """Something that still costs."""

    kind: Literal["instance", "volume"]  # what it is
    id: str
    run: str  # its run, from its tags
    name: str  # its name, from its tags
    hard_end: str  # when it ends by itself, from its tags
    state: str
    what: str  # its type, or its size
    age_s: float  # seconds since it was made
    usd_per_h: float | None = None  # about how many USD it costs for an hour; None: not known

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.id} ({self.what}, {self.state}) of run {self.run}, "
            f"{self.age_s / 3600.0:.1f}h old"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What runs of an owner have left behind."""

    left: list[Left]  # what still costs, the oldest first
    ending: list[str]  # ids of what is ending already, with its disks; not billed


class Sweeper(Protocol):
    """One account in one region, for what runs have left there. Raises `CloudError`."""

    @property
    def region(self) -> str:
        """Where it looks."""

    async def owner(self, patience_s: float = 60.0) -> str:
        """Return whose things these credentials are for."""

    async def find(self, owner: str) -> Found:
        """Find everything that the owner's runs have left."""

    async def find_instances(self, owner: str, patience_s: float) -> list[Left]:
        """Find only the instances that have not ended, with one question."""

    async def remove(self, left: Left) -> None:
        """End this instance or delete this volume; if it is already gone, that is a success."""
