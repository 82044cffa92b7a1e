"""A run's story in chapters: one for each stage, and one for the end.

The one rule: a stage begins when the plan says so, the end when the run is closed; what happens is
in the chapter of its moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from seerd.core.aiming import instances_needed
from seerd.core.commands import AskPolicy, Publish
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.story.attempts import Attempts
from seerd.story.beats import AnyBeat, Closing, Planned, Sized


@dataclass(slots=True)
class Chapter:
    """One stage as it went, or the end of the run (`end`): from `start_s` until the next one began
    (None: it is the last).

    stage          from 0; None: the end, or there is no plan yet, or none was recorded
    planned_end_s  until when the stage was planned, None if it began more than once
    times          how many times it has begun: brackets that follow each other have the same
                   stages, an interrupted one begins again
    groups         who was wanted when it began
    """

    start_s: float
    end: bool
    stage: int | None = None
    planned_end_s: float | None = None
    groups: tuple[Sized, ...] = ()
    beats: list[AnyBeat] = field(default_factory=list)
    until_s: float | None = None
    times: int = 1


@dataclass(slots=True)
class Story:
    """What has happened so far. `events` and `commands` are counted.

    asked_s    when each launch was asked for
    question   what the policy was asked last; `published`: the model that was last to be handed
               back
    """

    chapters: list[Chapter] = field(default_factory=list)
    attempts: Attempts = field(default_factory=Attempts)
    asked_s: dict[str, float] = field(default_factory=dict)
    question: AskPolicy | None = None
    published: Publish | None = None
    events: int = 0
    commands: int = 0

    @property
    def beats(self) -> Iterator[AnyBeat]:
        """All of them, in order."""
        return (beat for chapter in self.chapters for beat in chapter.beats)

    def of_trial(self, trial: str) -> list[AnyBeat]:
        """Those that name a trial."""
        named = (beat for beat in self.beats if getattr(beat, "trial", None) == trial)
        return [beat for beat in named if not isinstance(beat, Planned)]

    def write(self, beats: Sequence[AnyBeat], new: Sequence[str], state: State) -> None:
        """Put what one event has brought into its chapter; `new`: trials its plan asked for."""
        planned = any(isinstance(beat, Planned) for beat in beats)
        closed = any(isinstance(beat, Closing) for beat in beats)
        if not self.chapters or closed or self._turns(planned, new, state):
            self._begin(state)
        chapter = self.chapters[-1]
        if planned and chapter.stage is None and not chapter.end and state.outline.stages:
            self._plan(chapter, state)
        chapter.beats += beats

    def _turns(self, planned: bool, new: Sequence[str], state: State) -> bool:
        """Whether another stage begins, or a run that had ended goes on."""
        last = self.chapters[-1]
        if last.end:
            return state.phase is RunPhase.RUNNING
        if not planned or last.stage is None:
            return False
        several = len(state.outline.stages) > 1
        fresh = several and bool(new) and state.plan.wanted.keys() <= set(new)
        return state.plan.stage != last.stage or fresh

    def _begin(self, state: State) -> None:
        if self.chapters:
            self.chapters[-1].until_s = state.now
        chapter = Chapter(state.now, end=state.phase is not RunPhase.RUNNING)
        alike = (one for one in self.chapters if one.stage is None and one.end == chapter.end)
        chapter.times += sum(1 for _ in alike)
        self.chapters.append(chapter)

    def _plan(self, chapter: Chapter, state: State) -> None:
        """Its stage is known."""
        stage = state.plan.stage
        chapter.times = 1 + sum(one.stage == stage for one in self.chapters)
        chapter.stage = stage
        chapter.groups = wanted(state)
        if chapter.times == 1:
            chapter.planned_end_s = state.outline.stages[stage].end_s


def wanted(state: State) -> tuple[Sized, ...]:
    """How many trials are wanted with each number of GPUs, largest first."""
    sizes = sorted(_sizes(state).items(), reverse=True)
    return tuple(Sized(trials=trials, gpus_per_trial=gpus) for gpus, trials in sizes)


def needed(state: State) -> int | None:
    """How many instances the wanted trials need; None where the plan was not recorded."""
    return instances_needed(_sizes(state), state.facts.cluster) if state.plan.asked else None


def _sizes(state: State) -> Mapping[int, int]:
    return Counter(allocation.gpus for allocation in state.plan.wanted.values())
