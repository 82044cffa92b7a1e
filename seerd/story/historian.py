"""Watches a run's steps and writes down what happened and why, in chapters: one for each stage, and one for the end.

The one rule: it makes the steps itself, so that it sees the state before and after each; it changes nothing of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seerd.core.commands import AnyCommand, Finish, Launch, Publish, StartTrial, StopTrial, Terminate
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    PublishFailed,
    Remarked,
    RunResumed,
    StopAsked,
    TrialExited,
    TrialReported,
    TrialTraining,
)
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.core.step import QUIET, step
from seerd.story import reasons_of_instances as instances
from seerd.story import reasons_of_the_run as run
from seerd.story import reasons_of_trials as trials
from seerd.story.attempts import Attempts, gone
from seerd.story.beats import (
    AnyBeat,
    HeldBack,
    Planned,
    Remark,
    Sized,
    StopWanted,
)
from seerd.story.before import Before


@dataclass(slots=True)
class Chapter:
    """One stage as it went, or the end of the run (`stage` None): from `start_s` until the next one began (None: it is the last).

    planned_end_s  until when the stage was planned, None if it began more than once
    times          how many times it has begun: brackets that follow each other have the same stages, an interrupted one begins again
    groups         who was wanted when it began
    """

    stage: int | None
    start_s: float
    planned_end_s: float | None
    groups: tuple[Sized, ...]
    beats: list[AnyBeat] = field(default_factory=list)
    until_s: float | None = None
    times: int = 1


@dataclass(slots=True)
class Story:
    """What has happened so far. `events` and `commands` are counted."""

    chapters: list[Chapter] = field(default_factory=list)
    attempts: Attempts = field(default_factory=Attempts)
    events: int = 0
    commands: int = 0

    @property
    def beats(self) -> Iterator[AnyBeat]:
        """All of them, in order."""
        return (beat for chapter in self.chapters for beat in chapter.beats)

    def of_trial(self, trial: str) -> list[AnyBeat]:
        """Those that name a trial."""
        return [beat for beat in self.beats if getattr(beat, "trial", None) == trial and not isinstance(beat, Planned)]


class Historian:
    """Steps through a run and keeps its story."""

    def __init__(self) -> None:
        self.story = Story()
        self._asked_s: dict[str, float] = {}
        self._held_back: tuple[str, bool] | None = None

    def step(self, state: State, event: AnyEvent) -> list[AnyCommand]:
        """As the core's `step`, and what followed from it is written down."""
        before = Before.of(state, event)
        publish = state.under_way.get(event.command) if isinstance(event, PublishFailed) else None
        commands = step(state, event)
        self.story.events += 1
        self.story.commands += len(commands)
        if isinstance(event, TrialTraining | TrialReported):
            self.story.attempts.hear(event, state)
        if isinstance(event, QUIET) and not state.stirred:
            return commands
        new = [command for command in commands if command.id.partition(".")[0] == str(state.seq)]
        beats = [*self._facts(before, event, state), *self._decisions(before, event, state)]
        if isinstance(publish, Publish) and isinstance(event, PublishFailed):
            beats.append(run.not_usable(event, publish, state))
        beats += self._orders(before, event, new, state)
        if (held := self._news_of_holding(state)) is not None:
            beats.append(held)
        self._write(before, state, beats)
        return commands

    def _facts(self, before: Before, event: AnyEvent, state: State) -> Iterator[AnyBeat]:
        """What the event says."""
        match event:
            case RunResumed():
                yield run.resumed(before, event, state)
            case StopAsked():
                yield StopWanted(event=state.seq, at_s=state.now, hard=event.hard)
            case InstanceReady() if event.instance in state.fleet.instances:
                yield instances.came(event, self._asked_s.get(event.command, state.now), state)
            case LaunchRefused() if event.command in state.fleet.instances:
                yield instances.refused(event, state)
            case InstanceNoticed():
                there = state.fleet.instances.get(event.instance)
                busy = tuple(dict.fromkeys(there.busy.values())) if there is not None else ()
                yield instances.noticed(event, busy, state)
            case Remarked():
                yield Remark(event=state.seq, at_s=state.now, text=event.text)
            case _:
                pass
        yield from self._ends(before, event, state)

    def _ends(self, before: Before, event: AnyEvent, state: State) -> Iterator[AnyBeat]:
        """Instances and attempts that are gone."""
        attempts = self.story.attempts
        if isinstance(event, TrialExited):
            attempts.leave(before, event)
        if isinstance(event, InstanceLost | RunResumed):
            names = gone(before, event, state)
            for name in names:
                attempts.lose(name, before, state)
            yield from instances.lost(names, before, state)
        if isinstance(event, InstanceTerminated) and event.instance in state.fleet.instances:
            attempts.lose(event.instance, before, state)
        for ended in trials.ended(before, event, state):
            attempts.end(ended, event)
            yield ended

    def _decisions(self, before: Before, event: AnyEvent, state: State) -> Iterator[AnyBeat]:
        """What the policy and the limits say to it."""
        if state.plan is not before.plan:
            yield trials.planned(before, event, state)
            yield from trials.judged(before, state)
        if run.ends(before, state):
            yield run.closing(before, state)

    def _orders(
        self, before: Before, event: AnyEvent, commands: Sequence[AnyCommand], state: State
    ) -> Iterator[AnyBeat]:
        """What was asked for."""
        launched = [command for command in commands if isinstance(command, Launch)]
        for command in commands:
            match command:
                case StopTrial():
                    yield trials.stopped(before, command, state)
                case StartTrial():
                    started = trials.started(command, state)
                    self.story.attempts.start(started)
                    yield started
                case Launch():
                    self._asked_s[command.id] = state.now
                case Publish():
                    yield run.chosen(command, state)
                case Finish():
                    yield run.over(command, state)
                case _:
                    pass
        if launched:
            yield instances.asked(before, event, launched, state)
        yield from instances.given_back(before, event, [c for c in commands if isinstance(c, Terminate)], state)

    def _news_of_holding(self, state: State) -> HeldBack | None:
        """That something is held back is told once, when it begins."""
        held = instances.held_back(state)
        now = None if held is None else (held.why, bool(held.trials))
        told, self._held_back = self._held_back, now
        return held if now is not None and now != told else None

    def _write(self, before: Before, state: State, beats: Sequence[AnyBeat]) -> None:
        chapters = self.story.chapters
        if not chapters or _turns(before, state, chapters[-1]):
            if chapters:
                chapters[-1].until_s = state.now
            chapters.append(_chapter(state, chapters))
        chapters[-1].beats += beats


def _turns(before: Before, state: State, last: Chapter) -> bool:
    """Whether another stage, or the end, begins with this step."""
    if state.phase is not RunPhase.RUNNING:
        return before.phase is RunPhase.RUNNING
    if last.stage is None or state.plan is before.plan:
        return last.stage is None
    several = len(state.outline.stages) > 1
    fresh = several and bool(state.plan.last.new) and not before.wanted.keys() & state.plan.wanted.keys()
    return state.plan.stage != last.stage or fresh


def _chapter(state: State, earlier: Sequence[Chapter]) -> Chapter:
    stage = state.plan.stage if state.phase is RunPhase.RUNNING else None
    times = 1 + sum(chapter.stage == stage for chapter in earlier)
    if stage is None:
        return Chapter(None, state.now, None, (), times=times)
    groups = trials.sized(Counter(allocation.gpus for allocation in state.plan.wanted.values()))
    planned_end_s = state.outline.stages[stage].end_s if times == 1 else None
    return Chapter(stage, state.now, planned_end_s, groups, times=times)
