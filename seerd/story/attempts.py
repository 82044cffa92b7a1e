"""Attempts of trials: where each was, for how long, what it reported, how it ended.

The one rule: an attempt holds its GPUs on an instance from the order to start it until its processes there are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from seerd.core.events import AnyEvent, InstanceLost, TrialExited, TrialReported, TrialTraining
from seerd.core.state import Report, State
from seerd.story.beats import Ended, Started
from seerd.story.before import Before


@dataclass(slots=True)
class Held:
    """GPUs of one instance, by index, from `since_s` to `until_s` (None: still)."""

    instance: str
    gpus: tuple[int, ...]
    since_s: float
    until_s: float | None = None


@dataclass(slots=True)
class Attempt:
    """One attempt.

    training_s   when it reached its training loop, None if it did not; it went on after `after_reports` reports
    first, last, best   its reports; None if it made none
    count        how many it made
    """

    started: Started
    held: list[Held]
    training_s: float | None = None
    after_reports: int = 0
    first: Report | None = None
    last: Report | None = None
    best: Report | None = None
    count: int = 0
    ended_s: float | None = None
    ended: Ended | None = None

    @property
    def gpus(self) -> int:
        """In all."""
        return sum(len(held.gpus) for held in self.held)

    def gpu_s(self, now_s: float) -> float:
        """GPU-seconds for which it has held its GPUs."""
        return sum(len(h.gpus) * max(0.0, (now_s if h.until_s is None else h.until_s) - h.since_s) for h in self.held)


@dataclass(slots=True)
class Attempts:
    """All attempts of a run, in the order in which they were ordered."""

    all: list[Attempt] = field(default_factory=list)
    _last: dict[str, Attempt] = field(default_factory=dict)

    def of(self, trial: str) -> list[Attempt]:
        """Those of one trial."""
        return [attempt for attempt in self.all if attempt.started.trial == trial]

    def start(self, started: Started) -> None:
        """One more."""
        held = [Held(on.instance, on.gpus, started.at_s) for on in started.on]
        self._last[started.trial] = Attempt(started, held)
        self.all.append(self._last[started.trial])

    def hear(self, event: TrialTraining | TrialReported, state: State) -> None:
        """What an attempt tells of itself; what came too late to count does not count here either."""
        attempt, trial = self._last.get(event.trial), state.trials.get(event.trial)
        if attempt is None or trial is None or trial.held is None or trial.attempt != event.attempt:
            return
        if isinstance(event, TrialTraining):
            attempt.training_s = attempt.training_s or event.happened
            attempt.after_reports = event.epoch
        elif trial.history and trial.history[-1].epoch == event.epoch:
            attempt.count += 1
            attempt.last = trial.history[-1]
            attempt.first = attempt.first or attempt.last
            attempt.best = _better(attempt.best, attempt.last, state)

    def leave(self, before: Before, event: TrialExited) -> None:
        """It is gone from one of its instances."""
        old, attempt = before.trials.get(event.trial), self._last.get(event.trial)
        if old is None or attempt is None or old.attempt != event.attempt or attempt.ended is not None:
            return
        for held in attempt.held:
            if held.instance == event.instance and held.until_s is None:
                held.until_s = max(held.since_s, event.happened)

    def lose(self, instance: str, before: Before, state: State) -> None:
        """An instance is gone, and with it what ran there."""
        ended_s = state.fleet.instances[instance].ended_at
        for name in before.trials:
            for held in self._last[name].held if name in self._last else ():
                if held.instance == instance and held.until_s is None:
                    held.until_s = max(held.since_s, state.now if ended_s is None else ended_s)

    def end(self, ended: Ended, event: AnyEvent) -> None:
        """Nothing of it is left."""
        attempt = self._last[ended.trial]
        happened = getattr(event, "happened", ended.at_s)
        for held in attempt.held:
            if held.until_s is None:
                held.until_s = max(held.since_s, happened)
        attempt.ended = ended
        attempt.ended_s = max(held.until_s or 0.0 for held in attempt.held)

    def holding(self) -> Iterator[tuple[Attempt, Held]]:
        """Each attempt with each of the instances that it was on."""
        return ((attempt, held) for attempt in self.all for held in attempt.held)


def gone(before: Before, event: AnyEvent, state: State) -> list[str]:
    """Instances that have been lost with this event."""
    if isinstance(event, InstanceLost):
        instance = state.fleet.instances.get(event.instance)
        return [event.instance] if instance is not None and instance.ended_at is not None else []
    return [name for name in before.there if state.fleet.instances[name].ended_at is not None]


def _better(old: Report | None, new: Report, state: State) -> Report | None:
    if new.metric is None or (old is not None and old.metric is not None and not _beats(new.metric, old.metric, state)):
        return old
    return new


def _beats(new: float, old: float, state: State) -> bool:
    return new > old if state.facts.mode == "max" else new < old
