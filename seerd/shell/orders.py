"""Makes the orders for one instance's agent from the core's commands, with the presigned URLs that
they need: only those for attempts on its own instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from seerd.agent.protocol import MAX_LINE, Ask, Download, Downloads, Order, Parts
from seerd.agent.wire import encode
from seerd.core.commands import AnyCommand, StartTrial, StopTrial
from seerd.errors import SeerdError
from seerd.shell.core import Core
from seerd.shell.run_environment import RunEnvironment, Running
from seerd.shell.translate import order_of, start_on
from seerd.stores.base import slot_name, slot_number

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
            return [order_of(command)]
        if not isinstance(command, StartTrial):
            return []
        start = start_on(command, self.instance, self.environment.provider.address)
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
        """Answer an agent that asks to upload a checkpoint in parts."""
        number = slot_number(ask.name)
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
