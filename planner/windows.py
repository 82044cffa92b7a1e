"""The windows into which SEER+ divides the time of a cluster whose size stays the same: of equal
length, but for the first and the last one, and one more than there are rungs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from seerd.planner.fixed_cluster import FixedCluster
from seerd.planner.model import PolicyParams, Problem, TrialView, Tried, View
from seerd.planner.surrogate import normal_scores

FIRST, LAST = 2.0, 0.7  # lengths of the first and of the last window, relative to the others
LOOK = 2  # reports until trials are first compared, unless fewer say as much
STABLE = 0.6  # least correlation of ranks at which the first report says as much as the second
PAIRS = 6  # trials that must have made two reports before their ranks are believed
FINALISTS = 4
PARTS = 3  # in each of so many parts of the last window there are half as many finalists


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a run."""

    start_s: float  # when the first one begins, seconds since the run began
    end_s: float  # when the last one ends, seconds since the run began
    rungs: tuple[int, ...]  # reports of each rung, ascending

    @property
    def last(self) -> int:
        """The last window's number, from 0."""
        return len(self.rungs)

    def at(self, now_s: float) -> int:
        """Return the number of the window at a moment."""
        return sum(now_s >= self.ends_s(number) for number in range(self.last))

    def ends_s(self, number: int) -> float:
        """Return when a window ends, seconds since the run began."""
        if number == self.last:
            return self.end_s
        each_s = (self.end_s - self.start_s) / (FIRST + (self.last - 1) + LAST)
        return self.start_s + each_s * (FIRST + number)

    def finalists(self, now_s: float) -> int:
        """Return how many trials share the GPUs at a moment of the last window."""
        return max(1, FINALISTS >> self._part(now_s))

    def changes_s(self, now_s: float) -> float:
        """Return when the window at a moment, or its part, ends, seconds since the run began."""
        number = self.at(now_s)
        if number < self.last:
            return self.ends_s(number)
        return self._part_ends_s(min(PARTS - 1, self._part(now_s)))

    def _part(self, now_s: float) -> int:
        return sum(now_s >= self._part_ends_s(part) for part in range(PARTS))

    def _part_ends_s(self, part: int) -> float:
        begins_s = self.ends_s(self.last - 1)
        return begins_s + (part + 1) * (self.end_s - begins_s) / PARTS

    def level(self, trial: TrialView) -> int:
        """Return how many rungs a trial has come to."""
        return bisect_right(self.rungs, trial.reports)


def windows_of(
    problem: Problem, cluster: FixedCluster, look: int, report_s: float | None, longest: int | None
) -> Windows:
    """Divide the time.

    look      reports until trials are first compared
    report_s  seconds of a report on one GPU; None: not known yet, so that there is one rung
    longest   reports of the longest training that has ended, or `max_reports`; None: not known
    """
    eta, total_s = problem.params.eta, cluster.end_s - cluster.start_s
    speed = problem.scaling.speed(min(2, cluster.gpus))
    reports = look if report_s is None else total_s / report_s * speed
    if longest is not None:
        reports = min(reports, longest)
    count = max(1, math.floor(math.log(max(1.0, reports / look), eta) + 1e-9))
    rungs = tuple(round(look * eta**number) for number in range(count))
    return Windows(cluster.start_s, cluster.end_s, rungs)


def first_look(params: PolicyParams, view: View) -> int:
    """Return after how many reports trials are first compared."""
    if params.min_reports is not None:
        return params.min_reports
    sign = 1.0 if view.mode == "max" else -1.0
    pairs = []
    trials: Sequence[Tried] = (*params.earlier, *view.trials.values())
    for trial in trials:
        early = [(r.reports, r.metric) for r in trial.history[:2] if r.metric is not None]
        if [reports for reports, _ in early] == [1, 2]:
            pairs.append([sign * metric for _, metric in early])
        if len(pairs) == 20:
            break
    if len(pairs) < PAIRS:
        return LOOK
    first, second = (normal_scores([pair[i] for pair in pairs]) for i in (0, 1))
    spread = math.sqrt(float((first @ first) * (second @ second)))
    return 1 if spread > 0 and float(first @ second) / spread >= STABLE else LOOK
