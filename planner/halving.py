"""Successive halving with a barrier at every rung (Li et al., ASHA, MLSys '20, Algorithm 1; Misra
et al., RubberBand, section 2). `policy.stage_gpus` gives each rung its own number of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated

from msgspec import Meta, convert

from seerd.planner.caching import IndexCache, prepared
from seerd.planner.draws import draws
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import FORGOTTEN, Count, Json, Memory, Values, differing, holding, recall
from seerd.planner.model import (
    Allocation,
    Bracket,
    Compared,
    Group,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Policy,
    PolicyParams,
    Problem,
    Stage,
    View,
)
from seerd.planner.ranking import RankKey, metric_at, standing, standing_at
from seerd.planner.rungs import MAX_REPORTS, RUNGS
from seerd.planner.stages import halving_rungs, share
from seerd.planner.trial_ids import highest, in_order, trial_name

VERSION = 1  # of what is remembered
ALIVE = ("live", "finished")  # may have a place in the next rung, even with nothing left to train


Number = Annotated[int, Meta(ge=-1)]


@dataclass(frozen=True, slots=True)
class HalvingRung:
    """A number of reports at which trials are compared."""

    trials: int  # how many train until then
    until: int  # reports that each has made by then, in all
    gpus: int  # GPUs of all of them together


def sha_rungs(params: PolicyParams) -> list[tuple[int, int]]:
    """Return the rungs of SHA(n, r, R, eta), each as (trials, reports in all); the last has one
    trial.
    """
    most, eta = params.max_reports or MAX_REPORTS, Fraction(params.eta)
    least = params.min_reports or max(1, round(most / params.eta ** (RUNGS - 1)))
    trials = Fraction(1)
    while trials * eta * least <= most:
        trials *= eta
    return halving_rungs(params.trials or int(trials), least, most, params.eta)


@dataclass(frozen=True, slots=True)
class Brackets:
    """What follows from the problem alone."""

    problem: Problem
    cluster: FixedCluster
    first: list[HalvingRung]  # the rungs of the first bracket
    # gives the rungs of a bracket by its number, from 0; None: there is no such bracket
    bracket: Callable[[int], list[HalvingRung] | None]

    def share(self, rung: HalvingRung) -> tuple[int, int]:
        """Return (trials side by side, GPUs of each) on the GPUs of a rung."""
        params, size = self.problem.params, self.problem.gpus_per_instance
        gpus = max(params.p_min, share(rung.trials, rung.gpus, size, params.p_max))
        return max(1, min(rung.trials, rung.gpus // gpus)), gpus


@dataclass(frozen=True, slots=True)
class Climb:
    """What is remembered of the present rung, beside whether each member that is through has
    reached it (True) or failed (False): a restart may take back the reports that would tell.
    """

    bracket: Number = -1  # its number, from 0; before the first -1
    rung: Number = -1  # which of the bracket's, from 0; without a bracket -1
    asked: Count = 0  # how many configurations have been asked for in all
    begun: Count = 0  # how many of the members have begun
    # the trials of the rung, in the order in which they begin
    members: list[str] = field(default_factory=list)
    # members that have begun and are not through; not written, as it follows from the rest
    running: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, values: Values) -> Climb:
        """Read what was remembered. Raises `ValueError` if no version can have written it."""
        climb = convert({key: values.get(key) for key in REMEMBERED}, cls)
        running = [name for name in climb.members[: climb.begun] if name not in values]
        return replace(climb, running=running)

    @property
    def over(self) -> bool:
        """Whether there are no more brackets."""
        return self.bracket >= 0 > self.rung


REMEMBERED = "bracket", "rung", "asked", "begun", "members"  # the fields that are written


def halving(course_of: Callable[[Problem], Brackets | Impossible]) -> Policy:
    """Make the policy that trains in these brackets and rungs."""
    cache = IndexCache[Climb]()

    def outline(problem: Problem, made: Brackets) -> Outline:
        stages = tuple(_stages(made))
        gpu_s, gpus = sum(stage.gpu_s for stage in stages), made.share(made.first[0])[1]
        bracket = Bracket(gpus, made.first[0].trials, gpu_s)
        first_round_s = stages[0].end_s - stages[0].start_s
        return Outline((bracket,), stages, first_round_s, adjusted=problem.adjusted)

    def plan(problem: Problem, made: Brackets, memory: Memory, view: View) -> tuple[Plan, Memory]:
        climb = cache.take(problem, memory) or recall(memory, VERSION, Climb.read)
        turn = _Turn(made, view, climb or Climb(), memory if climb else Memory())
        if climb is None and view.trials:
            turn.take_up()
        answer = turn.answer()
        after = turn.remembered() if climb else holding(memory, turn.remembered().values)
        cache.keep(problem, after, turn.climb)
        return answer, after

    return prepared(course_of, outline, plan)


class _Turn:
    """The work for one question, from what is remembered to the answer."""

    def __init__(self, course: Brackets, view: View, climb: Climb, memory: Memory) -> None:
        self._course = course
        self._view = view
        self.climb = climb
        self._memory = memory
        self._rungs = self._bracket(climb.bracket)
        self._through: dict[str, Json] = {}
        self._new: list[NewTrial] = []
        self._out: list[str] = []
        self._compared: list[Compared] = []
        self._note = ""

    def answer(self) -> Plan:
        """Return the plan."""
        plan, cluster = Plan(stage=self._stage(), done=True), self._course.cluster
        if running := [] if cluster.over(self._view.now_s) else self._advance():
            rung, hold_gpus = self._rungs[self.climb.rung], 0
            gpus = self._course.share(rung)[1]
            wanted = tuple(Allocation(name, gpus, 0, rung.until) for name in running)
            if self.climb.rung + 1 < len(self._rungs):
                places, gpus = self._course.share(self._rungs[self.climb.rung + 1])
                hold_gpus = places * gpus
            plan = Plan(wanted, stage=self._stage(), ask_at_s=cluster.ask_at_s, hold_gpus=hold_gpus)
        new, out, judged = tuple(self._new), tuple(self._out), tuple(self._compared)
        return replace(plan, new=new, eliminated=out, compared=judged, note=self._note)

    def remembered(self) -> Memory:
        """Return the memory after this question."""
        climb = {"version": VERSION, **{key: getattr(self.climb, key) for key in REMEMBERED}}
        return self._memory.after({**differing(self._memory, climb), **self._through})

    def take_up(self) -> None:
        """Go on from a view alone: ids tell the bracket, the fewest reports of a live trial the
        rung. Those that stood worse at the rung before than there are places are out.
        """
        ids = in_order(self._view.trials)
        number, before = 0, 0  # of the last trial's bracket: its number, and the trials before it
        rungs, after = self._course.first, self._course.bracket(1)
        while after is not None and before + rungs[0].trials < len(ids):
            before += rungs[0].trials
            number += 1
            rungs, after = after, self._course.bracket(number + 1)
        self._rungs, self._note = self._bracket(number), FORGOTTEN
        live = [name for name in ids[before:] if self._view.trials[name].status == "live"]
        reports = min((self._view.trials[name].reports for name in live), default=0)
        rung = sum(reports >= other.until for other in self._rungs[:-1])
        climb = Climb(number, rung, max(len(ids), highest(ids)), 0, live)
        self.climb = climb if rung == 0 else replace(climb, rung=rung - 1)
        if rung > 0:
            ordered, places = self._ordered(), self._rungs[rung].trials
            if len(ordered) > places:
                self._compare(ordered, places)
                self._out += ordered[places:]
            self.climb = replace(climb, members=ordered[:places])

    def _bracket(self, number: int) -> list[HalvingRung]:
        return (self._course.bracket(number) if number >= 0 else None) or []

    def _stage(self) -> int:
        return max(0, min(self.climb.rung, len(self._course.first) - 1))

    def _advance(self) -> list[str]:
        """List the running members; if there are none, begin the next rung or bracket."""
        running = self._collect()
        while not running and not self.climb.over:
            ordered, rung = self._ordered(), self.climb.rung + 1
            alive = [name for name in ordered if self._view.trials[name].status in ALIVE]
            places = self._rungs[rung].trials if rung < len(self._rungs) and alive else 0
            self._compare(ordered, places)
            for name in self.climb.members:  # what is remembered of this rung is over
                self._through.pop(name, None)
                if name in self._memory.values:
                    self._through[name] = None
            if places:
                self.climb = replace(
                    self.climb, rung=rung, begun=0, members=alive[:places], running=[]
                )
                stay = frozenset(alive[:places])
                self._out += [name for name in ordered if name not in stay]
            else:
                self._next_bracket()
            running = self._collect()
        return running

    def _collect(self) -> list[str]:
        """List the running members; the next ones begin in place of those that are through."""
        climb = self.climb
        if climb.rung < 0:
            return []
        rung = self._rungs[climb.rung]
        beside, begun = self._course.share(rung)[0], climb.begun
        running = [name for name in climb.running if not self._passes(name, rung.until)]
        while begun < len(climb.members) and len(running) < beside:
            name = climb.members[begun]
            begun += 1
            if not self._passes(name, rung.until):
                running.append(name)
        self.climb = replace(climb, begun=begun, running=running)
        return running

    def _passes(self, name: str, until: int) -> bool:
        """Return whether a trial is through with its rung, and remember how."""
        trial = self._view.trials.get(name)
        if trial is None or (trial.reports < until and trial.status == "live"):
            return False
        self._through[name] = trial.status != "failed"
        return True

    def _ordered(self) -> list[str]:
        """List the members, best first; a failure after the rung was reached does not count."""
        standings: list[RankKey] = []
        for name in self.climb.members:
            trial, mode = self._view.trials[name], self._view.mode
            until = self._rungs[self.climb.rung].until
            if self._through.get(name, self._memory.values.get(name)) and trial.history:
                standings.append(standing(name, metric_at(trial, until), mode))
            else:
                standings.append(standing_at(trial, until, mode))
        return [name for _, _, name in sorted(standings)]

    def _compare(self, ordered: list[str], best: int) -> None:
        final = self.climb.rung + 1 == len(self._rungs)
        for place, name in enumerate(ordered, 1):
            trial, until = self._view.trials[name], self._rungs[self.climb.rung].until
            metric = metric_at(trial, until) if trial.history else None
            reports = min(until, trial.reports)
            self._compared.append(
                Compared(name, metric, reports, place, len(ordered), best, final=final)
            )

    def _next_bracket(self) -> None:
        number, asked = self.climb.bracket + 1, self.climb.asked
        self._rungs = self._bracket(number)
        if not self._rungs:
            self.climb = Climb(number, -1, asked)
            return
        drawn, end = draws(self._course.problem), asked + self._rungs[0].trials
        new = [NewTrial(trial_name(i + 1), drawn[i]) for i in range(asked, end)]
        self._new += new
        self.climb = Climb(number, 0, end, 0, [trial.id for trial in new])


def _stages(course: Brackets) -> Iterator[Stage]:
    """Yield the first bracket's rungs as stages, by `stage_s` or the work of their reports."""
    start, end, work, before = course.cluster.start_s, course.cluster.end_s, [], 0
    shares = [course.share(rung) for rung in course.first]
    for rung, (beside, gpus) in zip(course.first, shares, strict=True):
        waves = -(-rung.trials // beside)
        work.append((rung.until - before) * waves / course.problem.scaling.speed(gpus))
        before = rung.until
    lengths = course.problem.params.stage_s or [(end - start) * part / sum(work) for part in work]
    for rung, (beside, gpus), lasts_s in zip(course.first, shares, lengths, strict=True):
        yield Stage(start, start + lasts_s, (Group(gpus, min(beside, rung.trials)),))
        start += lasts_s


def _sha(problem: Problem) -> Brackets | Impossible:
    """Return SHA's one bracket. Raises `ValueError` unless each rung has its `stage_gpus`."""
    gpus, rungs = problem.params.stage_gpus, sha_rungs(problem.params)
    if not gpus:
        cluster = fixed_cluster(problem)
        if isinstance(cluster, Impossible):
            return cluster
        gpus = (cluster.gpus,) * len(rungs)
    elif len(gpus) == len(rungs):
        start_s = problem.start_s
        cluster = FixedCluster(max(gpus), start_s, start_s + problem.planned.deadline_s)
    else:
        raise ValueError(f"{len(gpus)} stages have GPUs, and there are {len(rungs)}")
    bracket = [HalvingRung(n, until, g) for (n, until), g in zip(rungs, gpus, strict=True)]
    return Brackets(problem, cluster, bracket, lambda number: bracket if number == 0 else None)


SHA = halving(_sha)
