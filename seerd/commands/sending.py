"""Says how far a long upload has come.

The one rule: one line now and then, so that it can be read in a log too; what is soon over is not
told.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 10.0


class Sending:
    """An upload of so many bytes. `tell` gets a line every `EVERY_S` seconds."""

    def __init__(
        self,
        what: str,
        size: int,
        tell: Callable[[str], object],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._size = size
        self._tell = tell
        self._now_s = now_s
        self._sent = 0
        self._began_s = self._told_s = now_s()

    def sent(self, count: int) -> None:
        """Note that so many more bytes were sent."""
        self._sent += count
        now = self._now_s()
        if now - self._told_s < EVERY_S:
            return
        self._told_s = now
        left_s = (self._size - self._sent) * (now - self._began_s) / max(1, self._sent)
        self._tell(
            f"{self._what}: {self._sent / 1e6:,.0f} of {self._size / 1e6:,.0f} MB sent, "
            f"about {max(0.0, left_s):.0f}s more"
        )
