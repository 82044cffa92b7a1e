"""Schedules by the wall clock: tracks of trials that run side by side or one after the other, each with its own rounds.

The one rule: when a round of a track ends, its best trials go on to the next one and the others are out; tracks do not exchange trials.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.model import (
    Allocation,
    Bracket,
    Compared,
    Group,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Problem,
    Stage,
    View,
)
from planner.names import trial_name
from planner.ranking import compared, rank
from planner.space import Config


@dataclass(frozen=True, slots=True)
class Round:
    """`trials` trials on `gpus` GPUs each, from `start_s` to `end_s` (seconds since the run began)."""

    start_s: float
    end_s: float
    trials: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Track:
    """Rounds that follow each other without a gap, with fewer and fewer trials."""

    rounds: tuple[Round, ...]

    @property
    def bracket(self) -> Bracket:
        """What the track takes."""
        gpu_s = sum(r.trials * r.gpus * (r.end_s - r.start_s) for r in self.rounds)
        return Bracket(self.rounds[0].gpus, self.rounds[0].trials, gpu_s)


Sampler = Callable[[Problem, random.Random, int], Iterable[Config]]
"""So many configurations."""


def at_random(problem: Problem, rng: random.Random, count: int) -> Iterable[Config]:
    """Independent draws from the space."""
    return (problem.space.sample(rng) for _ in range(count))


class Clocked:
    """A policy made of tracks."""

    def __init__(self, problem: Problem, tracks: Sequence[Track] | Impossible, sampler: Sampler = at_random) -> None:
        self._problem = problem
        self._tracks = tracks
        self._sampler = sampler
        self._members: list[list[str]] = []
        self._round: list[int] = []
        self._compared: list[Compared] = []
        self._ends: list[float] = []
        if not isinstance(tracks, Impossible):
            self._ends = sorted({r.end_s for track in tracks for r in track.rounds})

    def outline(self) -> Outline | Impossible:
        """The stages between any two moments at which something changes."""
        if isinstance(self._tracks, Impossible):
            return self._tracks
        stages = tuple(_stages(self._tracks))
        return Outline(
            brackets=tuple(track.bracket for track in self._tracks),
            stages=stages,
            first_round_s=stages[0].end_s - stages[0].start_s,
            adjusted=self._problem.adjusted,
        )

    def plan(self, view: View) -> Plan:
        """Who runs now. Raises `ValueError` if the limits fit nothing, which `outline` tells before."""
        if isinstance(self._tracks, Impossible):
            raise ValueError(self._tracks.reason)
        new = self._begin(self._tracks) if not self._members else ()
        view = view.with_new(new)
        out: list[str] = []
        self._compared = []
        for number, track in enumerate(self._tracks):
            out += self._advance(number, track, view)
        running = tuple(a for a in self._allocations(self._tracks, view) if view.trials[a.trial].status == "live")
        stage = sum(self._over(end, view.now_s) for end in self._ends)
        if stage == len(self._ends):
            return Plan(new=new, eliminated=tuple(out), stage=stage - 1, done=True, compared=tuple(self._compared))
        done = not running and not self._more(view.now_s)
        last = self._problem.whole and stage == len(self._ends) - 1
        ask_at_s = None if last else self._ends[stage]
        plan = Plan(running, new, tuple(out), stage, ask_at_s, ask_on_end=False, done=done)
        return replace(plan, compared=tuple(self._compared))

    def _over(self, end_s: float, now_s: float) -> bool:
        """Whether a round has ended; the last one goes on as long as the limits allow where whole instances are paid."""
        return now_s >= end_s and not (self._problem.whole and end_s == self._ends[-1])

    def _begin(self, tracks: Sequence[Track]) -> tuple[NewTrial, ...]:
        rng = random.Random(self._problem.params.seed)
        count = sum(track.rounds[0].trials for track in tracks)
        configs = self._sampler(self._problem, rng, count)
        new = tuple(NewTrial(trial_name(i, len(str(count))), config) for i, config in enumerate(configs, 1))
        names = iter(trial.id for trial in new)
        self._members = [[next(names) for _ in range(track.rounds[0].trials)] for track in tracks]
        self._round = [0] * len(tracks)
        return new

    def _advance(self, number: int, track: Track, view: View) -> list[str]:
        """Rounds that have ended: who is out."""
        out: list[str] = []
        while self._round[number] < len(track.rounds) and self._over(
            track.rounds[self._round[number]].end_s, view.now_s
        ):
            self._round[number] += 1
            if self._round[number] == len(track.rounds):
                break
            ranked = rank((view.trials[name] for name in self._members[number]), view.mode)
            ordered = [trial.id for trial in ranked]
            places = track.rounds[self._round[number]].trials
            self._compared += compared(ranked, places, number)
            self._members[number] = ordered[:places]
            out += ordered[places:]
        return out

    def _allocations(self, tracks: Sequence[Track], view: View) -> Iterator[Allocation]:
        """Larger trials first, as they are the more promising ones."""
        now = [(r.gpus, number) for number, r in self._present(tracks, view.now_s)]
        for gpus, number in sorted(now, key=lambda pair: (-pair[0], pair[1])):
            for name in self._members[number]:
                yield Allocation(name, gpus, number)

    def _present(self, tracks: Sequence[Track], now_s: float) -> Iterator[tuple[int, Round]]:
        for number, track in enumerate(tracks):
            present = self._round[number]
            first = min(other.rounds[0].start_s for other in tracks)
            if present < len(track.rounds) and max(now_s, first) >= track.rounds[present].start_s:
                yield number, track.rounds[present]

    def _more(self, now_s: float) -> bool:
        """Whether a track is still to begin."""
        return not isinstance(self._tracks, Impossible) and any(t.rounds[0].start_s > now_s for t in self._tracks)


def _stages(tracks: Sequence[Track]) -> Iterator[Stage]:
    rounds = [r for track in tracks for r in track.rounds]
    ends = sorted({r.end_s for r in rounds})
    start = min(r.start_s for r in rounds)
    for end in ends:
        running = [r for r in rounds if r.start_s <= start and r.end_s >= end]
        sizes = sorted({r.gpus for r in running})
        yield Stage(start, end, tuple(Group(p, sum(r.trials for r in running if r.gpus == p)) for p in sizes))
        start = end
