"""ASHA: asynchronous successive halving on a fixed cluster (Li et al., MLSys '20, Algorithm 2,
section 3.3; defaults of sections 4, 5.1, 5.2).

The one rule: a free place goes to whoever can go on from the highest rung, and to a new
configuration only if nobody can.

Trials that cannot go on are paused, not ended: a rung that grows may let them go on later. Whether
the best model is taken from the last rung or from reports on the way to it is the core's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from operator import attrgetter
from typing import Protocol, TypeVar

from seerd.planner.caching import IndexCache, per_problem
from seerd.planner.draws import draws
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import FORGOTTEN, Json, Memory, integer, items, recall, text
from seerd.planner.model import (
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
from seerd.planner.protocol import Policy
from seerd.planner.rungs import (
    PAUSED,
    Arrival,
    Ladders,
    RungJob,
    RungPlace,
    read_place,
    rung_reports,
)
from seerd.planner.space import Config
from seerd.planner.trial_ids import Names, names, names_after

VERSION = 1
"""Of what the policies by rungs remember."""

BRACKETS = 3
"""The three that stop most aggressively: s = 0, 1, 2."""

EFFICIENCY = 0.75
"""A trial gets no more GPUs than leave each of them this share of what it would do alone (section
5.2).
"""

TRAINS_S = 1.0
"""A trial trains at least so long, start included: no more than fit can be asked for, and ids are
as wide as so many need, so that they sort.
"""

AT = "at "
"""Before a trial's id: the key of its place."""

HOPELESS = 8
"""When so many trials have failed, and a whole cluster full of them, before any has come to a rung,
the script is broken: no new ones.
"""


class Source(Protocol):
    """Where configurations come from.

    What it answers must not depend on the order in which it has heard of trials.
    """

    def draw(self, number: int, mode: Mode) -> Config:
        """Return the configuration of draw `number`, from 0."""

    def drew(self, trial: str, config: Config) -> None:
        """Take note that a trial has this configuration."""

    def told(self, arrivals: Sequence[Arrival], lost: Sequence[str]) -> None:
        """Take note of what has become of earlier ones."""


class AtRandom:
    """The source that the paper uses: uniform draws, whatever has become of earlier ones."""

    def __init__(self, problem: Problem) -> None:
        self._draws = draws(problem)

    def draw(self, number: int, mode: Mode) -> Config:  # noqa: ARG002
        """Draw the next one of the seed's sequence."""
        return self._draws[number]

    def drew(self, trial: str, config: Config) -> None:
        """Learn nothing from it."""

    def told(self, arrivals: Sequence[Arrival], lost: Sequence[str]) -> None:
        """Learn nothing from it."""


def brackets_of(params: PolicyParams, most: int = BRACKETS) -> tuple[tuple[int, ...], ...]:
    """Return the rungs of brackets s = 0, 1, ...: at most so many, and never the two that stop
    least, unless there is no other.
    """
    rungs = len(rung_reports(params))
    return tuple(rung_reports(params, s) for s in range(min(most, max(1, rungs - 2))))


def shares(brackets: Sequence[Sequence[int]], eta: float) -> tuple[Fraction, ...]:
    """Say which share of the configurations each bracket gets, so that all get the same resources
    (section 5.1).

    A configuration of a bracket with k rungs takes k / eta^(k-1) of a whole training on average.
    """
    weights = [Fraction(eta) ** (len(rungs) - 1) / len(rungs) for rungs in brackets]
    return tuple(weight / sum(weights) for weight in weights)


def next_bracket(drawn: Sequence[int], wanted: Sequence[Fraction]) -> int:
    """Return the bracket that is furthest behind its share."""
    total = sum(drawn) + 1
    return max(range(len(drawn)), key=lambda i: (wanted[i] * total - drawn[i], -i))


def dealt(trials: int, wanted: Sequence[Fraction]) -> list[int]:
    """Count how many of so many trials each bracket gets."""
    drawn = [0] * len(wanted)
    for _ in range(trials):
        drawn[next_bracket(drawn, wanted)] += 1
    return drawn


def places(gpus: int, size: int, gpus_per_instance: int) -> int:
    """Count how many trials of `size` GPUs fit, none split between instances unless it takes whole
    ones.
    """
    if size > gpus_per_instance:
        return max(gpus // gpus_per_instance // -(-size // gpus_per_instance), int(gpus >= size))
    whole, rest = divmod(gpus, gpus_per_instance)
    return whole * (gpus_per_instance // size) + rest // size


def sizes(problem: Problem, gpus: int) -> tuple[int, ...]:
    """Say what a trial may have: p_min, doubled while it is allowed, efficient, and in whole
    instances if it is more than one.
    """
    params, per_instance = problem.params, problem.gpus_per_instance
    most = gpus if params.p_max is None else min(gpus, params.p_max)
    doubled = takewhile(
        lambda p: p <= most, (params.p_min * 2**i for i in range(1, gpus.bit_length() + 1))
    )
    fit = (p for p in doubled if p <= per_instance or p % per_instance == 0)
    return (params.p_min, *takewhile(lambda p: problem.scaling.efficiency(p) >= EFFICIENCY, fit))


@dataclass(frozen=True, slots=True)
class SearchSetting:
    """What follows from a problem alone.

    places    so many trials can run side by side
    sizes     how many GPUs a trial may have
    expected  there will be no more trials than so many
    """

    problem: Problem
    cluster: FixedCluster | Impossible
    brackets: tuple[tuple[int, ...], ...]
    shares: tuple[Fraction, ...]
    places: int
    sizes: tuple[int, ...]
    expected: int

    @property
    def sure_cluster(self) -> FixedCluster:
        """Raises `ValueError` if the limits fit nothing."""
        if isinstance(self.cluster, Impossible):
            raise ValueError(self.cluster.reason)
        return self.cluster

    def outline(self) -> Outline | Impossible:
        """Outline one stage on the whole cluster.

        Without a number of trials, those are counted that start at once.
        """
        if isinstance(self.cluster, Impossible):
            return self.cluster
        return fixed_outline(self.problem, self.cluster, self.brackets, self.places, self.sizes)


def setting(
    problem: Problem,
    brackets: tuple[tuple[int, ...], ...],
    allowed: Callable[[Problem, int], tuple[int, ...]],
) -> SearchSetting:
    """Derive what follows from a problem alone; `allowed`: the sizes of trials on so many GPUs."""
    cluster, params = fixed_cluster(problem), problem.params
    gpus = 0 if isinstance(cluster, Impossible) else cluster.gpus
    beside = places(gpus, params.p_min, problem.gpus_per_instance)
    most = beside * int(problem.planned.deadline_s / TRAINS_S)
    return SearchSetting(
        problem,
        cluster,
        brackets,
        shares(brackets, params.eta),
        beside,
        allowed(problem, gpus),
        most if params.trials is None else params.trials,
    )


class Search:
    """Algorithm 2 for any number of brackets: who trains next.

    What they train on is not its business.
    It remembers the version, how many configurations were drawn for each bracket, the place of each
    trial, and how trials are named where that does not follow from the problem.
    """

    def __init__(self, setting: SearchSetting, source: Source) -> None:
        self._setting = setting
        self._ladders = Ladders(setting.brackets, setting.problem.params)
        self._drawn = [0] * len(setting.brackets)
        self._names = names(len(str(setting.expected)))
        self._most = setting.problem.params.trials
        self._source = source
        self._lost = 0
        self._heard = False
        self._changes: dict[str, Json] = {"version": VERSION}

    @property
    def running(self) -> dict[str, RungJob]:
        """Who is on the way to a rung."""
        return self._ladders.running

    @property
    def exhausted(self) -> bool:
        """Whether all configurations that were asked for have been drawn."""
        return self._most is not None and sum(self._drawn) >= self._most

    @property
    def hopeless(self) -> bool:
        """Whether it seems to be the script that fails, and not its configurations."""
        return not self._heard and self._lost >= max(HOPELESS, self._setting.places)

    def restore(self, values: Mapping[str, Json], view: View) -> None:
        """Restore what was remembered. Raises `ValueError` if it cannot have been."""
        brackets = self._setting.brackets
        drawn = items(values.get("drawn"), len(brackets))
        self._drawn = [integer(count, 0) for count in drawn]
        if "names" in values:
            prefix, offset, width = items(values["names"], 3)
            self._names = Names(text(prefix), integer(offset, -sum(self._drawn)), integer(width, 1))
        remembered = [(key, value) for key, value in values.items() if key.startswith(AT)]
        at = {key.removeprefix(AT): read_place(value, brackets) for key, value in remembered}
        self._changes = {}
        self._stand(at, view)

    def take_up(self, view: View) -> None:
        """Go on without what was remembered: every live trial is paused at the rung that it has
        come to.
        """
        live = [trial for trial in view.trials.values() if trial.status == "live"]
        rungs = self._setting.brackets[0]
        at = {trial.id: RungPlace(0, bisect_right(rungs, trial.reports), PAUSED) for trial in live}
        count = len(view.trials)
        self._drawn = dealt(count, self._setting.shares)
        self._names = names_after(max(view.trials), count, self._setting.expected)
        made = self._names
        self._changes["names"] = [made.prefix, made.offset, made.width]
        self._changes["drawn"] = [*self._drawn]
        self._changes |= {AT + name: place.remembered for name, place in at.items()}
        self._stand(at, view)

    def settle(self, view: View) -> Sequence[Arrival]:
        """Take note of who has come to a rung, and of who has failed."""
        self._ladders.settle(view)
        return self._tell()

    def carry_on(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Let those go on that have just come to a rung and are among the best 1/eta,
        nobody else.
        """
        while arrivals:
            self._ladders.carry_on(view, arrivals)
            arrivals = self._tell()

    def fill(self, view: View) -> tuple[NewTrial, ...]:
        """Give every free place to somebody, as far as there is anybody."""
        new: list[NewTrial] = []
        while len(self.running) < self._setting.places:
            if self._ladders.promote(view) or self._ladders.enter_idle(view):
                self._tell()
            elif not (self.exhausted or self.hopeless):
                new.append(self._draw(view.mode))
            else:
                break
        return tuple(new)

    def go_on_with_the_best(self, view: View) -> bool:
        """Let the best on the highest rung go on, whatever its rank. False: nobody can."""
        went = self._ladders.promote_best(view)
        self._tell()
        return went

    def take_compared(self, view: View) -> tuple[Compared, ...]:
        """Say how those stand who have come to a rung, or gone on from one, since the
        plan before.
        """
        return self._ladders.take_compared(view.mode)

    def take_changes(self) -> dict[str, Json]:
        """Say what is to be remembered otherwise than before this was last asked."""
        for name, place in self._ladders.places.items():
            self._changes[AT + name] = place.remembered
        self._ladders.places.clear()
        changes, self._changes = self._changes, {}
        return changes

    def _stand(self, at: Mapping[str, RungPlace], view: View) -> None:
        for trial in view.trials.values():
            self._source.drew(trial.id, trial.config)
        self._ladders.restore(at, view)
        self._tell()

    def _draw(self, mode: Mode) -> NewTrial:
        bracket = next_bracket(self._drawn, self._setting.shares)
        config = self._source.draw(sum(self._drawn), mode)
        self._drawn[bracket] += 1
        self._changes["drawn"] = [*self._drawn]
        name = self._names.of(sum(self._drawn))
        self._ladders.enter(name, bracket)
        self._source.drew(name, config)
        return NewTrial(name, config)

    def _tell(self) -> Sequence[Arrival]:
        arrivals, lost = self._ladders.take_news()
        self._heard = self._heard or bool(arrivals)
        self._lost += len(lost)
        if arrivals or lost:
            self._source.told(arrivals, lost)
        return arrivals


class Index(Protocol):
    """What a policy by rungs works with, as far as it is made from a memory."""

    def restore(self, values: Mapping[str, Json], view: View) -> None:
        """Restore what was remembered. Raises `ValueError` if it cannot have been."""

    def take_up(self, view: View) -> None:
        """Go on from the view alone, in which there are trials."""

    def take_changes(self) -> dict[str, Json]:
        """Say what is to be remembered otherwise than before this was last asked."""


IndexT = TypeVar("IndexT", bound=Index)


def recalled(make: Callable[[], IndexT], memory: Memory, view: View) -> tuple[IndexT, bool]:
    """Make the index that belongs to a memory, or else to the view alone; whether the memory was
    known.
    """

    def restored(values: Mapping[str, Json]) -> IndexT:
        index = make()
        index.restore(values, view)
        return index

    known = recall(memory, VERSION, restored)
    if known is not None:
        return known, True
    index = make()
    if view.trials:
        index.take_up(view)
    return index, False


def asked(
    cache: IndexCache[IndexT],
    make: Callable[[SearchSetting], IndexT],
    decide: Callable[[SearchSetting, IndexT, View], Plan],
) -> Callable[[SearchSetting, Memory, View], tuple[Plan, Memory]]:
    """Make a policy's `plan`, from how its index is made and what follows from that."""

    def plan(setting: SearchSetting, memory: Memory, view: View) -> tuple[Plan, Memory]:
        if setting.sure_cluster.over(view.now_s):
            return Plan(done=True), memory.after({})
        index, note = cache.take(setting.problem, memory), ""
        forgotten: dict[str, Json] = {}
        if index is None:
            index, known = recalled(lambda: make(setting), memory, view)
            forgotten = {} if known else dict.fromkeys(memory.values)
            note = "" if known or not view.trials else FORGOTTEN
        found = decide(setting, index, view)
        after = memory.after(forgotten | index.take_changes())
        cache.keep(setting.problem, after, index)
        return (replace(found, note=note) if note else found), after

    return plan


def policy(
    setting_of: Callable[[Problem], SearchSetting],
    make: Callable[[SearchSetting], IndexT],
    decide: Callable[[SearchSetting, IndexT, View], Plan],
) -> Policy:
    """Make a policy that works with an index which it keeps with its memory."""
    known, plan = per_problem(setting_of), asked(IndexCache(), make, decide)
    return Policy(
        outline=lambda problem: known(problem).outline(),
        plan=lambda problem, memory, view: plan(known(problem), memory, view),
    )


def asha(source: Callable[[Problem], Source] = AtRandom, most_brackets: int = BRACKETS) -> Policy:
    """Make the policy of Algorithm 2 on p_min GPUs per trial; once no new configurations come,
    trials that are left share the GPUs equally.
    """
    return policy(
        lambda problem: setting(problem, brackets_of(problem.params, most_brackets), sizes),
        lambda setting: Search(setting, source(setting.problem)),
        _decide,
    )


def _decide(setting: SearchSetting, search: Search, view: View) -> Plan:
    search.settle(view)
    new = search.fill(view)
    jobs = sorted(search.running.values(), key=attrgetter("until"), reverse=True)
    judged = search.take_compared(view)
    if not jobs:
        return Plan(new=new, done=True, compared=judged)
    gpus = _size(setting, search, len(jobs))
    allocations = [job.allocation for job in jobs]
    if gpus != setting.problem.params.p_min:
        allocations = [allocation._replace(gpus=gpus) for allocation in allocations]
    return Plan(tuple(allocations), new, ask_at_s=setting.sure_cluster.ask_at_s, compared=judged)


def _size(setting: SearchSetting, search: Search, trials: int) -> int:
    """Choose the GPUs per trial: the most that all can have, if there is nobody else to give them
    to.
    """
    allowed, gpus = setting.sizes, setting.sure_cluster.gpus
    if not search.exhausted:
        return allowed[0]
    per_instance = setting.problem.gpus_per_instance
    return max(p for p in allowed if p == allowed[0] or places(gpus, p, per_instance) >= trials)


def fixed_outline(
    problem: Problem,
    cluster: FixedCluster,
    brackets: Sequence[Sequence[int]],
    most_places: int,
    allowed: tuple[int, ...],
) -> Outline:
    """Outline one stage from the cluster's start to its end, and the brackets' shares of it;
    `allowed`: what trials may grow to.
    """
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
"""With the paper's brackets, and configurations drawn at random."""
