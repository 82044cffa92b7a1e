"""A run in chapters: one for each stage, from when the plan says so, and one for the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, PolicyAnswered
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.core.step import commands_of
from seerd.core.step import follow as follow_one
from seerd.runs.reading import begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Journal
from seerd.telling.explanation.explanations import Explanation, KnownBefore, Sizes
from seerd.telling.explanation.reasons import Step, explanations_of, says, wanted_sizes

Follow = Callable[[State, AnyEvent, Sequence[AnyDecision]], None]
"""Leads a state on by one event and its decisions."""


@dataclass(slots=True)
class Chapter:
    """One stage as it went, or the end of the run. Times are in seconds since the run began."""

    start_s: float  # when it began
    end: bool  # True: the end of the run
    stage: int | None = None  # index of the stage, from 0; None: the end, or there is no plan yet
    # when the stage was planned to end; None if the stage began more than once
    planned_end_s: float | None = None
    groups: tuple[Sizes, ...] = ()  # which trials were wanted when it began
    explanations: list[Explanation] = field(default_factory=list)  # what happened in it, in order
    until_s: float | None = None  # when the next chapter began; None: it is the last
    # how many times this stage has begun: brackets that follow each other have the same stages, and
    # an interrupted stage begins again
    times: int = 1

    def is_over(self, planned: bool, event: AnyEvent, state: State) -> bool:
        """Return whether another stage begins, or a run that had ended goes on."""
        if self.end:
            return state.phase is RunPhase.RUNNING
        if not planned or self.stage is None:
            return False
        new = {one.trial for one in event.plan.new} if isinstance(event, PolicyAnswered) else set()
        fresh = len(state.outline.stages) > 1 and bool(new) and state.plan.wanted.keys() <= new
        return state.plan.stage != self.stage or fresh


@dataclass(slots=True)
class Timeline:
    """What has happened so far."""

    # leads the state from one event to the next; a caller may pass a function that also decides
    # again, but only what was recorded is shown
    go: Follow = follow_one
    chapters: list[Chapter] = field(default_factory=list)  # in order
    # all attempts, and what else earlier entries have shown that explains what follows
    attempts: KnownBefore = field(default_factory=KnownBefore)
    commands: int = 0  # how many commands were read

    @property
    def explanations(self) -> Iterator[Explanation]:
        """All explanations, in order."""
        return (explanation for chapter in self.chapters for explanation in chapter.explanations)

    def by_trial(self) -> dict[str, list[Explanation]]:
        """Return what has happened to every trial; plans are about all."""
        by_trial: dict[str, list[Explanation]] = {}
        for one in self.explanations:
            if one.kind != "planned" and (trial := one.facts.get("trial")) is not None:
                by_trial.setdefault(trial, []).append(one)
        return by_trial

    def read(self, state: State, event: AnyEvent, decided: Sequence[AnyDecision]) -> None:
        """Read one entry of the journal: move the state on, and note what happened."""
        step = Step.before(event, decided, self.attempts, state) if says(event, decided) else None
        self.go(state, event, decided)
        self.attempts.hear(event, state)
        if decided:
            self.commands += len(commands_of(decided))
        if step is None:
            return
        explanations = list(explanations_of(step))
        kinds = {one.kind for one in explanations}
        planned = "planned" in kinds
        last = self.chapters[-1] if self.chapters else None
        if last is None or "closing" in kinds or last.is_over(planned, event, state):
            if last is not None:
                last.until_s = state.now
            self.chapters.append(Chapter(state.now, end=state.phase is not RunPhase.RUNNING))
            self._count()
        chapter = self.chapters[-1]
        if planned and chapter.stage is None and not chapter.end:
            chapter.stage, chapter.groups = state.plan.stage, wanted_sizes(state)
            self._count()
            if chapter.times == 1:
                chapter.planned_end_s = state.outline.stages[chapter.stage].end_s
        chapter.explanations += explanations

    def _count(self) -> None:
        last, same = self.chapters[-1], [(one.stage, one.end) for one in self.chapters]
        last.times = same.count((last.stage, last.end))


@dataclass(slots=True)
class RunHistory:
    """A run as far as it was read."""

    timeline: Timeline  # what has happened
    state: State  # how it stands
    # when it began, wall clock, seconds since 1970, moved forward by the time for which it was
    # interrupted
    began: float

    def read_on(self, folder: RunFolder) -> None:
        """Read what was written since. Raises `JournalError`."""
        with Journal.open(folder.journal, read_only=True) as journal:
            self.began = journal.origin
            entries = journal.entries(self.state.clock.seq)
            follow(self.state, entries, self.timeline.read)


def read_history(folder: RunFolder) -> RunHistory:
    """Read a run to the end of its journal. Raises `JournalError`."""
    with Journal.open(folder.journal, read_only=True) as journal:
        state, entries = begin(journal)
        timeline = Timeline()
        follow(state, entries, timeline.read)
        return RunHistory(timeline, state, journal.origin)


@dataclass(slots=True)
class Cost:
    """What one chapter cost, or one instance in it, in GPU-seconds."""

    instance: str  # id of the instance; empty for a chapter
    gpus: float  # how many GPUs it has; for a chapter, all its instances together
    billed: Fraction = Fraction(0)  # what was billed
    held: float = 0.0  # of that, while a trial held the GPUs; the rest is idle
    starting: float = 0.0  # of `held`, until the trial trained: processes, imports, loading
    instances: tuple[Cost, ...] = ()  # of a chapter: the cost of each of its instances

    @property
    def idle(self) -> float:
        """GPU-seconds that were billed while no trial held the GPUs."""
        return max(0.0, float(self.billed) - self.held)

    @classmethod
    def of(cls, instances: Iterable[Cost]) -> Cost:
        """Sum up a chapter from its instances."""
        some = tuple(one for one in instances if one.billed or one.held)
        billed = sum((one.billed for one in some), Fraction(0))
        held, starting = sum(one.held for one in some), sum(one.starting for one in some)
        return cls("", sum(one.gpus for one in some), billed, held, starting, some)


def costs(timeline: Timeline, state: State, now_s: float) -> list[Cost]:
    """Divide what the run cost up to `now_s` (seconds since it began) between its chapters."""
    starts = [chapter.start_s for chapter in timeline.chapters]
    books: list[dict[str, Cost]] = [{} for _ in starts]
    for charge in state.ledger.charges() if starts else ():
        instance = state.fleet.instances.get(charge.instance)
        gpus = charge.gpus if instance is None else state.facts.gpus(instance.gpus)
        until_s = charge.end_s(now_s)
        for chapter, seconds in _divided(charge.since_s, until_s, starts, charge.minimum_s):
            fresh = Cost(charge.instance, gpus)
            books[chapter].setdefault(charge.instance, fresh).billed += (
                Fraction(charge.gpus) * seconds
            )
    unbilled = Cost("", 0)
    for attempt in timeline.attempts.all:
        for held in attempt.charges:
            since_s = held.since_s
            for chapter, seconds in _divided(since_s, max(since_s, held.end_s(now_s)), starts):
                books[chapter].get(held.instance, unbilled).held += held.gpus * float(seconds)
            trains_s = max(since_s, attempt.trains_s(held, now_s))
            for chapter, seconds in _divided(since_s, trains_s, starts):
                books[chapter].get(held.instance, unbilled).starting += held.gpus * float(seconds)
    for one in (one for book in books for one in book.values()):
        if not state.facts.cluster.per_instance:
            one.held = float(one.billed)
        # After a restart the beginning of a charge may be corrected to later than the attempt was
        # seen to start.
        one.starting = min(one.held, one.starting)
    return [Cost.of(book.values()) for book in books]


def _divided(
    since_s: float, until_s: float, starts: Sequence[float], least_s: float = 0.0
) -> Iterator[tuple[int, Fraction]]:
    """Divide an interval where chapters begin; yield the index of a chapter, and seconds in it.

    What was before the first chapter is part of it. What the shortest billed time adds is in the
    last. The ledger counts a charge that begins after now as less than nothing, and the chapters
    must add up to its total.
    """
    since, lasted = Fraction(since_s), Fraction(until_s) - Fraction(since_s)
    first, last = (max(0, bisect_right(starts, at_s) - 1) for at_s in (since_s, until_s))
    had = Fraction(0)
    for chapter in range(min(first, last), last):
        whole = Fraction(starts[chapter + 1]) - since
        yield chapter, whole - had
        had = whole
    yield last, (max(Fraction(least_s), lasted) if least_s else lasted) - had
