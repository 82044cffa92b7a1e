"""Instances that are gone, or cannot be reached any more.

The one rule: the core is told of a loss when nothing of the instance costs anything any more, as
far as its cloud says, and of all that its trials had put into the store.
"""

from __future__ import annotations

import asyncio
import contextlib

from seerd.core.events import Checkpoint, InstanceLost
from seerd.errors import ProviderError, StoreError
from seerd.shell.providers.base import Loss, Span
from seerd.shell.run_environment import Core, RunEnvironment
from seerd.shell.translate import saved_of


class Losses:
    """Those of one run."""

    def __init__(self, environment: RunEnvironment, core: Core, tasks: asyncio.TaskGroup) -> None:
        self._environment = environment
        self._core = core
        self._tasks = tasks
        self._giving_up: dict[str, asyncio.Task[None]] = {}

    def give_up(self, instance: str, why: str) -> None:
        """Its agent cannot be reached any more: whatever there still is of it is given back before
        it counts as lost.
        """
        if instance not in self._giving_up or self._giving_up[instance].done():
            self._giving_up[instance] = self._tasks.create_task(self._lose(instance, why))

    async def ended(self, instance: str) -> float | None:
        """When an instance ended that was gone, or had to be given up; None if that is unknown."""
        if instance in self._giving_up:
            await asyncio.wait({self._giving_up[instance]})
        try:
            span = await self._environment.provider.terminate(instance)
        except ProviderError as error:
            await self.tell(Loss(instance, str(error), Span()))
            return None
        return self._core.clock.past(span.until)

    async def tell(self, loss: Loss) -> None:
        """The instance is gone."""
        saved = tuple(await self.saved_on(loss.instance))
        ended = self._core.clock.past(loss.span.until)
        at = self._core.clock.now()
        self._core.emit(
            InstanceLost(at=at, instance=loss.instance, why=loss.why, ended=ended, saved=saved)
        )

    async def saved_on(self, instance: str) -> list[Checkpoint]:
        """What trials on an instance had put into the store that its agent has not told of: it is
        gone, or does not answer.
        """
        found = []
        for running in self._core.running(instance):
            # If the store does not answer now, trials go on from what is known.
            with contextlib.suppress(StoreError):
                newer = await self._environment.store.newer(
                    running.trial, running.attempt, running.newest
                )
                found += [saved_of(running, one, self._environment.metric) for one in newer]
        return found

    async def _lose(self, instance: str, why: str) -> None:
        span = Span()
        try:
            span = await self._environment.provider.terminate(instance)
        except ProviderError as error:
            why = f"{why}; {error}"
        await self.tell(Loss(instance, why, span))
