"""Successive halving with a barrier at every rung (Li et al., ASHA, MLSys '20, Algorithm 1; Misra et al., RubberBand, section 2).

The one rule: a rung ends when all of its trials have made its number of reports; then the best go on to the next rung, and the others are out.
On GPUs that never change in number unless `policy.stage_gpus` (chosen by `planner.rubberband`) gives each rung its own.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from planner.fixed import FixedCluster, fixed_cluster
from planner.model import (
    Allocation,
    Bracket,
    Compared,
    Group,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    PolicyParams,
    Problem,
    Stage,
    View,
)
from planner.names import trial_name
from planner.ranking import Standing, metric_at, standing_at
from planner.rungs import MAX_REPORTS, RUNGS
from planner.stages import halving_rungs, share


@dataclass(frozen=True, slots=True)
class Rung:
    """`trials` trials train until each has made `until` reports in all, on `gpus` GPUs in all."""

    trials: int
    until: int
    gpus: int


def sha_rungs(params: PolicyParams) -> list[tuple[int, int]]:
    """SHA(n, r, R, eta): (trials, reports in all) of each rung."""
    most, eta = params.max_reports or MAX_REPORTS, Fraction(params.eta)
    least = params.min_reports or max(1, round(most / params.eta ** (RUNGS - 1)))
    return halving_rungs(params.trials or _trials(most, least, eta), least, most, params.eta)


def _trials(most: int, least: int, eta: Fraction) -> int:
    """So many that one is left to be trained to the end."""
    trials = Fraction(1)
    while trials * eta * least <= most:
        trials *= eta
    return int(trials)


class Halving:
    """Brackets of rungs, one after the other."""

    def __init__(self, problem: Problem, brackets: Iterator[list[Rung]], cluster: FixedCluster | Impossible) -> None:
        self._problem = problem
        self._cluster = cluster
        self._brackets = brackets
        self._first = next(brackets)
        self._rungs: list[Rung] = []
        self._rung = -1
        self._asked = 0
        self._rng = random.Random(problem.params.seed)
        self._waiting: deque[str] = deque()
        self._running: dict[str, None] = {}
        self._standings: list[Standing] = []
        self._compared: list[Compared] = []

    def outline(self) -> Outline | Impossible:
        """The first bracket's rungs as stages, each as long as was planned, or with the share of the time that its reports have."""
        if isinstance(self._cluster, Impossible):
            return self._cluster
        brackets = (Bracket(_share(self._problem, self._first[0])[1], self._first[0].trials, self._gpu_s()),)
        stages = tuple(self._stages(self._cluster))
        return Outline(brackets, stages, stages[0].end_s - stages[0].start_s, adjusted=self._problem.adjusted)

    def plan(self, view: View) -> Plan:
        """Who runs now."""
        if isinstance(self._cluster, Impossible):
            raise ValueError(self._cluster.reason)
        stage = max(0, min(self._rung, len(self._first) - 1))
        if self._cluster.over(view.now_s):
            return Plan(stage=stage, done=True)
        self._compared = []
        self._collect(view)
        new, out = self._advance(view)
        if self._rung < 0:
            return Plan(new=new, eliminated=out, stage=stage, done=True, compared=tuple(self._compared))
        rung = self._rungs[self._rung]
        gpus = _share(self._problem, rung)[1]
        running = tuple(Allocation(name, gpus, 0, rung.until) for name in self._running)
        stage = min(self._rung, len(self._first) - 1)
        plan = Plan(running, new, out, stage, self._cluster.ask_at_s, hold_gpus=self._next_gpus())
        return replace(plan, compared=tuple(self._compared))

    def _next_gpus(self) -> int:
        """GPUs of the next rung: its instances are there already, and must not be rented a second time."""
        if self._rung + 1 == len(self._rungs):
            return 0
        beside, gpus = _share(self._problem, self._rungs[self._rung + 1])
        return beside * gpus

    def _collect(self, view: View) -> None:
        """Take out who has reached the rung, or never will, and let others begin; those may be through already."""
        if self._rung < 0:
            return
        rung = self._rungs[self._rung]
        beside = _share(self._problem, rung)[0]
        self._running = {name: None for name in self._running if not self._through(name, rung.until, view)}
        while self._waiting and len(self._running) < beside:
            name = self._waiting.popleft()
            if not self._through(name, rung.until, view):
                self._running[name] = None

    def _through(self, name: str, until: int, view: View) -> bool:
        """Whether a trial has done its part of a rung; how it stood then is written down."""
        trial = view.trials.get(name)
        if trial is None or (trial.reports < until and trial.status == "live"):
            return False
        self._standings.append(standing_at(trial, until, view.mode))
        return True

    def _advance(self, view: View) -> tuple[tuple[NewTrial, ...], tuple[str, ...]]:
        """The next rung if this one has ended, the next bracket after the last one."""
        new: tuple[NewTrial, ...] = ()
        out: list[str] = []
        while not self._running:
            ordered = [name for _, _, name in sorted(self._standings)]
            alive = [name for name in ordered if view.trials[name].status in ("live", "finished")]
            self._standings = []
            self._rung += 1
            if self._rung == len(self._rungs) or (self._rung and not alive):
                kept: list[str] = []
                self._compare(ordered, 0, view)
                new += self._next_bracket()
                self._waiting.extend(trial.id for trial in new)
            else:
                kept = alive[: self._rungs[self._rung].trials]
                self._compare(ordered, self._rungs[self._rung].trials, view)
                self._waiting.extend(kept)
            if self._rung < 0:
                break
            out += [name for name in ordered if name not in kept] if kept else []
            self._collect(view)
        return new, tuple(out)

    def _compare(self, ordered: list[str], best: int, view: View) -> None:
        """Write down how the trials of the rung that has ended stand, for people."""
        until = self._rungs[self._rung - 1].until if ordered else 0
        for place, name in enumerate(ordered, 1):
            trial = view.trials[name]
            reports = min(until, trial.reports)
            metric = metric_at(trial, until) if trial.history else None
            final = self._rung == len(self._rungs)
            self._compared.append(Compared(name, metric, reports, place, len(ordered), best, final=final))

    def _next_bracket(self) -> tuple[NewTrial, ...]:
        rungs = self._first if not self._asked else next(self._brackets, None)
        if rungs is None:
            self._rung = -1
            return ()
        self._rungs, self._rung = rungs, 0
        first = self._asked + 1
        self._asked += rungs[0].trials
        return tuple(
            NewTrial(trial_name(i), self._problem.space.sample(self._rng)) for i in range(first, self._asked + 1)
        )

    def _gpu_s(self) -> float:
        return (
            sum(stage.gpu_s for stage in self._stages(self._cluster))
            if isinstance(self._cluster, FixedCluster)
            else 0.0
        )

    def _stages(self, cluster: FixedCluster) -> Iterator[Stage]:
        start = cluster.start_s
        for rung, lasts_s in zip(self._first, self._problem.params.stage_s or self._parts_s(cluster), strict=True):
            beside, gpus = _share(self._problem, rung)
            yield Stage(start, start + lasts_s, (Group(gpus, min(beside, rung.trials)),))
            start += lasts_s

    def _parts_s(self, cluster: FixedCluster) -> list[float]:
        work, before = [], 0
        for rung in self._first:
            beside, gpus = _share(self._problem, rung)
            waves = -(-rung.trials // beside)
            work.append((rung.until - before) * waves / self._problem.scaling.speed(gpus))
            before = rung.until
        return [(cluster.end_s - cluster.start_s) * part / sum(work) for part in work]


def _share(problem: Problem, rung: Rung) -> tuple[int, int]:
    """(trials side by side, GPUs of each) on the GPUs of a rung."""
    params, size = problem.params, problem.gpus_per_instance
    gpus = max(params.p_min, share(rung.trials, rung.gpus, size, params.p_max))
    return max(1, min(rung.trials, rung.gpus // gpus)), gpus


def sha(problem: Problem) -> Halving:
    """SHA: one bracket."""
    cluster = fixed_cluster(problem)
    rungs = sha_rungs(problem.params)
    same = cluster.gpus if isinstance(cluster, FixedCluster) else problem.params.p_min
    gpus = problem.params.stage_gpus or (same,) * len(rungs)
    if len(gpus) != len(rungs):
        raise ValueError(f"{len(gpus)} stages have GPUs, and there are {len(rungs)}")
    bracket = [Rung(trials, until, g) for (trials, until), g in zip(rungs, gpus, strict=True)]
    if problem.params.stage_gpus is not None:
        cluster = FixedCluster(max(gpus), problem.start_s, problem.start_s + problem.planned.deadline_s)
    return Halving(problem, iter([bracket]), cluster)
