"""Instances that are gone, or that cannot be reached any more. A loss is emitted only when the
instance costs nothing any more, as far as its cloud says, with all checkpoints of its trials, and
after what its agent had noted, where that can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from seerd.agent.clock import since_boot, zero_of
from seerd.agent.host import boot_id
from seerd.agent.journal import facts_after
from seerd.agent.protocol import Fact
from seerd.backends.base import Loss, Span
from seerd.clock import wall
from seerd.core.events import (
    AnyEvent,
    Checkpoint,
    InstanceLost,
    InstanceNoticed,
    TrialComplained,
)
from seerd.errors import ProviderError, StoreError
from seerd.shell.core import Core
from seerd.shell.left_behind import saved_of
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.translate import event_of


class Losses:
    """The lost instances of one run."""

    def __init__(self, environment: RunEnvironment, core: Core, tasks: asyncio.TaskGroup) -> None:
        self._environment = environment
        self._core = core
        self._tasks = tasks
        self._giving_up: dict[str, asyncio.Task[None]] = {}

    def give_up(self, instance: str, why: str) -> None:
        """Start giving back an instance whose agent cannot be reached any more."""
        if instance not in self._giving_up or self._giving_up[instance].done():
            self._giving_up[instance] = self._tasks.create_task(self._lose(instance, why))

    async def ended(self, instance: str) -> float | None:
        """Return when a lost instance ended, in seconds since the run began; None if unknown."""
        if instance in self._giving_up:
            await asyncio.wait({self._giving_up[instance]})
        try:
            span = await self._environment.provider.terminate(instance)
        except ProviderError as error:
            await self.report(Loss(instance, str(error), Span()))
            return None
        self.read_noted(instance)
        return self._core.clock.past(span.until)

    async def report(self, loss: Loss) -> None:
        """Emit the loss, after all that the agent had noted, with the checkpoints stored there."""
        self.read_noted(loss.instance)
        saved = tuple(await self.saved_on(loss.instance))
        ended, at = self._core.clock.past(loss.span.until), self._core.clock.now()
        self._core.emit(
            InstanceLost(at=at, instance=loss.instance, why=loss.why, ended=ended, saved=saved)
        )

    def read_noted(self, instance: str) -> None:
        """Emit what the agent had noted and not reported, where that can be read without it: it may
        have ended before the first connection, or start too late to answer.
        """
        journal = self._environment.provider.journal(instance)
        seen, _ = self._core.known(instance)
        if journal is None:
            return
        zero = zero_of(journal.parent, boot_id())
        ahead_s = (time.time() if zero is None else since_boot() + zero) - wall()
        try:
            facts = facts_after(journal, seen)
        except OSError:
            return
        for fact in facts:
            self.emit(instance, fact, ahead_s)

    def emit(self, instance: str, fact: Fact, ahead_s: float) -> None:
        """Emit what an agent has noted; `ahead_s`: how far its clock is ahead of `clock.wall`."""
        clock = self._core.clock
        happened = clock.past(fact.at - ahead_s)
        metric = self._environment.metric_of(getattr(fact, "trial", ""))
        event = event_of(fact, instance, clock.now(), happened, metric)
        note_taken = self._environment.note_taken
        if isinstance(event, InstanceNoticed) and event.what == "interruption" and note_taken:
            note_taken(instance)
        if event is not None:
            self._core.emit(self._advised(event))

    def _advised(self, event: AnyEvent) -> AnyEvent:
        """Add what to do about a store that an instance cannot use to what its agent says."""
        without_store = self._environment.without_store
        if without_store is None or not isinstance(event, TrialComplained):
            return event
        if (silent := event.what == "store-silent") or event.what == "store-refused":
            with contextlib.suppress(ProviderError):  # it has ended by itself
                advice, _ = without_store(event.instance, silent=silent, leave=False)
                return msgspec.structs.replace(event, why=f"{event.why}{advice}")
        return event

    async def saved_on(self, instance: str) -> list[Checkpoint]:
        """Return the stored checkpoints that this instance's agent has not reported."""
        saved = []
        for running in self._core.running(instance):
            # If the store does not answer now, the trials go on from the checkpoints that are
            # known.
            with contextlib.suppress(StoreError):
                trial, attempt = running.trial, running.attempt
                newer = await self._environment.store.newer(trial, attempt, running.newest)
                metric = self._environment.metric_of(trial)
                saved += [saved_of(trial, attempt, manifest, metric) for manifest in newer]
        return saved

    async def _lose(self, instance: str, why: str) -> None:
        span = Span()
        try:
            spare_s = self._core.spare()
            span = await self._environment.provider.terminate(instance, spare_s)
        except ProviderError as error:
            why = f"{why}; {error}"
        await self.report(Loss(instance, why, span))
