"""One question to SEER+, and what has been decided of the answer so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seerd.planner.asha import sizes
from seerd.planner.fixed_cluster import FixedCluster
from seerd.planner.model import Allocation, Mode, NewTrial, Problem, TrialView, Tried, View
from seerd.planner.narrowing import ElasticRound
from seerd.planner.ranking import RankKey, standing_at
from seerd.planner.turns import SearchMemory
from seerd.planner.windows import Windows

PATIENCE = 5  # reports after which a trial may be found to have stopped improving
WORTH = 1.1  # least times as far as before that a trial must get with more GPUs, to be given them


@dataclass(slots=True)
class PlanDraft:
    """One question, and what has been decided of the answer so far."""

    problem: Problem  # what is planned for
    cluster: FixedCluster  # the GPUs of the present moment
    view: View  # what the policy was shown
    search: SearchMemory  # what it remembers
    windows: Windows  # how the time is divided
    stage: int = 0  # the number of the round, from 0
    round: ElasticRound | None = None  # the round of rented GPUs; None: windows of one cluster
    # which trials train, with how many GPUs and until how many reports
    allocations: dict[str, Allocation] = field(default_factory=dict)
    new: list[NewTrial] = field(default_factory=list)  # configurations that are asked for
    out: list[str] = field(default_factory=list)  # trials that are out for good

    @property
    def number(self) -> int:
        """The window."""
        return self.windows.at(self.view.now_s)

    @property
    def ends_soon(self) -> bool:
        """Whether a trial that begins now makes no report before the window ends."""
        now_s, report_s = self.view.now_s, self.search.report_s or 0.0
        return self.windows.changes_s(now_s) < now_s + self.search.start_s + report_s

    @property
    def free(self) -> int:
        """GPUs that no trial has."""
        return self.cluster.gpus - sum(a.gpus for a in self.allocations.values())

    def runnable(self) -> Iterator[TrialView]:
        """Yield the trials that may train on."""
        most = self.problem.params.max_reports or math.inf
        for trial in self.view.trials.values():
            if trial.status == "live" and not diverged(trial) and trial.reports < most:
                yield trial

    def standing(self, trial: TrialView, level: int) -> RankKey:
        """Return how a trial stands at the rung of a level, from 1; level 0: by what it has."""
        reports = self.windows.rungs[level - 1] if level else trial.reports
        return standing_at(trial, reports, self.view.mode)

    def settled(self, trial: TrialView) -> bool:
        """Return whether a trial has stopped improving."""
        return settled(trial, self.view.mode)

    def best_first(self, trial: TrialView) -> tuple[int, RankKey]:
        """Order trials by the rung that they have come to, the highest first, then by standing."""
        level = self.windows.level(trial)
        return -level, self.standing(trial, level)

    def arrived(self, level: int) -> list[TrialView]:
        """List the trials that have come to the rung of a level, best first."""
        rung = self.windows.rungs[level - 1]
        trials = (t for t in self.view.trials.values() if t.reports >= rung)
        return sorted(trials, key=lambda trial: self.standing(trial, level))

    def share(self, ordered: Sequence[TrialView], finalists: int) -> None:
        """Let the best of `ordered` share the GPUs, where worth a restart; then the next ones."""
        size = self.problem.params.p_min
        chosen = ordered[: min(finalists, self.free // size)]
        spare = self.free - size * len(chosen)
        for trial in chosen:
            most = size + spare
            if len(chosen) > 1:
                most = min(most, max(size, self.problem.gpus_per_instance))
            gpus = self._worth(trial, most)
            spare -= gpus - size
            self.allocate(trial, gpus, None)
        for trial in ordered[len(chosen) :]:
            if size > self.free:
                return
            self.allocate(trial, size, None)

    def _worth(self, trial: TrialView, most: int) -> int:
        """Return the GPUs with which a trial gets furthest, a restart included."""
        speed, left_s = self.problem.scaling.speed, self.windows.end_s - self.view.now_s
        turn, start_s = self.search.turns.get(trial.id), self.search.start_s
        allowed = [gpus for gpus in sizes(self.problem, self.cluster.gpus) if gpus <= most]
        best = turn.gpus if turn is not None and turn.gpus in allowed else allowed[0]
        trained_s = left_s if turn is not None else left_s - start_s
        for gpus in allowed:
            if gpus > best and speed(gpus) * (left_s - start_s) > WORTH * speed(best) * trained_s:
                best, trained_s = gpus, left_s - start_s
        return best

    def allocate(self, trial: TrialView, gpus: int, until: int | None) -> None:
        """Let a trial train, but not beyond `max_reports`."""
        most = self.problem.params.max_reports
        if most is not None:
            until = most if until is None else min(most, until)
        self.allocations[trial.id] = Allocation(trial.id, gpus, 0, until)


def diverged(trial: TrialView) -> bool:
    """Return whether a trial's last report is not finite."""
    return trial.reports > 0 and trial.metric is None


def settled(trial: Tried, mode: Mode) -> bool:
    """Return whether none of the later half of its reports is better than the best before."""
    count = trial.history[-1].reports if trial.history else 0
    if count < PATIENCE:
        return False
    sign = 1.0 if mode == "max" else -1.0
    early = late = -math.inf
    for report in trial.history:
        value = -math.inf if report.metric is None else sign * report.metric
        if 2 * report.reports <= count:
            early = max(early, value)
        else:
            late = max(late, value)
    return late <= early
