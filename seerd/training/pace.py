"""How long units of work and saves take."""

import time
from dataclasses import dataclass
from typing import Optional

# saves are at least this many times their own seconds apart: they take at most 5% of the time
SAVE_SHARE = 20
# least seconds between checkpoints of better models: the store takes its time, too
BEST_EVERY_S = 1.0


@dataclass
class Pace:
    """Times of this rank, in seconds of the monotonic clock."""

    looked_at: Optional[float] = None  # when `running()` last returned; None: it has not
    longest_s: float = 0.0  # seconds of the longest unit of work since the last report
    saved_at: Optional[float] = None  # when the last save ended; None before the first
    save_s: float = 0.0  # seconds that the last save took

    def look(self) -> None:
        """Note the end of a call of `running()`."""
        self.looked_at = time.monotonic()

    def unit_s(self) -> float:
        """Return the seconds since `running()` last returned; 0 before its first return."""
        return 0.0 if self.looked_at is None else time.monotonic() - self.looked_at

    def longest_unit(self) -> float:
        """Return the seconds of the longest unit since the last report, and begin anew."""
        self._measure()
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def save_due(self, every_s: float) -> bool:
        """Return whether to save: always before the first save, then at most every `every_s`
        seconds.
        """
        self._measure()
        if self.saved_at is None:
            return True
        return time.monotonic() - self.saved_at >= max(every_s, SAVE_SHARE * self.save_s)

    def best_due(self) -> bool:
        """Return whether to save a model that is better than every saved one."""
        return self.save_due(BEST_EVERY_S)

    def saved(self, began: float) -> float:
        """Note a save that began at `began` and ends now; return the seconds that it took."""
        self.saved_at = time.monotonic()
        self.save_s = self.saved_at - began
        return self.save_s

    def _measure(self) -> None:
        """Count the unit of work that is under way."""
        if self.looked_at is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self.looked_at)
