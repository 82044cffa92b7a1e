"""How long reports and starts take, measured from the newest reports of trials on known GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median

from seerd.planner.model import Report

NEWEST = 15  # how many of the newest times are kept; their median counts


@dataclass(slots=True)
class MeasuredPace:
    """The newest times, as a policy remembers them."""

    heard_s: float = 0.0  # reports have been read until then, seconds since the run began
    reports_s: list[float] = field(default_factory=list)  # seconds of the newest reports on one GPU
    # seconds of the newest starts, the first report included, times the speed of their GPUs
    firsts_s: list[float] = field(default_factory=list)

    @property
    def report_s(self) -> float | None:
        """Seconds of a report on one GPU; the first counts, start included, until others come."""
        times = self.reports_s if len(self.reports_s) > 1 else self.firsts_s
        return median(times) if times else None

    @property
    def start_s(self) -> float:
        """Seconds from being given GPUs to training."""
        if not self.firsts_s or not self.reports_s:
            return 0.0
        return max(0.0, median(self.firsts_s) - median(self.reports_s))

    def note(
        self, since_s: float, history: Sequence[Report], speed: float, *, starts: bool = True
    ) -> None:
        """Note the new reports of a trial that has had GPUs of this speed since a moment; `starts`:
        whether its first report there counts.
        """
        latest_first = takewhile(lambda report: report.at_s > since_s, reversed(history))
        before = None
        for report in reversed([*latest_first]):
            at_s, count = report.at_s, report.reports
            if at_s > self.heard_s and before is None and starts:
                self.firsts_s.append((at_s - since_s) * speed)
            elif before is not None and at_s > max(self.heard_s, before[0]) and count > before[1]:
                self.reports_s.append((at_s - before[0]) / (count - before[1]) * speed)
            before = at_s, count

    def heard(self, now_s: float) -> None:
        """Note that all reports until now have been noted."""
        self.heard_s = now_s
        del self.reports_s[:-NEWEST], self.firsts_s[:-NEWEST]
