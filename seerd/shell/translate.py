"""Translates between core and agent: commands become orders, facts become events. Nothing is
decided and nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from msgspec import UNSET

from seerd.agent import protocol
from seerd.agent.protocol import MAX_LINE, Ask, Download, Downloads, Fact, Node, Order, Parts, Start
from seerd.agent.wire import encode
from seerd.core import events
from seerd.core.commands import AnyCommand, GrowTrial, StartTrial, StopTrial
from seerd.core.events import AnyEvent, AttemptFact, ExitCause, Notice
from seerd.core.last_words import obstacle_of
from seerd.errors import SeerdError
from seerd.shell.core import Core
from seerd.shell.run_environment import RunEnvironment, Running
from seerd.stores.base import slot_name, slot_number

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


def stop_of(command: StopTrial) -> protocol.Stop:
    """Return the order to stop an attempt."""
    return protocol.Stop(
        command.id, command.trial, command.attempt, command.checkpoint, command.grace_s
    )


def grow_of(command: GrowTrial) -> protocol.Grow:
    """Return the order to let an attempt use more of its GPU."""
    return protocol.Grow(command.id, command.trial, command.attempt, list(command.gpus))


def start_on(
    command: StartTrial, instance: str, address: Callable[[str], str], parts: int = 1
) -> Start:
    """Return the order to start for one of the attempt's instances. Its nodes meet at node 0, on a
    port that follows from the id of the command. `parts`: how many slots a GPU has.
    """
    start = Start(
        id=command.id,
        trial=command.trial,
        attempt=command.attempt,
        gpus=list(command.gpus),
        config=command.config,
        seed=command.seed,
        checkpoints=list(command.checkpoints),
        parts=parts,
    )
    if not command.beside:
        return start
    nodes, ids = (
        ((command.instance, command.gpus), *command.beside),
        map(int, command.id.split(".")),
    )
    rank = command.nodes.index(instance)
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
            seen = len(fact.memory) == len(("used", "total"))
            return {
                "cause": cause,
                "memory": tuple(fact.memory) if seen else UNSET,
                "silent": _as_happened(fact.silent, fact.at, happened),
                "obstacle": obstacle_of(fact.tail) if cause == "crashed" else None,
                "fault": fact.fault or UNSET,
            }
    return {}


def _as_happened(wall: float | None, at: float, happened: float) -> float | None:
    """Convert another time of the clock that showed `at` when it was `happened`."""
    return None if wall is None else happened + (wall - at)


AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class InstanceOrders:
    """Makes the orders for the agent of `instance`."""

    instance: str
    environment: RunEnvironment
    core: Core

    async def pending(self) -> list[Order]:
        """Return the orders for a new connection: URLs, and commands without an outcome."""
        orders: list[Order] = []
        for running in self.core.running(self.instance):
            orders += await self.renewal(running)
        for command in self.core.pending(self.instance):
            orders += await self.of(command)
        return orders

    async def of(self, command: AnyCommand) -> list[Order]:
        """Return the orders that carry out this command. Without credentials a start waits for its
        URLs, since it must not start without its checkpoint, but only until it is to be stopped:
        its agent must know it to report its end.
        """
        if isinstance(command, StopTrial):
            return [stop_of(command)]
        if isinstance(command, GrowTrial):
            return [grow_of(command)]
        if not isinstance(command, StartTrial):
            return []
        address, parts = self.environment.provider.address, self.core.state.facts.parts
        start = start_on(command, self.instance, address, parts)
        start = replace(start, secrets=self.environment.secrets_of(command.trial))
        if start.node is not None and start.node.rank > 0:
            return [start]
        attempt = Running(command.trial, command.attempt, 0)
        while (urls := await self._urls(attempt, command.checkpoints)) is None:
            stops = (c for c in self.core.pending(self.instance) if isinstance(c, StopTrial))
            if any((c.trial, c.attempt) == (start.trial, start.attempt) for c in stops):
                return [start]
            await asyncio.sleep(AGAIN_S)
        return [*urls, start]

    async def renewal(self, running: Running) -> list[Order]:
        """Return URLs for the next checkpoints of an attempt, once they can be signed, or nothing
        if it has ended by then. An agent uses the URLs that come last.
        """
        while self.is_ours(running.trial, running.attempt):
            attempts = (a for a in self.core.running(self.instance) if a.trial == running.trial)
            by_now = max([running, *attempts], key=lambda attempt: attempt.saved)
            if (urls := await self._urls(by_now)) is not None:
                return urls
            await asyncio.sleep(AGAIN_S)
        return []

    async def _urls(self, attempt: Running, checkpoints: Sequence[str] = ()) -> list[Order] | None:
        """Return URLs for an attempt's next checkpoints, and for reading `checkpoints`, or None."""
        store, first = self.environment.store, attempt.saved + 1
        try:
            grant = await store.presign(attempt.trial, attempt.attempt, first, checkpoints)
        except SeerdError:
            return None
        return [] if grant is None else [grant]

    async def parts(self, ask: Ask) -> list[Order]:
        """Answer an agent that asks to upload a checkpoint in parts, or for other URLs."""
        number = slot_number(ask.name)
        if ask.size == 0:
            return await self.renewal(Running(ask.trial, ask.attempt, number - 1))
        if ask.name == slot_name(ask.attempt, number) and self.is_ours(ask.trial, ask.attempt):
            return [await self.environment.store.parts(ask)]
        return [Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")]

    async def downloads(self, job: str | None = None) -> list[Order]:
        """Return the downloads of the data of all jobs or of one. Raises `SeerdError`."""
        data = self.environment.data
        return [] if data is None else list(chunks(await data(job)))

    def is_ours(self, trial: str, attempt: int) -> bool:
        """Return whether this attempt reports and saves on this instance."""
        running = self.core.running(self.instance)
        return any((run.trial, run.attempt) == (trial, attempt) for run in running)


def chunks(items: Sequence[Download]) -> list[Downloads]:
    """Split the downloads into messages of one line each. The first begins a new list."""
    lines: list[list[Download]] = [[]]
    length = 0
    for item in items:
        size = len(encode(Downloads(False, [item])))
        if length + size > MAX_LINE // 2:
            lines.append([])
            length = 0
        lines[-1].append(item)
        length += size
    return [Downloads(number == 0, line) for number, line in enumerate(lines)]
