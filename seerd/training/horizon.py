"""How much of the expected training is over. The daemon says when the run must end, and the spec
may say how many reports a whole training has; whichever comes first is the end.
"""

import math
import time
from typing import Optional, Tuple

from seerd.training.attempt import Attempt, since_boot

LOOK_S = 1.0  # seconds after which the agent's file is read again


class Horizon:
    """Progress and remaining time at the last call of `running()`, the same on every rank."""

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

    def restore(self, progress: float, trained_s: float) -> None:
        """Go on from what a checkpoint says."""
        self.progress, self.trained_s = progress, trained_s

    def look(self, unit_s: float, reports: int) -> Tuple[float, float]:
        """Return (progress, remaining_s) after a unit of work of `unit_s` seconds, as this rank
        sees it.
        """
        self.trained_s += unit_s
        remaining_s = self._remaining_s()
        whole_s = self.trained_s + remaining_s
        by_time = self.trained_s / whole_s if 0.0 < whole_s < math.inf else 0.0
        by_reports = reports / self._max_reports if self._max_reports else 0.0
        return max(self.progress, min(1.0, max(by_time, by_reports))), remaining_s

    def agree(self, progress: float, remaining_s: float) -> None:
        """Note what rank 0 knows."""
        self.progress, self.remaining_s = progress, remaining_s

    def _remaining_s(self) -> float:
        if self._attempt is not None and time.monotonic() - self._looked_at >= LOOK_S:
            self._ends_at, self._looked_at = self._attempt.ends_at(), time.monotonic()
        return math.inf if self._ends_at is None else max(0.0, self._ends_at - since_boot())
