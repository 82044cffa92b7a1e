"""Attempts of trials: where each was and for how long, what it reported, and how it ended.

The one rule: an attempt holds its GPUs on an instance from the order to start it until its
processes there are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from seerd.core.events import AnyEvent, TrialExited, TrialReported, TrialTraining
from seerd.core.ledger import Charge
from seerd.core.state import State
from seerd.explanation.explanations import Explanation
from seerd.planner.model import Report


@dataclass(slots=True)
class AttemptHistory:
    """What is known of one attempt.

    started        the order to start it
    held           since when and until when it held GPUs, by instance
    stopped        the last order to end it, None if there was none
    training_s     when it reached its training loop, in seconds since the run began; None if it did
                   not
    after_reports  how many reports its checkpoint restored
    made           its reports
    ended          how it ended, None if it has not
    """

    started: Explanation
    held: list[Charge]
    stopped: Explanation | None = None
    training_s: float | None = None
    after_reports: int = 0
    made: list[Report] = field(default_factory=list)
    ended: Explanation | None = None

    @property
    def ended_s(self) -> float | None:
        """When it was gone from all its instances, in seconds since the run began.

        None if it is not.
        """
        return None if self.ended is None else max(held.until_s or 0.0 for held in self.held)

    def gpu_s(self, now_s: float) -> float:
        """Return the GPU-seconds for which it has held its GPUs up to `now_s`."""
        return sum(held.gpu_s(now_s) for held in self.held)


@dataclass(slots=True)
class Attempts:
    """All attempts of a run.

    all   every attempt, in the order in which they were ordered
    open  trial -> its attempt that has not ended
    """

    all: list[AttemptHistory] = field(default_factory=list)
    open: dict[str, AttemptHistory] = field(default_factory=dict)

    def of(self, trial: str) -> list[AttemptHistory]:
        """Return the attempts of one trial."""
        return [attempt for attempt in self.all if attempt.started.trial == trial]

    def start(self, started: Explanation) -> None:
        """Add the attempt that was just ordered."""
        at_s, trial = started.at_s, started.trial
        held = [Charge(trial, on.instance, len(on.gpus), at_s) for on in started.on]
        self.open[trial] = AttemptHistory(started, held)
        self.all.append(self.open[trial])

    def hear(self, event: AnyEvent, state: State) -> None:
        """Note what an attempt tells of itself. What came too late or twice does not count."""
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
        """Return the trials that hold GPUs of an instance."""
        held = ((trial, held) for trial, attempt in self.open.items() for held in attempt.held)
        return tuple(t for t, h in held if h.instance == instance and h.until_s is None)

    def leave(self, event: AnyEvent, state: State) -> list[AttemptHistory]:
        """Free the GPUs of processes that an event has ended.

        Return the attempts that have no process left. `state` is the one after the event.
        """
        some = self.open.keys() & {event.trial} if isinstance(event, TrialExited) else self.open
        gone = []
        for attempt in [self.open[name] for name in some]:
            trial = state.trials[attempt.started.trial]
            ended = trial.held is None or trial.attempt != attempt.started.attempt
            left = () if ended else [slots.node for slots in trial.left]
            for place, held in enumerate(attempt.held):
                if held.until_s is None and held.instance not in left:
                    left_s = getattr(event, "happened", gone_s(held.instance, state))
                    attempt.held[place] = replace(held, until_s=max(held.since_s, left_s))
            gone += [attempt] if ended else []
        return gone


def gone_s(name: str, state: State) -> float:
    """Return when an instance ended, in seconds since the run began; now, if that is not known."""
    instance = state.fleet.instances.get(name)
    return state.now if instance is None or instance.ended_at is None else instance.ended_at
