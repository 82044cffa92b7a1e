"""What the daemon needs of any store of checkpoints: agents write there, the daemon reads.

The one rule: a checkpoint exists when its manifest does, and is used only if its bytes have the
checksum that was confirmed. Failures are `errors.StoreError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from seerd.agent.manifest import CheckpointError, Manifest
from seerd.agent.protocol import Ask, Grant, Parts


class Store(Protocol):
    """One folder per trial, in it `NAME.pt` and, written last, `NAME.json` for each checkpoint."""

    @property
    def address(self) -> str:
        """Where agents find it: a directory, or nothing, if they get there by grants alone."""

    async def open(self) -> None:
        """Before anything else; raises `StoreError` if it cannot be used."""

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        """What an attempt needs to put its checkpoints number `first` (from 1) and a few more, and
        to get these; None if agents need no grant.

        The n-th checkpoint of an attempt is called `slot_name(attempt, n)`.
        """

    async def parts(self, ask: Ask) -> Parts:
        """What an agent needs to put large bytes in parts. No `urls` if that cannot be had: never
        an error.
        """

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        """Only these checkpoints of the trial are needed any more; where agents see to that
        themselves, nothing is done.
        """

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Manifest]:
        """What this attempt has put there behind the checkpoint `newest` (empty: all), oldest
        first.

        Each under its name in the store; what is no checkpoint is passed over.
        """

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        """Copy a checkpoint to the file `to`, which appears only when it is whole and has this
        checksum.
        """

    async def close(self) -> None:
        """Let go of connections."""


def slot_name(attempt: int, number: int) -> str:
    """The name under which an attempt puts its checkpoint of this number (from 1)."""
    return f"{attempt:04d}-{number:06d}"


def slot_number(name: str) -> int:
    """The number in such a name; 0 for any other."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) <= LONGEST_NUMBER else 0


LONGEST_NUMBER = 15
"""Digits of a number in a name."""


def stored(name: str, raw: bytes) -> Manifest | None:
    """The manifest of the checkpoint that the store has under this name; None if it is none."""
    try:
        return replace(Manifest.parse(raw), name=name)
    except CheckpointError:
        return None
