"""Spot pools that have taken an instance back: for half an hour no run of this home asks there
while there are other places, since a pool that is short stays short for a while
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-best-practices.html).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from seerd.clock import wall

REST_S = 1800.0


class Rests:
    """An empty file for each pool, changed when it last took an instance back. `folder` may not be
    there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, type_: str, zone: str) -> None:
        """Have this pool rest; without a file it does not."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{type_}-{zone}").touch()

    def rests(self, type_: str, zone: str) -> bool:
        """Return whether this pool rests now."""
        with contextlib.suppress(OSError):
            since = (self._folder / f"{type_}-{zone}").stat().st_mtime
            return 0.0 <= wall() - since < REST_S
        return False
