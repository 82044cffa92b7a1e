"""Attempts of trials: where each was, for how long, what it reported, how it ended.

The one rule: an attempt holds its GPUs on an instance from the order to start it until its
processes there are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seerd.core.events import AnyEvent, TrialExited, TrialReported, TrialTraining
from seerd.core.state import State
from seerd.explanation.explanations import Explanation
from seerd.planner.model import Report


@dataclass(slots=True)
class Held:
    """So many GPUs of one instance, from `since_s` to `until_s` (None: still)."""

    instance: str
    gpus: int
    since_s: float
    until_s: float | None = None

    def leave(self, at_s: float) -> None:
        """Free them, if they were not free before."""
        if self.until_s is None:
            self.until_s = max(self.since_s, at_s)

    def until(self, now_s: float) -> float:
        """Give when they were free, or now."""
        return max(self.since_s, now_s if self.until_s is None else self.until_s)


@dataclass(slots=True)
class AttemptHistory:
    """One attempt, of which `started` and later `ended` tell.

    stopped      the last order to end it, None if there was none
    training_s   when it reached its training loop, None if it did not; it went on after
                 `after_reports` reports
    made         its reports
    """

    started: Explanation
    held: list[Held]
    stopped: Explanation | None = None
    training_s: float | None = None
    after_reports: int = 0
    made: list[Report] = field(default_factory=list)
    ended: Explanation | None = None

    @property
    def ended_s(self) -> float | None:
        """Give when it was gone from all its instances; None: it is not."""
        return None if self.ended is None else max(held.until_s or 0.0 for held in self.held)

    def gpu_s(self, now_s: float) -> float:
        """Give the GPU-seconds for which it has held its GPUs."""
        return sum(held.gpus * (held.until(now_s) - held.since_s) for held in self.held)


@dataclass(slots=True)
class Attempts:
    """All attempts of a run, in the order in which they were ordered; those that have not ended by
    trial.
    """

    all: list[AttemptHistory] = field(default_factory=list)
    open: dict[str, AttemptHistory] = field(default_factory=dict)

    def of(self, trial: str) -> list[AttemptHistory]:
        """Give those of one trial."""
        return [attempt for attempt in self.all if attempt.started.trial == trial]

    def start(self, started: Explanation) -> None:
        """Add one."""
        held = [Held(on.instance, len(on.gpus), started.at_s) for on in started.on]
        self.open[started.trial] = AttemptHistory(started, held)
        self.all.append(self.open[started.trial])

    def hear(self, event: AnyEvent, state: State) -> None:
        """Note what an attempt tells of itself; what came too late or twice does not count."""
        if not isinstance(event, TrialTraining | TrialReported):
            return
        attempt, trial = self.open.get(event.trial), state.trials.get(event.trial)
        if attempt is None or trial is None or trial.held is None or trial.attempt != event.attempt:
            return
        if isinstance(event, TrialTraining):
            attempt.training_s = attempt.training_s or event.happened
            attempt.after_reports = event.reports
            return
        newest = trial.history[-1:]
        if newest and newest[0].reports == event.reports and attempt.made[-1:] != newest:
            attempt.made += newest

    def on(self, instance: str) -> tuple[str, ...]:
        """Name the trials that hold GPUs of an instance."""
        held = ((trial, held) for trial, attempt in self.open.items() for held in attempt.held)
        return tuple(t for t, h in held if h.instance == instance and h.until_s is None)

    def leave(self, event: AnyEvent, state: State) -> list[AttemptHistory]:
        """Free the GPUs of processes that are gone after an event; give the attempts that have
        none left.
        """
        some = self.open.keys() & {event.trial} if isinstance(event, TrialExited) else self.open
        gone = []
        for attempt in [self.open[name] for name in some]:
            trial = state.trials[attempt.started.trial]
            ended = trial.held is None or trial.attempt != attempt.started.attempt
            left = () if ended else [slots.node for slots in trial.left]
            for held in attempt.held:
                if held.instance not in left:
                    held.leave(getattr(event, "happened", gone_s(held.instance, state)))
            gone += [attempt] if ended else []
        return gone


def gone_s(name: str, state: State) -> float:
    """Give since when an instance is gone, or now."""
    instance = state.fleet.instances.get(name)
    return state.now if instance is None or instance.ended_at is None else instance.ended_at
