"""What the agent of one instance is told: the core's commands as orders, with the grants that they
need.

The one rule: nothing is said here. An agent gets places in the store for attempts of its own
instance alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from seerd.agent.protocol import Ask, Order, Parts
from seerd.core.commands import AnyCommand, StartTrial, StopTrial
from seerd.errors import SeerdError
from seerd.shell.nodes import start_on
from seerd.shell.stores.base import slot_name, slot_number
from seerd.shell.stores.data import chunks
from seerd.shell.translate import order_of
from seerd.shell.world import Core, RunEnvironment, Running

AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class InstanceOrders:
    """Of the agent of `instance`."""

    instance: str
    world: RunEnvironment
    core: Core

    async def pending(self) -> list[Order]:
        """What must be said again on a new connection."""
        running = self.core.running(self.instance)
        orders = [order for one in running for order in await self.grant(one)]
        for command in self.core.pending(self.instance):
            orders += await self.of(command)
        return orders

    async def of(self, command: AnyCommand) -> list[Order]:
        """Those that carry out this command."""
        if isinstance(command, StopTrial):
            return [order_of(command)]
        if not isinstance(command, StartTrial):
            return []
        start = start_on(command, self.instance, self.world.provider.address)
        if start.node is not None and start.node.rank > 0:
            return [start]
        attempt = Running(command.trial, command.attempt, 0)
        return [*await self.grant(attempt, command.checkpoints), start]

    async def grant(self, running: Running, checkpoints: Sequence[str] = ()) -> list[Order]:
        """Places in the store for the next checkpoints, and where these `checkpoints` are.

        Without credentials nothing can be signed, and a trial must not start without what it was to
        go on from: that is waited for.
        """
        trial, attempt, first = running.trial, running.attempt, running.saved + 1
        while True:
            try:
                grant = await self.world.store.grant(trial, attempt, first, checkpoints)
            except SeerdError:
                await asyncio.sleep(AGAIN_S)
            else:
                return [] if grant is None else [grant]

    async def parts(self, ask: Ask) -> list[Order]:
        """The answer to a question for parts."""
        number = slot_number(ask.name)
        if ask.name == slot_name(ask.attempt, number) and self.is_ours(ask.trial, ask.attempt):
            return [await self.world.store.parts(ask)]
        return [Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")]

    async def downloads(self) -> list[Order]:
        """The job's data, with fresh URLs."""
        return [] if self.world.data is None else list(chunks(await self.world.data()))

    def is_ours(self, trial: str, attempt: int) -> bool:
        """Whether this attempt reports and saves on this instance."""
        running = self.core.running(self.instance)
        return any((one.trial, one.attempt) == (trial, attempt) for one in running)
