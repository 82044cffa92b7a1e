"""What the trials of a run have shown of how long units of work, saves and ends take. What is set
aside for its end follows from that (`rules.least_grace_s`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

NEWEST = 1 / 8  # weight of the newest time: a first start may be slow, and a machine may become so
LASTS = 3  # a unit of work counts for so many times its own seconds


@dataclass(slots=True)
class Durations:
    """Mean and spread of how long something takes, in seconds."""

    count: int = 0  # how many were seen
    mean_s: float = 0.0
    variance: float = 0.0

    def above_s(self, deviations: float) -> float:
        """Return the seconds that hardly any of them exceeds, so many deviations above the mean."""
        return self.mean_s + deviations * self.deviation_s

    @property
    def deviation_s(self) -> float:
        """Their standard deviation."""
        return math.sqrt(self.variance)

    def add(self, seconds: float) -> None:
        """Count one more; the newest count most."""
        self.count += 1
        share = max(NEWEST, 1 / self.count)
        off_s = seconds - self.mean_s
        self.mean_s += share * off_s
        self.variance = (1 - share) * (self.variance + share * off_s * off_s)


@dataclass(slots=True)
class Seen:
    """How long units of work, saves and ends of trials have taken, and news of ends."""

    # from when a trial was asked to save and exit, or from the report that it made then, until the
    # core knew that it had
    ends: Durations = field(default_factory=Durations)
    # from the moment at which one had to be killed until the core knew that nothing of it was left
    kills: Durations = field(default_factory=Durations)
    news: Durations = field(default_factory=Durations)  # from an attempt's end until the core knew
    saves: Durations = field(default_factory=Durations)  # until a checkpoint was in the store
    # units of work that no later one has exceeded, the slowest first: until when each counts, in
    # seconds since the run began, and its seconds
    units: list[tuple[float, float]] = field(default_factory=list)

    @property
    def unit_s(self) -> float:
        """Seconds of the slowest unit of work of late; 0 if there was none."""
        return self.units[0][1] if self.units else 0.0

    def add_unit(self, seconds: float, now_s: float) -> None:
        """Count a unit of work that has just ended."""
        while self.units and self.units[-1][1] <= seconds:
            self.units.pop()
        self.units.append((now_s + LASTS * seconds, seconds))
        while self.units[0][0] < now_s:
            del self.units[0]
