"""ASHA: asynchronous successive halving on a fixed cluster (Li et al., MLSys '20, Algorithm 2,
section 3.3; defaults of sections 4, 5.1, 5.2). Free GPUs go to the trial that can go on from the
highest rung, and to a new configuration only if no trial can; other trials are paused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from operator import attrgetter
from typing import TypeVar

from msgspec import convert, to_builtins

from seerd.planner.caching import IndexCache, prepared
from seerd.planner.draws import draws
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import FORGOTTEN, Count, Json, Memory, recall
from seerd.planner.model import (
    Bracket,
    Group,
    Impossible,
    Mode,
    NewTrial,
    Outline,
    Plan,
    Policy,
    PolicyParams,
    Problem,
    Stage,
    View,
)
from seerd.planner.rungs import PAUSED, Arrival, Ladders, RungPlace, read_place, rung_reports
from seerd.planner.space import Config
from seerd.planner.trial_ids import Names, names, names_after

VERSION = 1  # of what the policies with rungs remember

BRACKETS = 3  # the brackets that stop trials most aggressively: s = 0, 1, 2

# least work of each GPU of a larger trial, relative to one GPU alone (section 5.2)
EFFICIENCY = 0.75

# least seconds that a trial trains: it bounds how many there can be, and the digits of ids
TRAINS_S = 1.0

AT = "at "  # begins the key of a trial's place; the trial's id follows

# if so many trials, and a cluster full of them, failed before any rung, no new ones start
HOPELESS = 8


class AtRandom:
    """Where configurations come from: uniform draws, as in the paper. Subclasses choose by
    results; what they choose must not depend on the order of `learn`'s news.
    """

    def __init__(self, problem: Problem) -> None:
        self._draws = draws(problem)

    def draw(self, number: int, mode: Mode) -> Config:  # noqa: ARG002
        """Return the configuration of draw number `number`, from 0."""
        return self._draws[number]

    def drew(self, trial: str, config: Config) -> None:
        """Note that a trial has this configuration."""

    def learn(self, arrivals: Sequence[Arrival], lost: Sequence[str]) -> None:
        """Learn which trials have come to a rung with what metric, and which have failed."""


def brackets_of(params: PolicyParams, most: int = BRACKETS) -> tuple[tuple[int, ...], ...]:
    """Return the rungs of brackets s = 0, 1, ..., without the two that stop trials least."""
    rungs = len(rung_reports(params))
    return tuple(rung_reports(params, s) for s in range(min(most, max(1, rungs - 2))))


def shares(brackets: Sequence[Sequence[int]], eta: float) -> tuple[Fraction, ...]:
    """Return each bracket's share of the configurations, for equal resources (section 5.1)."""
    weights = [Fraction(eta) ** (len(rungs) - 1) / len(rungs) for rungs in brackets]
    return tuple(weight / sum(weights) for weight in weights)


def next_bracket(drawn: Sequence[int], wanted: Sequence[Fraction]) -> int:
    """Choose the bracket that is furthest behind its share."""
    total = sum(drawn) + 1
    return max(range(len(drawn)), key=lambda i: (wanted[i] * total - drawn[i], -i))


def dealt(trials: int, wanted: Sequence[Fraction]) -> list[int]:
    """Return how many of `trials` trials each bracket gets."""
    drawn = [0] * len(wanted)
    for _ in range(trials):
        drawn[next_bracket(drawn, wanted)] += 1
    return drawn


def places(gpus: int, size: int, gpus_per_instance: int) -> int:
    """Return how many trials of `size` GPUs fit; only one larger than an instance is split."""
    if size > gpus_per_instance:
        return max(gpus // gpus_per_instance // -(-size // gpus_per_instance), int(gpus >= size))
    whole, rest = divmod(gpus, gpus_per_instance)
    return whole * (gpus_per_instance // size) + rest // size


def sizes(problem: Problem, gpus: int) -> tuple[int, ...]:
    """List how many slots a trial may have: `p_min`, doubled up to one GPU, and then while that is
    efficient beside one GPU; or whole instances.
    """
    params, per_instance, parts = problem.params, problem.gpus_per_instance, problem.parts
    one_gpu = problem.scaling.efficiency(parts)
    larger = params.doubled(gpus)[1:]
    fit = (p for p in larger if p <= per_instance or p % per_instance == 0)

    def is_efficient(size: int) -> bool:
        return size <= parts or problem.scaling.efficiency(size) >= EFFICIENCY * one_gpu

    return (params.p_min, *takewhile(is_efficient, fit))


@dataclass(frozen=True, slots=True)
class SearchSetting:
    """What follows from a problem alone."""

    problem: Problem
    cluster: FixedCluster
    brackets: tuple[tuple[int, ...], ...]  # the reports of each bracket's rungs
    shares: tuple[Fraction, ...]  # which share of the configurations each bracket gets
    places: int  # how many trials can run side by side
    sizes: tuple[int, ...]  # how many GPUs a trial may have
    expected: int  # the most trials that there can be


def setting(
    problem: Problem,
    brackets: tuple[tuple[int, ...], ...],
    allowed: Callable[[Problem, int], tuple[int, ...]],
) -> SearchSetting | Impossible:
    """Derive the setting; `allowed` gives the sizes of trials on so many GPUs."""
    cluster, params = fixed_cluster(problem), problem.params
    if isinstance(cluster, Impossible):
        return cluster
    beside = places(cluster.gpus, params.p_min, problem.gpus_per_instance)
    most = beside * int(problem.planned.deadline_s / TRAINS_S)
    return SearchSetting(
        problem,
        cluster,
        brackets,
        shares(brackets, params.eta),
        beside,
        allowed(problem, cluster.gpus),
        most if params.trials is None else params.trials,
    )


class Search(Ladders):
    """Algorithm 2 for any number of brackets: which trials train next. It remembers how many were
    drawn for each bracket, their places, and their names where these do not follow from the
    problem.
    """

    def __init__(self, setting: SearchSetting, source: AtRandom) -> None:
        super().__init__(setting.brackets, setting.problem.params)
        self.setting = setting
        self._drawn = [0] * len(setting.brackets)
        self._names = names(len(str(setting.expected)))
        self._most = setting.problem.params.trials
        self._source = source
        self._failed = 0
        self._any_arrived = False
        self._changes: dict[str, Json] = {"version": VERSION}

    @property
    def exhausted(self) -> bool:
        """Whether all configurations that the spec asks for have been drawn."""
        return self._most is not None and sum(self._drawn) >= self._most

    @property
    def hopeless(self) -> bool:
        """Whether so many trials failed before any report that the script must be broken."""
        return not self._any_arrived and self._failed >= max(HOPELESS, self.setting.places)

    def recall(self, values: Mapping[str, Json], view: View) -> None:
        """Restore what was remembered. Raises `ValueError` if no search can have remembered it."""
        brackets = self.setting.brackets
        self._drawn = convert(values.get("drawn"), list[Count])
        if len(self._drawn) != len(brackets):
            raise ValueError(self._drawn)
        if "names" in values:
            self._names = convert(values["names"], Names)
        elif view.trials:
            # the width follows from the limits, which may have been extended since
            self._names = names(len(next(iter(view.trials))) - 1)
        remembered = [(key, value) for key, value in values.items() if key.startswith(AT)]
        at = {key.removeprefix(AT): read_place(value, brackets) for key, value in remembered}
        self._changes = {}
        self._stand(at, view)

    def take_up(self, view: View) -> None:
        """Go on without a memory: live trials are paused at the last rung that they reached."""
        live = [trial for trial in view.trials.values() if trial.status == "live"]
        rungs = self.setting.brackets[0]
        at = {trial.id: RungPlace(0, bisect_right(rungs, trial.reports), PAUSED) for trial in live}
        count = len(view.trials)
        self._drawn = dealt(count, self.setting.shares)
        self._names = names_after(max(view.trials), count, self.setting.expected)
        self._changes["names"] = to_builtins(self._names)
        self._changes["drawn"] = [*self._drawn]
        self._changes |= {AT + name: to_builtins(place) for name, place in at.items()}
        self._stand(at, view)

    def settle(self, view: View) -> Sequence[Arrival]:
        """Note which trials have come to a rung or failed. Return the arrivals."""
        self.arrive(view)
        return self.learn()

    def carry_on(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Let those of `arrivals` go on that are among the best 1/eta of their rung; no others."""
        while arrivals:
            self.promote_best_of(view, arrivals)
            arrivals = self.learn()

    def fill(self, view: View) -> tuple[NewTrial, ...]:
        """Fill free places with trials that can go on, else with new ones. Return the new ones."""
        new: list[NewTrial] = []
        while len(self.running) < self.setting.places:
            if self.promote(view) or self.enter_idle(view):
                self.learn()
            elif not (self.exhausted or self.hopeless):
                bracket = next_bracket(self._drawn, self.setting.shares)
                config = self._source.draw(sum(self._drawn), view.mode)
                self._drawn[bracket] += 1
                self._changes["drawn"] = [*self._drawn]
                new.append(NewTrial(self._names.of(sum(self._drawn)), config))
                self.start(new[-1].id, bracket, 0)
                self._source.drew(new[-1].id, config)
            else:
                break
        return tuple(new)

    def answer(self, view: View) -> Plan:
        """Return the plan: trials go on as far as they can, and new ones fill the places."""
        setting = self.setting
        self.settle(view)
        new = self.fill(view)
        jobs = sorted(self.running.values(), key=attrgetter("until"), reverse=True)
        judged = self.take_compared(view.mode)
        if not jobs:
            return Plan(new=new, done=True, compared=judged)
        cluster, gpus, size = setting.cluster, setting.sizes[0], setting.problem.gpus_per_instance
        if self.exhausted:
            fitting = (p for p in setting.sizes if places(cluster.gpus, p, size) >= len(jobs))
            gpus = max(fitting, default=gpus)
        allocations = [job.allocation for job in jobs]
        if gpus != setting.problem.params.p_min:
            allocations = [allocation._replace(gpus=gpus) for allocation in allocations]
        return Plan(tuple(allocations), new, ask_at_s=cluster.ask_at_s, compared=judged)

    def take_changes(self) -> dict[str, Json]:
        """Return what has changed in the memory since the last call."""
        for name, place in self.places.items():
            self._changes[AT + name] = to_builtins(place)
        self.places.clear()
        changes, self._changes = self._changes, {}
        return changes

    def _stand(self, at: Mapping[str, RungPlace], view: View) -> None:
        for trial in view.trials.values():
            self._source.drew(trial.id, trial.config)
        self.stand(at, view)
        self.learn()

    def learn(self) -> Sequence[Arrival]:
        """Let the source learn from the arrivals since the last call, and return them."""
        arrivals, lost = self.take_news()
        self._any_arrived = self._any_arrived or bool(arrivals)
        self._failed += len(lost)
        if arrivals or lost:
            self._source.learn(arrivals, lost)
        return arrivals


SearchT = TypeVar("SearchT", bound=Search)


def policy(
    setting_of: Callable[[Problem], SearchSetting | Impossible],
    make: Callable[[SearchSetting], SearchT],
) -> Policy:
    """Make a policy that works with a search, which is cached with the policy's memory."""
    cache = IndexCache[SearchT]()

    def plan(
        problem: Problem, setting: SearchSetting, memory: Memory, view: View
    ) -> tuple[Plan, Memory]:
        if setting.cluster.over(view.now_s):
            return Plan(done=True), memory.after({})
        index, note = cache.take(problem, memory), ""
        forgotten: dict[str, Json] = {}

        def restored(values: Mapping[str, Json]) -> SearchT:
            index = make(setting)
            index.recall(values, view)
            return index

        index = index or recall(memory, VERSION, restored)
        if index is None:
            index, forgotten = make(setting), dict.fromkeys(memory.values)
            if view.trials:
                index.take_up(view)
                note = FORGOTTEN
        answer = index.answer(view)
        after = memory.after(forgotten | index.take_changes())
        cache.keep(problem, after, index)
        return (replace(answer, note=note) if note else answer), after

    def outline(problem: Problem, made: SearchSetting) -> Outline:
        return fixed_outline(problem, made.cluster, made.brackets, made.places, made.sizes)

    return prepared(setting_of, outline, plan)


def asha(source: Callable[[Problem], AtRandom] = AtRandom, most_brackets: int = BRACKETS) -> Policy:
    """Make the policy of Algorithm 2 with `p_min` GPUs per trial, until no more are drawn."""
    return policy(
        lambda problem: setting(problem, brackets_of(problem.params, most_brackets), sizes),
        lambda setting: Search(setting, source(setting.problem)),
    )


def fixed_outline(
    problem: Problem,
    cluster: FixedCluster,
    brackets: Sequence[Sequence[int]],
    most_places: int,
    allowed: tuple[int, ...],
) -> Outline:
    """Outline one stage of the cluster's time; `allowed`: GPUs that trials may grow to."""
    params = problem.params
    trials = most_places if params.trials is None else params.trials
    drawn = dealt(trials, shares(brackets, params.eta))
    stage = Stage(cluster.start_s, cluster.end_s, (Group(params.p_min, min(trials, most_places)),))
    return Outline(
        brackets=tuple(Bracket(params.p_min, n, stage.gpu_s / len(brackets)) for n in drawn if n),
        stages=(stage,),
        first_round_s=cluster.end_s - cluster.start_s,
        adjusted=problem.adjusted,
        sizes=allowed,
    )


ASHA = asha()
