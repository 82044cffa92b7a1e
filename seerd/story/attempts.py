"""Attempts of trials: where each was, for how long, what it reported, how it ended.

The one rule: an attempt holds its GPUs on an instance from the order to start it until its
processes there are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from seerd.core.events import AnyEvent, TrialExited, TrialReported, TrialTraining
from seerd.core.incumbent import sign_of
from seerd.core.state import Report, State
from seerd.story.beats import Ended, Started, Stopped


@dataclass(slots=True)
class Held:
    """GPUs of one instance, by index, from `since_s` to `until_s` (None: still)."""

    instance: str
    gpus: tuple[int, ...]
    since_s: float
    until_s: float | None = None

    def leave(self, at_s: float) -> None:
        """They are free, if they were not before."""
        if self.until_s is None:
            self.until_s = max(self.since_s, at_s)


@dataclass(slots=True)
class Attempt:
    """One attempt.

    stopped      the last order to end it, None if there was none
    training_s   when it reached its training loop, None if it did not; it went on after
                 `after_reports` reports
    first, last, best   its reports; None if it made none
    count        how many it made
    """

    started: Started
    held: list[Held]
    stopped: Stopped | None = None
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
        untils = [now_s if held.until_s is None else held.until_s for held in self.held]
        pairs = zip(self.held, untils, strict=True)
        return sum(len(held.gpus) * max(0.0, until - held.since_s) for held, until in pairs)


@dataclass(slots=True)
class Attempts:
    """All attempts of a run, in the order in which they were ordered."""

    all: list[Attempt] = field(default_factory=list)
    _open: dict[str, Attempt] = field(default_factory=dict)

    def of(self, trial: str) -> list[Attempt]:
        """Those of one trial."""
        return [attempt for attempt in self.all if attempt.started.trial == trial]

    def start(self, started: Started) -> None:
        """One more."""
        held = [Held(on.instance, on.gpus, started.at_s) for on in started.on]
        self._open[started.trial] = Attempt(started, held)
        self.all.append(self._open[started.trial])

    def stop(self, stopped: Stopped) -> None:
        """It was asked to end."""
        self._open[stopped.trial].stopped = stopped

    def hear(self, event: AnyEvent, state: State) -> None:
        """What an attempt tells of itself; what came too late or twice does not count."""
        if not isinstance(event, TrialTraining | TrialReported):
            return
        attempt, trial = self._open.get(event.trial), state.trials.get(event.trial)
        if attempt is None or trial is None or trial.held is None or trial.attempt != event.attempt:
            return
        if isinstance(event, TrialTraining):
            attempt.training_s = attempt.training_s or event.happened
            attempt.after_reports = event.reports
        elif trial.history and trial.history[-1].reports == event.reports:
            _count(attempt, trial.history[-1], sign_of(state))

    def leave(self, event: TrialExited) -> None:
        """It is gone from one of its instances."""
        attempt = self._open.get(event.trial)
        if attempt is None or attempt.started.attempt != event.attempt:
            return
        for held in attempt.held:
            if held.instance == event.instance:
                held.leave(event.happened)

    def lose(self, instance: str, at_s: float) -> tuple[str, ...]:
        """An instance is gone, and with it what ran there: these trials."""
        there = [(t, h) for t, a in self._open.items() for h in a.held if h.instance == instance]
        lost = [(trial, held) for trial, held in there if held.until_s is None]
        for _, held in lost:
            held.leave(at_s)
        return tuple(trial for trial, _ in lost)

    def gone(self, trial: str | None, state: State) -> list[Attempt]:
        """Those of which no process is left, of one trial or of all."""
        some = self._open if trial is None else self._open.keys() & {trial}
        return [self._open[name] for name in some if _gone(self._open[name], state)]

    def end(self, ended: Ended, happened: float) -> None:
        """Nothing of it is left."""
        attempt = self._open.pop(ended.trial)
        for held in attempt.held:
            held.leave(happened)
        attempt.ended = ended
        attempt.ended_s = max(held.until_s or 0.0 for held in attempt.held)

    def holding(self) -> Iterator[tuple[Attempt, Held]]:
        """Each attempt with each of the instances that it was on."""
        return ((attempt, held) for attempt in self.all for held in attempt.held)


def _gone(attempt: Attempt, state: State) -> bool:
    trial = state.trials[attempt.started.trial]
    return trial.held is None or trial.attempt != attempt.started.attempt


def _count(attempt: Attempt, report: Report, sign: float) -> None:
    if report is attempt.last:
        return
    attempt.count += 1
    attempt.last = report
    attempt.first = attempt.first or report
    best = None if attempt.best is None else attempt.best.metric
    better = report.metric is not None and (best is None or sign * report.metric > sign * best)
    attempt.best = report if better else attempt.best
