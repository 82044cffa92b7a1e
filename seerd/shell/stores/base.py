"""What the daemon needs of any store of checkpoints: agents write there, the daemon reads.

The one rule: a checkpoint exists when its manifest does, and is used only if its bytes have the checksum that was confirmed.
Failures are `errors.StoreError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """One folder per trial, in it `NAME.pt` and, written last, `NAME.json` for each checkpoint."""

    @property
    def address(self) -> str:
        """Where agents find it."""

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        """Copy a checkpoint to the file `to`, which appears only when it is whole and has this checksum."""
