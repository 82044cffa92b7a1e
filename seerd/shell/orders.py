"""Makes the orders for the agent of one instance from the core's commands, with the presigned URLs
that they need.

The one rule: nothing is sent here. An agent gets URLs only for attempts on its own instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from seerd.agent.protocol import Ask, Order, Parts
from seerd.core.commands import AnyCommand, StartTrial, StopTrial
from seerd.errors import SeerdError
from seerd.shell.nodes import start_on
from seerd.shell.run_environment import Core, RunEnvironment, Running
from seerd.shell.stores.base import slot_name, slot_number
from seerd.shell.stores.data import chunks
from seerd.shell.translate import order_of

AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class InstanceOrders:
    """Makes the orders for the agent of `instance`."""

    instance: str
    environment: RunEnvironment
    core: Core

    async def pending(self) -> list[Order]:
        """Return the orders that must be sent again on a new connection: URLs for running attempts,
        and commands whose outcome is not known.
        """
        running = self.core.running(self.instance)
        orders = [order for one in running for order in await self.presign(one)]
        for command in self.core.pending(self.instance):
            orders += await self.of(command)
        return orders

    async def of(self, command: AnyCommand) -> list[Order]:
        """Return the orders that carry out this command."""
        if isinstance(command, StopTrial):
            return [order_of(command)]
        if not isinstance(command, StartTrial):
            return []
        start = start_on(command, self.instance, self.environment.provider.address)
        if start.node is not None and start.node.rank > 0:
            return [start]
        attempt = Running(command.trial, command.attempt, 0)
        to_stop = partial(self._is_to_stop, command)
        return [*await self.presign(attempt, command.checkpoints, to_stop), start]

    def _is_to_stop(self, start: StartTrial) -> bool:
        """Tell whether an attempt is to be stopped that is only to be started. Its agent must know
        it to say that it has ended.
        """
        return any(
            isinstance(one, StopTrial) and (one.trial, one.attempt) == (start.trial, start.attempt)
            for one in self.core.pending(self.instance)
        )

    async def presign(
        self,
        running: Running,
        checkpoints: Sequence[str] = (),
        enough: Callable[[], bool] = lambda: False,
    ) -> list[Order]:
        """Return URLs for the attempt's next checkpoints, and for reading these `checkpoints`.

        Without credentials nothing can be signed. This then waits for them, since a trial must not
        start without the checkpoint that it is to go on from; or until that is `enough`.
        """
        trial, attempt, first = running.trial, running.attempt, running.saved + 1
        while True:
            try:
                grant = await self.environment.store.presign(trial, attempt, first, checkpoints)
            except SeerdError:
                if enough():
                    return []
                await asyncio.sleep(AGAIN_S)
            else:
                return [] if grant is None else [grant]

    async def parts(self, ask: Ask) -> list[Order]:
        """Return the answer to an agent that asks to upload a checkpoint in parts."""
        number = slot_number(ask.name)
        if ask.name == slot_name(ask.attempt, number) and self.is_ours(ask.trial, ask.attempt):
            return [await self.environment.store.parts(ask)]
        return [Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")]

    async def downloads(self) -> list[Order]:
        """Return the downloads of the job's data, with fresh URLs."""
        return [] if self.environment.data is None else list(chunks(await self.environment.data()))

    def is_ours(self, trial: str, attempt: int) -> bool:
        """Return whether this attempt reports and saves on this instance."""
        running = self.core.running(self.instance)
        return any((one.trial, one.attempt) == (trial, attempt) for one in running)
