"""Translates between core and agent: commands become orders, facts become events.

The one rule: nothing is decided and nothing is kept; each value becomes one other value, or none.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from seerd.agent.manifest import Manifest
from seerd.agent.protocol import (
    Checkpointed,
    Complained,
    Computed,
    Exited,
    Fact,
    Noticed,
    Order,
    Prepared,
    Refused,
    Reported,
    Shared,
    Stalled,
    Start,
    Started,
    Stop,
    Training,
    Waited,
)
from seerd.core.commands import StartTrial, StopTrial
from seerd.core.events import (
    AnyEvent,
    Checkpoint,
    ExitCause,
    InstanceComputed,
    InstanceNoticed,
    InstanceShared,
    Notice,
    OrderRefused,
    TrialCheckpointed,
    TrialComplained,
    TrialExited,
    TrialReported,
    TrialStalled,
    TrialStarted,
    TrialTraining,
    TrialWaited,
)
from seerd.core.last_words import obstacle_of

FactOfAttempt = (
    Started | Training | Reported | Checkpointed | Complained | Exited | Stalled | Waited
)


def order_of(command: StartTrial | StopTrial) -> Order:
    """Return the order for a command, as the first instance's agent gets it."""
    if isinstance(command, StopTrial):
        return Stop(command.id, command.trial, command.attempt, command.checkpoint, command.grace_s)
    return Start(
        id=command.id,
        trial=command.trial,
        attempt=command.attempt,
        gpus=list(command.gpus),
        config=command.config,
        seed=command.seed,
        checkpoints=list(command.checkpoints),
    )


def event_of(fact: Fact, instance: str, at: float, happened: float, metric: str) -> AnyEvent | None:
    """Return the event for an agent's fact; None if the core need not know it. `at` and `happened`
    are in seconds since the run began: now, and the moment `fact.at`. Other times of the agent's
    clock are converted from there.
    """
    common: Any = {"at": at, "instance": instance, "fact": fact.seq, "happened": happened}
    match fact:
        case Refused():
            return OrderRefused(**common, command=fact.id, why=fact.why)
        case Noticed():
            what = cast("Notice", fact.what) if fact.what in get_args(Notice) else "interruption"
            by = _as_happened(fact.by, fact.at, happened)
            return InstanceNoticed(**common, what=what, by=by, why=fact.why)
        case Computed():
            shares = tuple(one if one is None else min(1.0, max(0.0, one)) for one in fact.shares)
            return InstanceComputed(**common, shares=shares)
        case Shared():
            return InstanceShared(**common, gpus=max(1, fact.gpus), why=fact.why)
        case Prepared():
            return None
    return _of_attempt(fact, {**common, "trial": fact.trial, "attempt": fact.attempt}, metric)


def _of_attempt(fact: FactOfAttempt, common: dict[str, Any], metric: str) -> AnyEvent:
    match fact:
        case Started():
            return TrialStarted(**common, pid=fact.pid)
        case Training():
            return TrialTraining(**common, reports=fact.epoch)
        case Reported():
            return TrialReported(
                **common,
                reports=fact.epoch,
                metric=fact.metrics.get(metric),
                others={name: value for name, value in fact.metrics.items() if name != metric},
                unit_s=fact.unit_s,
                named=metric in fact.metrics,
                line=fact.line,
            )
        case Checkpointed():
            return TrialCheckpointed(
                **common,
                name=fact.name,
                reports=fact.epoch,
                metric=fact.metrics.get(metric),
                sha256=fact.sha256,
                size=fact.size,
                save_s=fact.save_s,
                free=fact.free,
            )
        case Complained():
            return TrialComplained(**common, what=fact.what, why=fact.why)
        case Exited():
            known = fact.cause if fact.cause in get_args(ExitCause) else "crashed"
            return TrialExited(
                **common,
                cause=cast("ExitCause", known),
                code=fact.code,
                rank=fact.rank,
                tail=tuple(fact.tail),
                silent=_as_happened(fact.silent, fact.at, common["happened"]),
                signal=fact.signal,
                waited_s=fact.waited_s,
                started=fact.started,
                obstacle=obstacle_of(fact.tail) if known == "crashed" else None,
            )
        case Stalled():
            return TrialStalled(
                **common,
                hung=fact.hung,
                units=fact.units,
                ticks=fact.ticks,
                over=fact.over,
            )
        case Waited():
            return TrialWaited(
                **common,
                over_s=fact.over_s,
                ranks=tuple(fact.ranks),
                shares=tuple(fact.shares),
            )


def saved_of(trial: str, attempt: int, one: Manifest, metric: str) -> Checkpoint:
    """Return the core's checkpoint for a manifest in the store that this attempt has written."""
    return Checkpoint(
        trial=trial,
        attempt=attempt,
        name=one.name,
        reports=one.epoch,
        metric=one.metrics.get(metric),
        sha256=one.sha256,
        size=one.size,
    )


def _as_happened(wall: float | None, at: float, happened: float) -> float | None:
    """Convert another time of the clock that showed `at` when it was `happened` (seconds since the
    run began).
    """
    return None if wall is None else happened + (wall - at)
