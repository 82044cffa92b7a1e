"""ASHA: asynchronous successive halving on a fixed cluster (Li et al., MLSys '20, Algorithm 2, section 3.3; defaults of sections 4, 5.1, 5.2).

The one rule: a free place goes to whoever can go on from the highest rung, and to a new configuration only if nobody can.

Trials that cannot go on are paused, not ended: a rung that grows may let them go on later. Whether the best model is taken from the last rung or
from reports on the way to it is the core's business.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import takewhile
from typing import Protocol

from planner.fixed import FixedCluster, fixed_cluster
from planner.model import (
    Allocation,
    Bracket,
    Compared,
    Group,
    Impossible,
    Mode,
    NewTrial,
    Outline,
    Plan,
    PolicyParams,
    Problem,
    Stage,
    View,
)
from planner.names import trial_name
from planner.rungs import Arrival, Job, Ladders, rung_reports
from planner.space import Config

BRACKETS = 3
"""The three that stop most aggressively: s = 0, 1, 2."""

EFFICIENCY = 0.75
"""A trial gets no more GPUs than leave each of them this share of what it would do alone (section 5.2)."""

TRAINS_S = 1.0
"""A trial trains at least so long, start included: no more than fit can be asked for, and ids are as wide as so many need, so that they sort."""

HOPELESS = 8
"""When so many trials have failed, and a whole cluster full of them, before any has come to a rung, the script is broken: no new ones."""


class Source(Protocol):
    """Where configurations come from."""

    def draw(self, trial: str) -> Config:
        """A configuration for a new trial."""

    def told(self, arrivals: Sequence[Arrival], lost: Sequence[str], mode: Mode) -> None:
        """What has become of earlier ones."""


class AtRandom:
    """The source that the paper uses: uniform draws, whatever has become of earlier ones."""

    def __init__(self, problem: Problem) -> None:
        self._rng = random.Random(problem.params.seed)
        self._space = problem.space

    def draw(self, trial: str) -> Config:  # noqa: ARG002
        """The next one of the seed's sequence."""
        return self._space.sample(self._rng)

    def told(self, arrivals: Sequence[Arrival], lost: Sequence[str], mode: Mode) -> None:
        """Nothing is learned from it."""


def brackets_of(params: PolicyParams, most: int = BRACKETS) -> tuple[tuple[int, ...], ...]:
    """The rungs of brackets s = 0, 1, ...: at most so many, and never the two that stop least, unless there is no other."""
    rungs = len(rung_reports(params))
    return tuple(rung_reports(params, s) for s in range(min(most, max(1, rungs - 2))))


def shares(brackets: Sequence[Sequence[int]], eta: float) -> tuple[Fraction, ...]:
    """Which share of the configurations each bracket gets, so that all get the same resources (section 5.1).

    A configuration of a bracket with k rungs takes k / eta^(k-1) of a whole training on average.
    """
    weights = [Fraction(eta) ** (len(rungs) - 1) / len(rungs) for rungs in brackets]
    return tuple(weight / sum(weights) for weight in weights)


def next_bracket(drawn: Sequence[int], wanted: Sequence[Fraction]) -> int:
    """The bracket that is furthest behind its share."""
    total = sum(drawn) + 1
    return max(range(len(drawn)), key=lambda i: (wanted[i] * total - drawn[i], -i))


def places(gpus: int, size: int, gpus_per_instance: int) -> int:
    """How many trials of `size` GPUs fit, none split between instances unless it takes whole ones."""
    if size > gpus_per_instance:
        return max(gpus // gpus_per_instance // -(-size // gpus_per_instance), int(gpus >= size))
    whole, rest = divmod(gpus, gpus_per_instance)
    return whole * (gpus_per_instance // size) + rest // size


def sizes(problem: Problem, gpus: int) -> tuple[int, ...]:
    """What a trial may have: p_min, doubled while it is allowed, efficient, and in whole instances if it is more than one."""
    params, per_instance = problem.params, problem.gpus_per_instance
    most = gpus if params.p_max is None else min(gpus, params.p_max)
    doubled = takewhile(lambda p: p <= most, (params.p_min * 2**i for i in range(1, gpus.bit_length() + 1)))
    fit = (p for p in doubled if p <= per_instance or p % per_instance == 0)
    return (params.p_min, *takewhile(lambda p: problem.scaling.efficiency(p) >= EFFICIENCY, fit))


class Search:
    """Algorithm 2 for any number of brackets: who trains next. What they train on is not its business."""

    def __init__(self, problem: Problem, brackets: Sequence[Sequence[int]], most_places: int, source: Source) -> None:
        self._ladders = Ladders(brackets, problem.params.eta)
        self._shares = shares(brackets, problem.params.eta)
        self._drawn = [0] * len(brackets)
        self._most = problem.params.trials
        self._source = source
        self._places = most_places
        self._lost = 0
        self._heard = False
        expected = most_places * int(problem.planned.deadline_s / TRAINS_S)
        self._width = len(str(expected if self._most is None else self._most))

    @property
    def running(self) -> dict[str, Job]:
        """Who is on the way to a rung."""
        return self._ladders.running

    @property
    def exhausted(self) -> bool:
        """Whether all configurations that were asked for have been drawn."""
        return self._most is not None and sum(self._drawn) >= self._most

    @property
    def hopeless(self) -> bool:
        """Whether it seems to be the script that fails, and not its configurations."""
        return not self._heard and self._lost >= max(HOPELESS, self._places)

    def settle(self, view: View) -> Sequence[Arrival]:
        """Take note of who has come to a rung, and of who has failed."""
        self._ladders.settle(view)
        return self._tell(view.mode)

    def carry_on(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Whoever has just come to a rung goes on if it is among the best 1/eta; nobody else does."""
        while arrivals:
            self._ladders.carry_on(view, arrivals)
            arrivals = self._tell(view.mode)

    def fill(self, view: View) -> tuple[NewTrial, ...]:
        """Give every free place to somebody, as far as there is anybody."""
        new: list[NewTrial] = []
        while len(self.running) < self._places:
            if self._ladders.promote(view):
                self._tell(view.mode)
            elif not (self.exhausted or self.hopeless):
                new.append(self._draw())
            else:
                break
        return tuple(new)

    def go_on_with_the_best(self, view: View) -> bool:
        """Whoever is best on the highest rung goes on, whatever its rank. False: nobody can."""
        went = self._ladders.promote_best(view)
        self._tell(view.mode)
        return went

    def take_compared(self, view: View) -> tuple[Compared, ...]:
        """How those stand who have come to a rung, or gone on from one, since the plan before."""
        return self._ladders.take_compared(view.mode)

    def _draw(self) -> NewTrial:
        bracket = next_bracket(self._drawn, self._shares)
        self._drawn[bracket] += 1
        name = trial_name(sum(self._drawn), self._width)
        self._ladders.enter(name, bracket)
        return NewTrial(name, self._source.draw(name))

    def _tell(self, mode: Mode) -> Sequence[Arrival]:
        arrivals, lost = self._ladders.take_news()
        self._heard = self._heard or bool(arrivals)
        self._lost += len(lost)
        if arrivals or lost:
            self._source.told(arrivals, lost, mode)
        return arrivals


class Asha:
    """Algorithm 2 on p_min GPUs per trial; once no new configurations come, trials that are left share the GPUs equally."""

    def __init__(self, problem: Problem, source: Source | None = None, most_brackets: int = BRACKETS) -> None:
        self._problem = problem
        self._cluster = fixed_cluster(problem)
        self._brackets = brackets_of(problem.params, most_brackets)
        gpus = 0 if isinstance(self._cluster, Impossible) else self._cluster.gpus
        self._sizes = sizes(problem, gpus)
        self._places = places(gpus, problem.params.p_min, problem.gpus_per_instance)
        self._search = Search(problem, self._brackets, self._places, source or AtRandom(problem))

    def outline(self) -> Outline | Impossible:
        """One stage on the whole cluster. Without a number of trials, those are counted that start at once."""
        if isinstance(self._cluster, Impossible):
            return self._cluster
        return fixed_outline(self._problem, self._cluster, self._brackets, self._places, self._sizes)

    def plan(self, view: View) -> Plan:
        """Who runs now. Raises `ValueError` if the limits fit nothing, which `outline` tells before."""
        cluster = self._cluster
        if isinstance(cluster, Impossible):
            raise ValueError(cluster.reason)
        if cluster.over(view.now_s):
            return Plan(done=True)
        self._search.settle(view)
        new = self._search.fill(view)
        jobs = sorted(self._search.running.values(), key=lambda job: -job.until)
        judged = self._search.take_compared(view)
        if not jobs:
            return Plan(new=new, done=True, compared=judged)
        gpus = self._size(cluster, len(jobs))
        allocations = tuple(Allocation(job.trial, gpus, job.bracket, job.until) for job in jobs)
        return Plan(allocations, new, ask_at_s=cluster.ask_at_s, compared=judged)

    def _size(self, cluster: FixedCluster, trials: int) -> int:
        """GPUs per trial: the most that all can have, if there is nobody else to give them to."""
        if not self._search.exhausted:
            return self._problem.params.p_min
        per_instance = self._problem.gpus_per_instance
        return max(p for p in self._sizes if p == self._sizes[0] or places(cluster.gpus, p, per_instance) >= trials)


def fixed_outline(
    problem: Problem,
    cluster: FixedCluster,
    brackets: Sequence[Sequence[int]],
    most_places: int,
    allowed: tuple[int, ...],
) -> Outline:
    """One stage from the cluster's start to its end, and the brackets' shares of it; `allowed`: what trials may grow to."""
    params = problem.params
    trials = most_places if params.trials is None else params.trials
    wanted = shares(brackets, params.eta)
    drawn = [0] * len(brackets)
    for _ in range(trials):
        drawn[next_bracket(drawn, wanted)] += 1
    stage = Stage(cluster.start_s, cluster.end_s, (Group(params.p_min, min(trials, most_places)),))
    return Outline(
        brackets=tuple(Bracket(params.p_min, n, stage.gpu_s / len(brackets)) for n in drawn if n),
        stages=(stage,),
        first_round_s=cluster.end_s - cluster.start_s,
        adjusted=problem.adjusted,
        sizes=allowed,
    )
