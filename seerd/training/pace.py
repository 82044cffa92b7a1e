"""How long units of work and saves take."""

import time
from dataclasses import dataclass
from typing import Optional

SAVE_SHARE = 20
"""A checkpoint is written again at the earliest after so many times what the last one took: at most
5% of the time goes into saving.
"""


@dataclass
class Pace:
    """Times of this rank, in seconds of the monotonic clock.

    looked_at   when `running()` last returned; None before its first return
    longest_s   the longest unit of work since the last report
    saved_at    when the last save ended; `save_s`: how long it took
    """

    looked_at: Optional[float] = None
    longest_s: float = 0.0
    saved_at: Optional[float] = None
    save_s: float = 0.0

    def look(self) -> None:
        """Note the end of a call of `running()`."""
        self.looked_at = time.monotonic()

    def longest_unit(self) -> float:
        """Give the seconds of the longest unit since the last report, and begin anew."""
        self._measure()
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def save_due(self, every_s: float) -> bool:
        """Tell whether enough time has passed; there is always a save after the first report."""
        self._measure()
        if self.saved_at is None:
            return True
        return time.monotonic() - self.saved_at >= max(every_s, SAVE_SHARE * self.save_s)

    def saved(self, began: float) -> float:
        """Note a save that began then and ends now; the seconds that it took."""
        self.saved_at = time.monotonic()
        self.save_s = self.saved_at - began
        return self.save_s

    def _measure(self) -> None:
        """Count the unit of work that is under way."""
        if self.looked_at is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self.looked_at)
