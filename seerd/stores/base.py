"""What the daemon needs of any store of checkpoints. A checkpoint exists when its manifest does,
and is used only if its bytes have the checksum that was confirmed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from seerd.agent.manifest import CheckpointError, Manifest

if TYPE_CHECKING:
    from seerd.agent.protocol import Ask, Download, Grant, Parts


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that cannot be done with a store."""

    what: str  # the cause, for a person
    action: str = ""  # the permission that is missing; empty if the cause is another one
    said: str = ""  # the store's own words; empty: it has said nothing


class Store(Protocol):
    """A checkpoint store: one folder per trial, with `NAME.pt` and, written last, the manifest
    `NAME.json` for each checkpoint. Methods raise `StoreError`.
    """

    @property
    def address(self) -> str:
        """The directory for agents; empty if they need presigned URLs."""

    def prolong(self, expires: float) -> None:
        """Make grants from now on last until then, wall clock, seconds since 1970."""

    async def open(self) -> None:
        """Check that the store can be used; the first call of all."""

    async def time(self) -> float | None:
        """Return the time by the store's clock, seconds since 1970; None if it has none."""

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        """Return URLs with which an attempt can write its next checkpoints, from number `first`
        (from 1) on, and read `checkpoints`: number n is called `slot_name(attempt, n)`. Return None
        if agents need no URLs.
        """

    async def parts(self, ask: Ask) -> Parts:
        """Return what a multipart upload needs; no `urls` if it is impossible. Raises nothing."""

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        """Delete the trial's checkpoints that are not among `names` and no longer needed, unless
        agents do that themselves. Newer ones stay.
        """

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Manifest]:
        """Return the manifests of this attempt's checkpoints after `newest` (empty: all), oldest
        first, each with the checkpoint's name in the store. Other files are skipped.
        """

    async def set_aside(self, known: Container[str]) -> dict[str, float]:
        """Move away checkpoints of trials other than these, whose names new trials may get. Return
        of which trials -> when the last one was made, in seconds since 1970.
        """

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        """Copy a checkpoint to the file `to`, which appears only when it is whole."""

    async def manifest(self, trial: str, name: str) -> Manifest:
        """Return the manifest of a checkpoint."""

    def place(self, trial: str, name: str) -> str:
        """Return where a checkpoint's bytes are: a path, or an address in S3."""

    async def close(self) -> None:
        """Close all connections."""


class DataStore(Store, Protocol):
    """A store that can also hold what trials read."""

    async def downloads(self, source: str, to: str) -> list[Download]:
        """Return every object below an address, or the one that it names, with URLs to fetch them
        into the folder `to`. Raises `StoreError` if there is none.
        """


def slot_name(attempt: int, number: int) -> str:
    """Return the name under which an attempt stores its checkpoint of this number (from 1)."""
    return f"{attempt:04d}-{number:06d}"


def slot_number(name: str) -> int:
    """Return the number in a name that `slot_name` has made; 0 for any other name."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) <= LONGEST_NUMBER else 0


LONGEST_NUMBER = 15  # most digits that the number in a name may have


def stored(name: str, raw: bytes) -> Manifest | None:
    """Parse the manifest of the checkpoint with this name in the store; None if it is invalid."""
    try:
        return replace(Manifest.parse(raw), name=name)
    except CheckpointError:
        return None
