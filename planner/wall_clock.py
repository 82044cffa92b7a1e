"""Schedules by the wall clock: tracks of trials, each with its own rounds. When a round ends, the
best trials of its track go on to the next one and the others are out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from msgspec import convert

from seerd.planner.caching import prepared
from seerd.planner.draws import draws
from seerd.planner.memory import FORGOTTEN, Count, Json, Memory, Values, holding, recall
from seerd.planner.model import (
    Allocation,
    Bracket,
    Group,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Policy,
    Problem,
    Stage,
    View,
)
from seerd.planner.ranking import compared, rank
from seerd.planner.space import Config
from seerd.planner.trial_ids import in_order, trial_name

VERSION = 1  # of what is remembered


@dataclass(frozen=True, slots=True)
class Round:
    """Trials that run side by side between two moments."""

    start_s: float  # seconds since the run began
    end_s: float  # seconds since the run began
    trials: int
    gpus: int  # GPUs of each trial


Track = tuple[Round, ...]  # follow each other without a gap, with fewer and fewer trials
Sampler = Callable[[Problem, int], Iterable[Config]]  # gives as many as asked for


@dataclass(frozen=True, slots=True)
class Timetable:
    """What follows from the problem alone."""

    tracks: tuple[Track, ...]
    # the trials with which each track begins; ids are given out track by track
    firsts: tuple[list[str], ...]
    ends: tuple[float, ...]  # when each round ends, ascending, seconds since the run began
    begins_s: float  # when the first track begins; trials that exist earlier may run from then on

    def stages(self) -> Iterator[Stage]:
        """Yield the stages: from each moment at which something changes to the next."""
        rounds, start = [r for track in self.tracks for r in track], self.begins_s
        for end in self.ends:
            running = [r for r in rounds if r.start_s <= start and r.end_s >= end]
            sizes = sorted({r.gpus for r in running})
            groups = (Group(p, sum(r.trials for r in running if r.gpus == p)) for p in sizes)
            yield Stage(start, end, tuple(groups))
            start = end

    def read(self, values: Values) -> Fields:
        """Read the fields; a track of which nothing is remembered has its first trials."""
        return tuple(
            convert({"round": values[f"round {n}"], "members": values.get(f"members {n}")}, Field)
            if f"round {n}" in values
            else Field(0, first)
            for n, first in enumerate(self.firsts)
        )

    def written(self, fields: Fields) -> Values:
        """Return what `read` reads."""
        values: dict[str, Json] = {"version": VERSION}
        for n, (now, first) in enumerate(zip(fields, self.firsts, strict=True)):
            if now != Field(0, first):
                values |= {f"round {n}": now.round, f"members {n}": [*now.members]}
        return values


@dataclass(frozen=True, slots=True)
class Field:
    """The trials in a track."""

    round: Count  # the number of their round, from 0
    members: list[str]  # best first when the round began; at first in the order of the ids


Fields = tuple[Field, ...]
Step = tuple[Fields, Plan]  # how far an answer has come: each track's field, and the plan so far


def by_wall_clock(
    tracks_of: Callable[[Problem], Sequence[Track] | Impossible], sampler: Sampler | None = None
) -> Policy:
    """Make the policy that follows these tracks; configurations are drawn, or from `sampler`."""

    def timetable(problem: Problem) -> Timetable | Impossible:
        tracks = tracks_of(problem)
        if isinstance(tracks, Impossible):
            return tracks
        sizes = [track[0].trials for track in tracks]
        ids = (trial_name(number, len(str(sum(sizes)))) for number in count(1))
        return Timetable(
            tuple(tracks),
            tuple(list(islice(ids, size)) for size in sizes),
            tuple(sorted({r.end_s for track in tracks for r in track})),
            min(track[0].start_s for track in tracks),
        )

    def outline(problem: Problem, table: Timetable) -> Outline:
        stages = tuple(table.stages())
        brackets = []
        for track in table.tracks:
            gpu_s = sum(r.trials * r.gpus * (r.end_s - r.start_s) for r in track)
            brackets.append(Bracket(track[0].gpus, track[0].trials, gpu_s))
        return Outline(
            brackets=tuple(brackets),
            stages=stages,
            first_round_s=stages[0].end_s - stages[0].start_s,
            adjusted=problem.adjusted,
        )

    def plan(problem: Problem, table: Timetable, memory: Memory, view: View) -> tuple[Plan, Memory]:
        fields = recall(memory, VERSION, table.read)
        plan = Plan()
        if fields is None:
            if view.trials:
                fields, plan = _taken_up(table, view)
            else:
                fields = tuple(Field(0, first) for first in table.firsts)
                ids = [name for first in table.firsts for name in first]
                drawn = draws(problem)
                configs = sampler(problem, len(ids)) if sampler else (drawn[n] for n in count())
                plan = Plan(new=tuple(NewTrial(*pair) for pair in zip(ids, configs, strict=False)))
            view = view.with_new(plan.new)
        for number, track in enumerate(table.tracks):
            present = fields[number].round
            # the last round is not followed by another
            while present + 1 < len(track) and view.now_s >= track[present].end_s:
                present += 1
                fields, plan = _cut((fields, plan), number, track, present, view)
        return _wanted(table, fields, plan, view), holding(memory, table.written(fields))

    return prepared(timetable, outline, plan)


def _taken_up(table: Timetable, view: View) -> Step:
    """Go on without a memory: ids tell the tracks, the clock their rounds; the best live stay."""
    ids = iter(in_order(view.trials))
    members = [_live(islice(ids, len(first)), view) for first in table.firsts]
    fields = tuple(Field(0, names) for names in members)
    step = fields, Plan(eliminated=tuple(_live(ids, view)), note=FORGOTTEN)
    for number, track in enumerate(table.tracks):
        if present := sum(view.now_s >= r.end_s for r in track[:-1]):
            step = _cut(step, number, track, present, view)
    return step


def _live(names: Iterable[str], view: View) -> list[str]:
    return [name for name in names if view.trials[name].status == "live"]


def _cut(step: Step, number: int, track: Track, present: int, view: View) -> Step:
    """Keep the best trials of a track as its field in this round; the others are out."""
    fields, plan = step
    ranked = rank((view.trials[name] for name in fields[number].members), view.mode)
    ordered, places = [trial.id for trial in ranked], track[present].trials
    kept = Field(present, ordered[:places])
    eliminated = (*plan.eliminated, *ordered[places:])
    seen = (*plan.compared, *compared(ranked, places, number))
    plan = replace(plan, eliminated=eliminated, compared=seen)
    return (*fields[:number], kept, *fields[number + 1 :]), plan


def _wanted(table: Timetable, fields: Fields, plan: Plan, view: View) -> Plan:
    stage, last = sum(view.now_s >= end_s for end_s in table.ends), len(table.ends) - 1
    plan = replace(plan, stage=min(stage, last), done=stage > last)
    if plan.done:
        return plan
    under_way = []
    began_s = max(view.now_s, table.begins_s)
    for number, (track, now) in enumerate(zip(table.tracks, fields, strict=True)):
        present = track[now.round]
        if began_s >= present.start_s and view.now_s < present.end_s:
            under_way.append((-present.gpus, number))
    running = tuple(
        Allocation(name, -gpus, number)
        for gpus, number in sorted(under_way)  # larger trials are the more promising ones
        for name in fields[number].members
        if view.trials[name].status == "live"
    )
    more = any(track[0].start_s > began_s for track in table.tracks)
    done = not running and not more
    return replace(
        plan, allocations=running, ask_at_s=table.ends[stage], ask_on_end=False, done=done
    )
