"""Translates between core and agent: commands become orders, facts become events. Nothing is
decided and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, get_args

from seerd.agent import protocol
from seerd.agent.manifest import Manifest
from seerd.agent.protocol import Fact, Node, Order, Start
from seerd.core import events
from seerd.core.commands import AnyCommand, StartTrial, StopTrial
from seerd.core.events import AnyEvent, AttemptFact, Checkpoint, ExitCause, Notice
from seerd.core.last_words import obstacle_of

SAME: dict[type, type[AttemptFact]] = {
    protocol.Started: events.TrialStarted,
    protocol.Training: events.TrialTraining,
    protocol.Reported: events.TrialReported,
    protocol.Checkpointed: events.TrialCheckpointed,
    protocol.Complained: events.TrialComplained,
    protocol.Exited: events.TrialExited,
    protocol.Stalled: events.TrialStalled,
    protocol.Waited: events.TrialWaited,
}
"""Facts about an attempt -> events, which have the fields of the same names."""
FIRST_PORT, PORTS = 29_400, 500
"""First port and number of ports on which the nodes of an attempt meet node 0, below those that
Linux hands out by itself (32768 and more), as torchrun's own default port is.
"""


def order_of(command: StartTrial | StopTrial) -> Order:
    """Return the order for a command, as the first instance's agent gets it."""
    if isinstance(command, StopTrial):
        return protocol.Stop(
            command.id, command.trial, command.attempt, command.checkpoint, command.grace_s
        )
    return protocol.Start(
        id=command.id,
        trial=command.trial,
        attempt=command.attempt,
        gpus=list(command.gpus),
        config=command.config,
        seed=command.seed,
        checkpoints=list(command.checkpoints),
    )


def instances_of(command: AnyCommand) -> tuple[str, ...]:
    """Return the instances whose agents carry out this command."""
    return command.nodes if isinstance(command, StartTrial | StopTrial) else ()


def start_on(command: StartTrial, instance: str, address: Callable[[str], str]) -> Start:
    """Return the order to start for one of the attempt's instances. Its nodes meet at node 0, on a
    port that follows from the id of the command.
    """
    start = order_of(command)
    assert isinstance(start, Start)
    if not command.beside:
        return start
    nodes, ids = (
        ((command.instance, command.gpus), *command.beside),
        map(int, command.id.split(".")),
    )
    rank = instances_of(command).index(instance)
    node = Node(
        rank=rank,
        count=len(nodes),
        address=address(instance),
        endpoint=f"{address(command.instance)}:{FIRST_PORT + sum(ids) % PORTS}",
        gpus=sum(len(gpus) for _, gpus in nodes),
    )
    return replace(start, gpus=list(nodes[rank][1]), node=node)


def event_of(fact: Fact, instance: str, at: float, happened: float, metric: str) -> AnyEvent | None:
    """Return the event for an agent's fact; None if the core need not know it. `at` (now) and
    `happened` (the moment of `fact.at`) are in seconds since the run began.
    """
    common: Any = {"at": at, "instance": instance, "fact": fact.seq, "happened": happened}
    match fact:
        case protocol.Refused():
            return events.OrderRefused(**common, command=fact.id, why=fact.why)
        case protocol.Noticed():
            what = cast("Notice", fact.what) if fact.what in get_args(Notice) else "interruption"
            by = _as_happened(fact.by, fact.at, happened)
            return events.InstanceNoticed(**common, what=what, by=by, why=fact.why)
        case protocol.Computed():
            shares = tuple(
                share if share is None else min(1.0, max(0.0, share)) for share in fact.shares
            )
            return events.InstanceComputed(**common, shares=shares)
        case protocol.Shared():
            return events.InstanceShared(**common, gpus=max(1, fact.gpus), why=fact.why)
        case protocol.Prepared():
            return None
    kind: Any = SAME[type(fact)]
    fields = {name: getattr(fact, name) for name in kind.__struct_fields__ if hasattr(fact, name)}
    fields = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
    event: AnyEvent = kind(**fields | common | _converted(fact, happened, metric))
    return event


def _converted(fact: Fact, happened: float, metric: str) -> dict[str, Any]:
    """Return the fields of an attempt's event that its fact has in another form."""
    match fact:
        case protocol.Training():
            return {"reports": fact.epoch}
        case protocol.Reported():
            return {
                "reports": fact.epoch,
                "metric": fact.metrics.get(metric),
                "others": {name: value for name, value in fact.metrics.items() if name != metric},
                "named": metric in fact.metrics,
            }
        case protocol.Checkpointed():
            return {"reports": fact.epoch, "metric": fact.metrics.get(metric)}
        case protocol.Exited():
            cause = fact.cause if fact.cause in get_args(ExitCause) else "crashed"
            return {
                "cause": cause,
                "silent": _as_happened(fact.silent, fact.at, happened),
                "obstacle": obstacle_of(fact.tail) if cause == "crashed" else None,
            }
    return {}


def saved_of(trial: str, attempt: int, manifest: Manifest, metric: str) -> Checkpoint:
    """Return the core's checkpoint for a manifest that this attempt has written to the store."""
    return Checkpoint(
        trial=trial,
        attempt=attempt,
        name=manifest.name,
        reports=manifest.epoch,
        metric=manifest.metrics.get(metric),
        sha256=manifest.sha256,
        size=manifest.size,
    )


def _as_happened(wall: float | None, at: float, happened: float) -> float | None:
    """Convert another time of the clock that showed `at` when it was `happened`."""
    return None if wall is None else happened + (wall - at)
