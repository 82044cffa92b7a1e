"""Tools that ask for configurations and are told reports, on the clock of the simulated world.

The one rule: a worker is one GPU, and all of its time counts: boot, every start, every report, and
the save of every trial that is paused. What would end after the deadline does not happen.

The cluster stays the same for the whole run, as these tools rent nothing: the machine's GPUs, or
the instances that the budget pays for until the deadline.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple, Protocol

from bench.search.play import SCALING
from seerd.sim.curves import CURVE, Curves
from seerd.sim.setting import Setting

Decision = Literal["continue", "stop", "pause"]


class Suggestion(NamedTuple):
    """What a worker should train."""

    trial: int  # a new number, or that of a paused trial
    row: int | None = None  # the configuration of a new trial; None: the trial is resumed


class Tool(Protocol):
    """A tool that decides what the workers do. `now_s`: seconds since the run began."""

    def suggest(self, now_s: float) -> Suggestion | None:
        """Return what a free worker should train; None: nothing until another trial has reported
        or ended.
        """

    def report(
        self, now_s: float, trial: int, reports: int, metric: float | None, unit_s: float
    ) -> Decision:
        """Take a report, number `reports` of its trial; return what becomes of the trial.

        Args:
            now_s: when it is made
            trial: the number of the trial
            reports: how many it has made, this one included
            metric: None if it is not finite
            unit_s: seconds of training since the report before
        """


@dataclass(slots=True)
class Played:
    """What came of a run."""

    reports: list[tuple[float, float]] = field(default_factory=list)  # moment, metric if finite
    trials: int = 0
    starts: int = 0
    saves: int = 0
    workers: list[float] = field(default_factory=list)  # when each worker could begin

    def best(self, curves: Curves) -> list[tuple[float, float]]:
        """Return the moments at which the best report became better, with their regrets."""
        return best_so_far([(at_s, curves.regret(metric)) for at_s, metric in self.reports])


def best_so_far(regrets: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the regrets that are less than all before them; the list is in the order of time."""
    best: list[tuple[float, float]] = []
    for at_s, regret in regrets:
        if not best or regret < best[-1][1]:
            best.append((at_s, regret))
    return best


def play(tool: Tool, setting: Setting, gpus: int, seed: int) -> Played:
    """Let a tool work on `gpus` workers until the deadline of the setting."""
    loop = Loop(tool, setting, seed)
    for worker, ready_s in enumerate(loop.boots(gpus)):
        loop.played.workers.append(ready_s)
        loop.at(ready_s, worker, None)
    loop.run()
    return loop.played


class Loop:
    """The workers and the queue of what happens next."""

    def __init__(self, tool: Tool, setting: Setting, seed: int) -> None:
        self.tool = tool
        self.setting = setting
        self.curves = setting.job.curves
        self.played = Played()
        self._rng = random.Random(f"world {seed}")
        self._heap: list[tuple[float, int, int, int | None]] = []
        self._count = 0
        self._rows: dict[int, int] = {}  # trial -> its row
        self._made: dict[int, int] = {}  # trial -> reports
        self._idle: list[int] = []  # workers for which there was nothing

    def boots(self, gpus: int) -> list[float]:
        """Return when each worker can begin; the GPUs of an instance begin together."""
        cloud, size = self.setting.job.profile.cloud, self.setting.cluster.gpus_per_instance
        ready: list[float] = []
        while len(ready) < gpus:
            boot_s = cloud.pending.draw(self._rng) + cloud.boot.draw(self._rng)
            ready += [boot_s] * min(size, gpus - len(ready))
        return ready

    def at(self, when_s: float, worker: int, trial: int | None) -> None:
        """Schedule a report of a worker's trial, or (None) that the worker is free."""
        self._count += 1
        heapq.heappush(self._heap, (when_s, self._count, worker, trial))

    def run(self) -> None:
        """Let time pass until the deadline."""
        while self._heap and self._heap[0][0] <= self.setting.limits.deadline_s:
            now_s, _, worker, trial = heapq.heappop(self._heap)
            if trial is None:
                self._begin(now_s, worker)
            else:
                self._report(now_s, worker, trial)

    def _begin(self, now_s: float, worker: int) -> None:
        suggestion = self.tool.suggest(now_s)
        if suggestion is None:
            self._idle.append(worker)
            return
        trial = suggestion.trial
        if suggestion.row is not None:
            self._rows[trial], self._made[trial] = suggestion.row, 0
            self.played.trials += 1
        self.played.starts += 1
        start_s = self.setting.job.profile.job.start.draw(self._rng)
        self.at(now_s + start_s + self._unit_s(trial), worker, trial)

    def _unit_s(self, trial: int) -> float:
        config = {CURVE: self._rows[trial]}
        return self.curves.unit_s_on(SCALING, config, self._made[trial] + 1, 1)

    def _report(self, now_s: float, worker: int, trial: int) -> None:
        unit_s = self._unit_s(trial)
        self._made[trial] += 1
        reports = self._made[trial]
        metric = self.curves.at({CURVE: self._rows[trial]}, reports)
        if metric is not None:
            self.played.reports.append((now_s, metric))
        decision = self.tool.report(now_s, trial, reports, metric, unit_s)
        if decision == "continue" and reports < self.curves.epochs:
            self.at(now_s + self._unit_s(trial), worker, trial)
        else:
            save_s = 0.0
            if decision == "pause":
                self.played.saves += 1
                save_s = self.setting.job.profile.job.save.draw(self._rng)
            self.at(now_s + save_s, worker, None)
        for waiting in self._idle:
            self.at(now_s, waiting, None)
        self._idle.clear()


class Random:
    """Trains one configuration after the other to its end, in random order."""

    def __init__(self, rows: int, seed: int) -> None:
        self._rows = list(range(rows))
        random.Random(f"rows {seed}").shuffle(self._rows)
        self.trials = 0

    def suggest(self, now_s: float) -> Suggestion | None:  # noqa: ARG002
        """Return the next configuration."""
        if self.trials == len(self._rows):
            return None
        self.trials += 1
        return Suggestion(self.trials - 1, self._rows[self.trials - 1])

    def report(
        self,
        now_s: float,  # noqa: ARG002
        trial: int,  # noqa: ARG002
        reports: int,  # noqa: ARG002
        metric: float | None,
        unit_s: float,  # noqa: ARG002
    ) -> Decision:
        """Go on to the end; a metric that is not finite ends the trial."""
        return "continue" if metric is not None else "stop"


class OneReport(Random):
    """Hears one report of every configuration, then trains the best (Egele et al., 2023).

    The last part of the run is for them: as long as a whole training takes, at most half of the
    run. A worker that is free then resumes the best trial that waits.
    """

    def __init__(self, rows: int, seed: int, reports: int, deadline_s: float, *, less: bool):
        super().__init__(rows, seed)
        self._reports = reports  # of a whole training
        self._deadline_s = deadline_s
        self._sign = 1 if less else -1  # whether less of the metric is better
        self._units: list[float] = []
        self._waiting: list[tuple[float, int]] = []  # metric with less as better, trial

    def suggest(self, now_s: float) -> Suggestion | None:
        """Return a new configuration, or late in the run the best that waits."""
        whole_s = median(self._units) * self._reports if self._units else self._deadline_s
        late = now_s >= self._deadline_s - min(self._deadline_s / 2, 1.1 * whole_s)
        fresh = None if late and self._waiting else super().suggest(now_s)
        if fresh is None and self._waiting:
            self._waiting.sort()
            return Suggestion(self._waiting.pop(0)[1])
        return fresh

    def report(
        self, now_s: float, trial: int, reports: int, metric: float | None, unit_s: float
    ) -> Decision:
        """Pause after the first report; later ones are of the best."""
        self._units.append(unit_s)
        if metric is None:
            return "stop"
        if reports > 1:
            return super().report(now_s, trial, reports, metric, unit_s)
        self._waiting.append((self._sign * metric, trial))
        return "pause"
