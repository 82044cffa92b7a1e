"""How long units of work and saves take, and how much of the training is over."""

import math
import time
from dataclasses import dataclass
from typing import Optional, Tuple

from seerd.training.attempt import Attempt, since_boot

# saves are at least so many times their own pause apart: training waits for at most 5% of the time
SAVE_SHARE = 20
# least seconds between checkpoints of better models: the store takes its time, too
BEST_EVERY_S = 1.0

LOOK_S = 1.0  # seconds after which the agent's file is read again


@dataclass
class Pace:
    """Times of this rank, in seconds of the monotonic clock."""

    looked_at: Optional[float] = None  # when `running()` last returned; None: it has not
    longest_s: float = 0.0  # seconds of the longest unit of work since the last report
    saved_at: Optional[float] = None  # when the last save ended; None before the first
    pause_s: float = 0.0  # seconds for which training waited for the last save
    write_s: float = 0.0  # seconds that writing it took
    best: Optional[float] = None  # worth of the best state that was copied (`Comparison.worth`)

    def unit_s(self) -> float:
        """Return the seconds since `running()` last returned; 0 before its first return."""
        return 0.0 if self.looked_at is None else time.monotonic() - self.looked_at

    def longest_unit(self) -> float:
        """Return the seconds of the longest unit since the last report, and begin anew."""
        self._measure()
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def save_due(self, every_s: float) -> bool:
        """Return whether to save: before the first save, then at most every `every_s` seconds."""
        self._measure()
        return self.rest_s(every_s) <= 0

    def rest_s(self, every_s: float) -> float:
        """Return in how many seconds the next save may be written. It begins no sooner after the
        last one than that took, since the disk and the store are not the trial's alone.
        """
        if self.saved_at is None:
            return 0.0
        apart_s = max(every_s, SAVE_SHARE * self.pause_s, self.write_s)
        return self.saved_at + apart_s - time.monotonic()

    def is_better(self, worth: Optional[float]) -> bool:
        """Return whether a model is better than every state that was copied."""
        return worth is not None and (self.best is None or worth > self.best)

    def copied(self, worth: Optional[float]) -> None:
        """Note that the state of a model is copied, or written."""
        self.best = worth if self.is_better(worth) else self.best

    def saved(self, pause_s: float, write_s: float) -> None:
        """Note a save that ends now."""
        self.saved_at, self.pause_s, self.write_s = time.monotonic(), pause_s, write_s

    def _measure(self) -> None:
        """Count the unit of work that is under way."""
        if self.looked_at is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self.looked_at)


class Horizon:
    """Progress and remaining time at the last call of `running()`, the same on every rank.

    The daemon says when the run must end, and the spec may say how many reports a whole training
    has; whichever comes first is the end.
    """

    def __init__(self, attempt: Optional[Attempt], max_reports: Optional[int]) -> None:
        # progress: from 0 to 1, 0.0 if nothing is known. It never goes back, but for a trial that
        # goes on from an older checkpoint
        # remaining_s: seconds until this trial must leave at the latest; infinite: not known
        # trained_s: seconds that units of work have taken, over all attempts
        self.progress, self.remaining_s, self.trained_s = 0.0, math.inf, 0.0
        self._attempt = attempt
        self._max_reports = max_reports
        self._ends_at: Optional[float] = None
        self._looked_at = -math.inf

    def look(self, unit_s: float, reports: int) -> Tuple[float, float]:
        """Return (progress, remaining_s) after a unit of work, as this rank sees it."""
        self.trained_s += unit_s
        if self._attempt is not None and time.monotonic() - self._looked_at >= LOOK_S:
            self._ends_at, self._looked_at = self._attempt.ends_at(), time.monotonic()
        ends_at = self._ends_at
        remaining_s = math.inf if ends_at is None else max(0.0, ends_at - since_boot())
        whole_s = self.trained_s + remaining_s
        by_time = self.trained_s / whole_s if 0.0 < whole_s < math.inf else 0.0
        by_reports = reports / self._max_reports if self._max_reports else 0.0
        return max(self.progress, min(1.0, max(by_time, by_reports))), remaining_s
