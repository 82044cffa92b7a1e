"""HyperSched: from trying much to training the best on all GPUs as the deadline nears (Liaw et al., SoCC '19), on a fixed cluster.

The one rule: once what is left would not do for a trial that starts now, nobody starts or resumes, and freed GPUs go to those that run.

Rungs and pausing are ASHA's, in one bracket. What a paper that knows its training loop measures is estimated here from when reports came:

seconds per report   between two reports of one run of a trial, times the speed of the GPUs it had; the median
startup              from being given GPUs to the first report, less the median time of one report on so many; the 90th percentile

When nobody may start and the last running trial stands at a rung, the best of those that wait goes on: the GPUs are there until the end.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from planner.asha import AtRandom, Search, fixed_outline, places
from planner.fixed import FixedCluster, fixed_cluster
from planner.model import Allocation, Impossible, NewTrial, Outline, Plan, Problem, ReportView, TrialView, View
from planner.ranking import rank
from planner.rungs import rung_reports
from planner.scaling import Scaling

WORTH = 1.1
"""A trial is given more GPUs if it gets at least so many times as far with them."""

RESULTS_BETWEEN = 5
"""A trial is given more GPUs at most once in so many reports."""


REMEMBERED = 1000
"""So many of the latest reports and startups tell how long they take."""


@dataclass(slots=True)
class Run:
    """A trial's time on one number of GPUs.

    before_s   how long it had run before
    last       its latest report in this time; None: there is none yet
    grows_at   it may be given more GPUs when it has made so many reports
    """

    gpus: int
    since_s: float
    before_s: float
    last: ReportView | None = None
    grows_at: int = 0


class Recent:
    """The latest values of something, in order of size."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, value: float) -> None:
        """Forgets the oldest one, if there are enough."""
        if len(self._latest) == REMEMBERED:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        self._latest.append(value)
        insort(self._ordered, value)

    def at(self, share: float) -> float | None:
        """The value that this share of all do not exceed."""
        return self._ordered[math.ceil(share * len(self._ordered)) - 1] if self._ordered else None


class Pace:
    """How long things have taken so far, seconds."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._reports_s = Recent()
        self._startups_s = Recent()
        self._first: list[tuple[float, int]] = []

    @property
    def report_s(self) -> float | None:
        """Median seconds per report on one GPU; None as long as nothing is known."""
        return self._reports_s.at(0.5)

    @property
    def startup_s(self) -> float:
        """The 90th percentile; 0 as long as nothing is known."""
        return self._startups_s.at(0.9) or 0.0

    def observe(self, run: Run, trial: TrialView) -> None:
        """Take note of the reports that a run has made since it was last looked at. A trial that restarted by itself begins anew."""
        seen_s = run.since_s if run.last is None else run.last.at_s
        for report in reversed([*_since(trial, seen_s)]):
            if run.last is None:
                self._first.append((report.at_s - run.since_s, run.gpus))
            elif report.epoch > run.last.epoch:
                each_s = (report.at_s - run.last.at_s) / (report.epoch - run.last.epoch)
                self._reports_s.add(each_s * self._scaling.speed(run.gpus))
            run.last = report
        report_s = self.report_s
        while self._first and report_s is not None:
            waited_s, gpus = self._first.pop(0)
            self._startups_s.add(max(0.0, waited_s - report_s / self._scaling.speed(gpus)))


def _since(trial: TrialView, seen_s: float) -> list[ReportView]:
    """Reports after a moment, latest first."""
    found = []
    for report in reversed(trial.history):
        if report.at_s <= seen_s:
            break
        found.append(report)
    return found


def worth_starting(left_s: float, longest_s: float, pace: Pace, most_reports: int, eta: float) -> bool:
    """Whether a trial that starts or resumes now can still come to something."""
    as_long_s = (longest_s - pace.startup_s) * eta
    return left_s >= (as_long_s if pace.report_s is None else min(as_long_s, most_reports * pace.report_s))


def deal(trials: int, gpus: int, p_min: int, p_max: int, gpus_per_instance: int) -> list[int]:
    """GPUs of each trial, best first: p_min for all, then one each in turn while the instance it is on has some left.

    A trial that has a whole instance may take further ones that nobody is on.
    """
    whole, rest = divmod(gpus, gpus_per_instance)
    if p_min > gpus_per_instance:
        return [p_min] * trials
    free = [gpus_per_instance] * whole + [rest] * (rest > 0)
    dealt, home = [p_min] * trials, _homes(trials, free, p_min)
    growing = list(range(trials))
    while growing:
        growing = [i for i in growing if _grow(i, dealt, home[i], free, p_max, gpus_per_instance)]
    return dealt


def _homes(trials: int, free: list[int], p_min: int) -> list[int]:
    """An instance for each, evenly; the better a trial, the fewer it shares one with. Takes p_min from `free` for each."""
    homes: list[int] = []
    emptiest = [(-gpus, 1, node) for node, gpus in enumerate(free)]
    heapq.heapify(emptiest)
    for trial in range(trials):
        node = emptiest[0][2]
        free[node] -= p_min
        homes.append(node)
        heapq.heapreplace(emptiest, (-free[node], -trial, node))
    return homes


def _grow(trial: int, dealt: list[int], node: int, free: list[int], p_max: int, gpus_per_instance: int) -> bool:
    """Give a trial the next GPU, or the next instance. False: it can have no more."""
    if free[node] > 0 and dealt[trial] < p_max:
        free[node] -= 1
        dealt[trial] += 1
        return True
    empty = next((i for i, n in enumerate(free) if n == gpus_per_instance), None)
    if empty is None or dealt[trial] % gpus_per_instance or dealt[trial] + gpus_per_instance > p_max:
        return False
    free[empty] = 0
    dealt[trial] += gpus_per_instance
    return True


def _best_first(names: Collection[str], view: View) -> list[str]:
    """In the order of `rank`; a trial that has not started is not in the view yet, and will stand there as one without a report."""
    new = [name for name in names if name not in view.trials]
    ranked = rank((view.trials[name] for name in names if name in view.trials), view.mode)
    last = [trial.id for trial in ranked if trial.reports > 0 and trial.metric is None]
    return [*(trial.id for trial in ranked if trial.id not in last), *new, *last]


class HyperSched:
    """ASHA while there is time; then those that run share all GPUs."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._cluster = fixed_cluster(problem)
        self._rungs = rung_reports(problem.params)
        gpus = 0 if isinstance(self._cluster, Impossible) else self._cluster.gpus
        self._places = places(gpus, problem.params.p_min, problem.gpus_per_instance)
        self._search = Search(problem, (self._rungs,), self._places, AtRandom(problem))
        most = gpus if problem.params.p_max is None else min(gpus, problem.params.p_max)
        self._sizes = tuple(takewhile(lambda p: p <= most, (problem.params.p_min << doubled for doubled in range(32))))
        self._pace = Pace(problem.scaling)
        self._runs: dict[str, Run] = {}
        self._trained_s: dict[str, float] = {}
        self._longest_s = 0.0

    def outline(self) -> Outline | Impossible:
        """One stage on the whole cluster. Without a number of trials, those are counted that start at once."""
        if isinstance(self._cluster, Impossible):
            return self._cluster
        return fixed_outline(self._problem, self._cluster, (self._rungs,), self._places, self._sizes)

    def plan(self, view: View) -> Plan:
        """Who runs now. Raises `ValueError` if the limits fit nothing, which `outline` tells before."""
        cluster = self._cluster
        if isinstance(cluster, Impossible):
            raise ValueError(cluster.reason)
        if cluster.over(view.now_s):
            return Plan(done=True)
        for name, run in self._runs.items():
            self._pace.observe(run, view.trials[name])
        left_s = cluster.end_s - max(view.now_s, cluster.start_s)
        new = self._next(view, left_s)
        self._end_runs(view.now_s)
        judged = self._search.take_compared(view)
        if not self._search.running:
            return Plan(new=new, done=True, compared=judged)
        return Plan(tuple(self._allocations(view, cluster, left_s)), new, ask_at_s=cluster.ask_at_s, compared=judged)

    def _next(self, view: View, left_s: float) -> tuple[NewTrial, ...]:
        """Who runs on, resumes or starts."""
        arrivals = self._search.settle(view)
        eta = self._problem.params.eta
        if worth_starting(left_s, self._longest(view.now_s), self._pace, self._rungs[-1], eta):
            return self._search.fill(view)
        self._search.carry_on(view, arrivals)
        while self._idle(left_s) and self._search.go_on_with_the_best(view):
            pass
        return () if self._search.running else self._search.fill(view)

    def _idle(self, left_s: float) -> bool:
        """Whether there is nobody that GPUs could go to; where whole instances are paid, also if there are more than running trials can use."""
        running = self._search.running
        if not running or not self._problem.whole:
            return not running
        report_s = self._pace.report_s
        if isinstance(self._cluster, Impossible) or report_s is None or left_s < self._pace.startup_s + report_s:
            return False
        usable = sum(self._usable(name, left_s) for name in running)
        return len(running) < self._places and usable + self._problem.params.p_min <= self._cluster.gpus

    def _usable(self, name: str, left_s: float) -> int:
        """The most GPUs that are worth giving to a running trial."""
        run = self._runs.get(name)
        if run is None:
            return self._sizes[0]
        gpus = run.gpus
        return max([gpus, *(size for size in self._sizes if size > gpus and self._worth(run, size, left_s))])

    def _longest(self, now_s: float) -> float:
        """Seconds that the longest trial has run in all."""
        return max([self._longest_s, *(run.before_s + now_s - run.since_s for run in self._runs.values())])

    def _end_runs(self, now_s: float) -> None:
        for name in [name for name in self._runs if name not in self._search.running]:
            self._end_run(name, now_s)

    def _end_run(self, name: str, now_s: float) -> None:
        run = self._runs.pop(name)
        self._trained_s[name] = run.before_s + max(0.0, now_s - run.since_s)
        self._longest_s = max(self._longest_s, self._trained_s[name])

    def _allocations(self, view: View, cluster: FixedCluster, left_s: float) -> Sequence[Allocation]:
        """Everyone that runs, best first; on `p_min` GPUs, doubled: not every batch can be split over three."""
        order = _best_first(self._search.running, view)
        p_max = cluster.gpus if self._problem.params.p_max is None else self._problem.params.p_max
        dealt = deal(len(order), cluster.gpus, self._problem.params.p_min, p_max, self._problem.gpus_per_instance)
        now_s = max(view.now_s, cluster.start_s)
        halved = (max((size for size in self._sizes if size <= gpus), default=gpus) for gpus in dealt)
        return [self._allocate(view, name, gpus, now_s, left_s) for name, gpus in zip(order, halved, strict=True)]

    def _allocate(self, view: View, name: str, gpus: int, now_s: float, left_s: float) -> Allocation:
        """A trial that starts gets what it is dealt; another keeps what it has, unless it has to give some back or more is worth it."""
        reports = view.trials[name].reports if name in view.trials else 0
        until = self._search.running[name].until
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = Run(gpus, now_s, self._trained_s.get(name, 0.0))
        elif gpus > run.gpus and reports < run.grows_at and self._worth(run, gpus, left_s):
            until = min(until, run.grows_at)
        elif gpus < run.gpus or (gpus > run.gpus and self._worth(run, gpus, left_s)):
            self._end_run(name, now_s)
            grows_at = reports + RESULTS_BETWEEN
            run = self._runs[name] = Run(gpus, now_s, self._trained_s[name], grows_at=grows_at)
        return Allocation(name, run.gpus, until=until)

    def _worth(self, run: Run, gpus: int, left_s: float) -> bool:
        speed = self._problem.scaling.speed
        return speed(gpus) * (left_s - self._pace.startup_s) > WORTH * speed(run.gpus) * left_s
