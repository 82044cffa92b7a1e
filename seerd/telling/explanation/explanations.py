"""What happened in a run, each with its reason, as data that `seerd replay --json` prints; and its
attempts. An attempt holds GPUs for as long as the ledger charges it; where instances are charged as
a whole, from its order until its processes are gone.

The keys of each kind are in docs/json.md; recorded reasons in `seerd.core.commands` and
`seerd.core.verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from seerd.core import events
from seerd.core.events import AnyEvent, RunFacts
from seerd.core.ledger import Charge
from seerd.core.placement import Assignment
from seerd.core.state import State
from seerd.planner.model import Group, Report

Decision = Literal[
    "planned", "declined", "judged", "started", "stopped", "asked", "held-back", "given-back",
    "grown", "enlarged", "closing", "chosen", "extended", "added", "denied",
    "retired", "job-over", "job-added", "job-weighed",
]  # fmt: skip
"""What was decided about the plan (planned, declined, judged), an attempt (started, stopped,
grown, enlarged), instances (asked, held-back, given-back, retired), the run (closing, chosen), what
the user asks for (extended, added, denied) and the jobs that share the run (job-over, job-added,
job-weighed).
"""
Kind = Literal[
    Decision, "ended", "awaited", "came", "refused", "noticed", "shared", "lost", "stop-wanted",
    "resumed", "not-usable", "over", "slow", "warned", "remark",
]  # fmt: skip
"""What was decided, and what happened."""

Judgement = Literal[  # what became of a trial that was compared
    "goes-on",  # it trains on
    "out",  # it is eliminated
    "paused",  # it waits, and may go on later
    "complete",  # it has made all reports of a training
    "finished",  # its script had ended by itself; its model counts
    "failed",  # it had failed for good
]
EndCause = Literal[  # how an attempt ended
    "saved",  # it was asked to save and exit, and did
    "killed",  # it ended without a checkpoint
    "finished",  # its script ended by itself
    "crashed",  # it ended by its own fault
    "small",  # its part of a GPU had too little memory
    "blocked",  # it crashed since something was in its way, whatever its configuration
    "refused",  # its agent could not start it
    "lost",  # its instance or agent was gone
    "lease",  # its agent stopped it, since nobody had renewed the lease
    "silent",  # its script ended without a report
]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One thing that happened or was decided."""

    kind: Kind  # what it is
    event: int  # number of the event with which it was recorded
    at_s: float  # when the daemon learned of it, in seconds since the run began
    facts: dict[str, Any]  # key -> value, for what else its kind has; also available as attributes

    def __getattr__(self, key: str) -> Any:
        """Return one of its facts. Raises `AttributeError` if it has none of that name."""
        try:
            return self.facts[key]
        except KeyError:
            raise AttributeError(f"{self.kind} has no {key}") from None

    @property
    def decided(self) -> bool:
        """Whether it was decided, and did not only happen."""
        return self.kind in get_args(Decision)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Trials that have equally many GPUs."""

    gpus_per_trial: float  # a part of a GPU is a fraction
    trials: int


def sizes_of(groups: Iterable[Group], facts: RunFacts) -> tuple[Sizes, ...]:
    """Return groups of trials with their sizes in GPUs."""
    return tuple(Sizes(facts.gpus(group.gpus_per_trial), group.trials) for group in groups)


def places_of(
    held: Iterable[tuple[str, Sequence[int]]], facts: RunFacts
) -> tuple[dict[str, Any], ...]:
    """Return which GPUs of which instances these slots are, and what part of one if it is one."""
    made = []
    for instance, slots in held:
        on: dict[str, Any] = {"instance": instance, "gpus": gpus_with(slots, facts.parts)}
        if len(slots) < facts.parts:
            on["share"] = facts.gpus(len(slots))
        made.append(on)
    return tuple(made)


def places_json(held: Assignment | None, facts: RunFacts) -> list[dict[str, Any]]:
    """Return the same of what a trial holds, as JSON has it."""
    places = places_of(((slots.node, slots.gpus) for slots in held or ()), facts)
    return [{**on, "gpus": list(on["gpus"])} for on in places]


def gpus_with(slots: Iterable[int], parts: int) -> tuple[int, ...]:
    """Return the GPUs of which these are slots."""
    return tuple(sorted({slot // parts for slot in slots}))


@dataclass(slots=True)
class AttemptHistory:
    """One attempt, as far as it was recorded."""

    started: Explanation  # the order to start it
    held: list[Charge]  # since when and until when it held GPUs, by instance, node 0 first
    stopped: Explanation | None = None  # the last order to end it, None if there was none
    # when it reached its training loop, in seconds since the run began; None if it did not
    training_s: float | None = None
    after_reports: int = 0  # how many reports its checkpoint restored
    made: list[Report] = field(default_factory=list)  # its reports
    ended: Explanation | None = None  # how it ended, None if it has not
    slots: list[Sequence[int]] = field(default_factory=list)  # its slots, as `held` is ordered
    # what it held before it grew on its GPU, and its slots then
    smaller: list[tuple[Charge, Sequence[int]]] = field(default_factory=list)

    @property
    def charges(self) -> list[Charge]:
        """Everything that it held."""
        return [*(charge for charge, _ in self.smaller), *self.held]

    @property
    def ended_s(self) -> float | None:
        """When it was gone from all its instances; None: it is not."""
        return None if self.ended is None else max(held.until_s or 0.0 for held in self.held)

    @property
    def gpus(self) -> float:
        """How many GPUs it has, on all its instances together."""
        return sum(held.gpus for held in self.held)

    def key_on(self, place: int) -> str:
        """Return its name in the ledger on the instance at this place of `held`."""
        key = f"{self.started.trial}/{self.started.attempt}"
        return f"{key}@{self.held[place].instance}" if place else key

    def trains_s(self, held: Charge, now_s: float) -> float:
        """Return from when it trained on these GPUs; their end if it did not."""
        end_s = held.end_s(now_s)
        return end_s if self.training_s is None else min(max(self.training_s, held.since_s), end_s)


def held_gpu_s(attempts: Iterable[AttemptHistory], at_s: float) -> float:
    """Return the GPU-seconds for which these attempts had held their GPUs at some moment."""
    charges = (held for attempt in attempts for held in attempt.charges if held.since_s < at_s)
    return sum(held.gpus * (min(at_s, held.end_s(at_s)) - held.since_s) for held in charges)


@dataclass(slots=True)
class KnownBefore:
    """What earlier entries have shown, needed to explain what follows: attempts, and launches."""

    # every attempt, in the order in which they were ordered
    all: list[AttemptHistory] = field(default_factory=list)
    # trial -> its attempt that has not ended
    open: dict[str, AttemptHistory] = field(default_factory=dict)
    # id of a launch -> when it was asked for, in seconds since the run began
    asked_s: dict[str, float] = field(default_factory=dict)
    planned: bool = False  # True: the policy has given a plan that stands

    def by_trial(self) -> dict[str, list[AttemptHistory]]:
        """Return the attempts of every trial that had one."""
        found: dict[str, list[AttemptHistory]] = {}
        for attempt in self.all:
            found.setdefault(attempt.started.trial, []).append(attempt)
        return found

    def start(self, started: Explanation, slots: Iterable[Sequence[int]]) -> None:
        """Add the attempt that was just ordered. `slots`: its slots on each instance."""
        at_s, trial = started.at_s, started.trial
        held = [
            Charge(trial, on["instance"], on.get("share", len(on["gpus"])), at_s)
            for on in started.on
        ]
        self.open[trial] = AttemptHistory(started, held, slots=list(slots))
        self.all.append(self.open[trial])

    def grow(self, trial: str, gpus: float, slots: Sequence[int], at_s: float) -> None:
        """Note that an attempt has more of its GPU from now on."""
        if (attempt := self.open.get(trial)) is not None:
            (held,), (before,) = attempt.held, attempt.slots
            attempt.smaller.append((replace(held, until_s=at_s), before))
            attempt.held, attempt.slots = [replace(held, gpus=gpus, since_s=at_s)], [slots]

    def hear(self, event: AnyEvent, state: State) -> None:
        """Note what an attempt reports of itself; what came too late or twice does not count."""
        if isinstance(event, events.TrialStarted | events.RunResumed):
            names = list(self.open) if isinstance(event, events.RunResumed) else [event.trial]
            for one in [self.open[name] for name in names if name in self.open]:
                for place, held in enumerate(one.held):
                    charge = state.ledger.open.get(one.key_on(place))
                    if charge is not None and held.until_s is None:
                        one.held[place] = charge
        if not isinstance(event, events.TrialTraining | events.TrialReported):
            return
        attempt, trial = self.open.get(event.trial), state.trials.get(event.trial)
        if attempt is None or trial is None or trial.held is None or trial.attempt != event.attempt:
            return
        if isinstance(event, events.TrialTraining):
            attempt.training_s = attempt.training_s or event.happened
            attempt.after_reports = event.reports
            return
        newest = trial.history[-1] if trial.history else None
        if newest and newest.reports == event.reports and newest not in attempt.made[-1:]:
            attempt.made.append(newest)

    def on(self, instance: str) -> tuple[str, ...]:
        """Return the trials that hold GPUs of an instance."""
        held = ((trial, held) for trial, attempt in self.open.items() for held in attempt.held)
        return tuple(t for t, h in held if h.instance == instance and h.until_s is None)

    def leave(self, event: AnyEvent, state: State) -> list[AttemptHistory]:
        """Free the GPUs of processes that an event ended; return attempts without any."""
        names = [event.trial] if isinstance(event, events.TrialExited) else list(self.open)
        closed = () if state.facts.cluster.per_instance else state.ledger.closed
        gone = []
        for attempt in [self.open[name] for name in names if name in self.open]:
            trial = state.trials[attempt.started.trial]
            ended = trial.held is None or trial.attempt != attempt.started.attempt
            left = () if ended else [slots.node for slots in trial.left]
            for place, held in enumerate(attempt.held):
                if held.until_s is None and held.instance not in left:
                    key = attempt.key_on(place)
                    left_s = getattr(event, "happened", gone_s(held.instance, state))
                    attempt.held[place] = next(
                        (charge for charge in reversed(closed) if charge.what == key),
                        replace(held, until_s=max(held.since_s, left_s)),
                    )
            gone += [attempt] if ended else []
        return gone


def gone_s(name: str, state: State) -> float:
    """Return when an instance ended, in seconds since the run began; now, if that is not known."""
    instance = state.fleet.instances.get(name)
    return state.now if instance is None or instance.ended_at is None else instance.ended_at
