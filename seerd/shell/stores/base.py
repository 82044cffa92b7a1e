"""What the daemon needs of any store of checkpoints: agents write there, the daemon reads.

The one rule: a checkpoint exists when its manifest does, and is used only if its bytes have the checksum that was confirmed.
Failures are `errors.StoreError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from seerd.agent.protocol import LARGEST, MOST_REPORTS, Ask, Grant, Parts


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as its manifest in the store has it. A metric that is no finite number is None."""

    name: str
    reports: int
    metrics: Mapping[str, float | None]
    sha256: str
    size: int


class Store(Protocol):
    """One folder per trial, in it `NAME.pt` and, written last, `NAME.json` for each checkpoint."""

    @property
    def address(self) -> str:
        """Where agents find it: a directory, or nothing, if they get there by grants alone."""

    async def open(self) -> None:
        """Before anything else; raises `StoreError` if it cannot be used."""

    async def grant(self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]) -> Grant | None:
        """What an attempt needs to put its checkpoints number `first` (from 1) and a few more, and to get these; None if agents need no grant.

        The n-th checkpoint of an attempt is called `slot_name(attempt, n)`.
        """

    async def parts(self, ask: Ask) -> Parts:
        """What an agent needs to put large bytes in parts. No `urls` if that cannot be had: never an error."""

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        """Only these checkpoints of the trial are needed any more; where agents see to that themselves, nothing is done."""

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Stored]:
        """What this attempt has put there behind the checkpoint `newest` (empty: all), oldest first; what is no checkpoint is passed over."""

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        """Copy a checkpoint to the file `to`, which appears only when it is whole and has this checksum."""

    async def close(self) -> None:
        """Let go of connections."""


def slot_name(attempt: int, number: int) -> str:
    """The name under which an attempt puts its checkpoint of this number (from 1)."""
    return f"{attempt:04d}-{number:06d}"


def slot_number(name: str) -> int:
    """The number in such a name; 0 for any other."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) <= LONGEST_NUMBER else 0


LARGEST_MANIFEST = 1 << 16
LONGEST_NUMBER = 15
"""Digits of a number in a name."""


class _Manifest(msgspec.Struct, rename={"reports": "epoch"}):
    reports: int
    metrics: dict[str, float | None]
    sha256: str
    size: int


def stored(name: str, manifest: bytes) -> Stored | None:
    """The checkpoint of this name in the store, None if that is no manifest: trials write them, and are not trusted."""
    try:
        told = msgspec.json.decode(manifest, type=_Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if len(manifest) > LARGEST_MANIFEST or not 0 <= told.reports <= MOST_REPORTS or not 0 <= told.size <= LARGEST:
        return None
    if any(metric is not None and not math.isfinite(metric) for metric in told.metrics.values()):
        return None
    return Stored(name, told.reports, told.metrics, told.sha256, told.size)
