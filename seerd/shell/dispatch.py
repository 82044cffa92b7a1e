"""Carries out commands: the one place that knows both what the core asks for and the adapters that do it.

The one rule: whatever an adapter does, fails at or raises becomes one of the command's outcome events. Nothing is raised into the core,
and a command that is given twice is carried out once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import singledispatchmethod
from pathlib import Path

from agent.protocol import Fact, Job, Order, Prepare, Prepared, Refused
from seerd.core.commands import (
    AnyCommand,
    Command,
    Finish,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    ModelPublished,
    PublishFailed,
    TimerFired,
)
from seerd.errors import ProviderError, StoreError
from seerd.shell.agents import Conversation, Ears
from seerd.shell.clock import RunClock
from seerd.shell.providers.base import Provider
from seerd.shell.stores.base import Store
from seerd.shell.translate import event_of, order_of


@dataclass(frozen=True, slots=True)
class World:
    """What a run acts on: where instances and checkpoints are, what is trained, where the result goes."""

    provider: Provider
    store: Store
    job: Job
    run: str
    gpus: int
    metric: str
    result: Path


@dataclass(frozen=True, slots=True)
class Core:
    """What dispatch may ask of the daemon: to take an event, to stop because of a bug, and three questions about the state."""

    emit: Callable[[AnyEvent], None]
    crash: Callable[[BaseException], None]
    pending: Callable[[str], list[AnyCommand]]
    seen: Callable[[str], int]
    lease: Callable[[], tuple[float, float]]


class Dispatch:
    """Carries out the commands of one run."""

    def __init__(self, world: World, core: Core, clock: RunClock) -> None:
        self._world = world
        self._core = core
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._conversations: dict[str, Conversation] = {}
        self._preparing: dict[str, tuple[Prepare, asyncio.Future[str]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def reattach(self, instances: list[str]) -> list[str]:
        """Take up the conversations again after a restart; those that answered, their backlog handed on."""
        there = await asyncio.gather(*map(self._reattach, instances))
        return [instance for instance, answers in zip(instances, there, strict=True) if answers]

    def carry_out(self, commands: list[AnyCommand]) -> None:
        """Begin all of them; returns at once."""
        if any(isinstance(command, StartTrial) for command in commands):
            for conversation in self._conversations.values():
                conversation.renew()
        for command in commands:
            self._carry_out(command)

    def committed(self, instance: str, fact: int) -> None:
        """Facts of this agent up to this number are in the journal."""
        if instance in self._conversations:
            self._conversations[instance].commit(fact)

    async def close(self) -> None:
        """Let go of everything without ending it."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(c.close() for c in self._conversations.values()))

    # ------------------------------------------------------------ commands

    @singledispatchmethod
    def _carry_out(self, command: Command) -> None:
        raise TypeError(f"{type(command).__name__} is not carried out")

    @_carry_out.register
    def _(self, command: SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, command.due - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._fire, command.id)

    @_carry_out.register
    def _(self, command: Launch) -> None:
        self._spawn(command.id, self._launch(command))

    @_carry_out.register
    def _(self, command: Terminate) -> None:
        self._spawn(command.id, self._terminate(command))

    @_carry_out.register
    def _(self, command: Publish) -> None:
        self._spawn(command.id, self._publish(command))

    @_carry_out.register(StartTrial)
    @_carry_out.register(StopTrial)
    def _(self, command: StartTrial | StopTrial) -> None:
        if command.instance in self._conversations:
            self._conversations[command.instance].say(order_of(command))

    @_carry_out.register
    def _(self, command: Finish) -> None:
        """The daemon ends when the core is over."""

    def _fire(self, command: str) -> None:
        self._core.emit(TimerFired(at=self._clock.now(), command=command))

    async def _launch(self, command: Launch) -> None:
        running_since: float | None = None
        try:
            instance = await self._world.provider.launch(command.id)
            running_since = self._clock.now()
            prepared: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._preparing[instance] = Prepare(command.id, self._world.job), prepared
            await self._converse(instance, 0)
            why = await prepared
        except ProviderError as error:
            self._refuse(command, str(error), running_since, retry=True)
            return
        if why:
            await self._end(instance, command.id)
            self._refuse(command, why, running_since, retry=False)
            return
        self._core.emit(
            InstanceReady(
                at=self._clock.now(),
                command=command.id,
                instance=instance,
                gpus=self._world.gpus,
                running_since=running_since,
            )
        )

    def _refuse(self, command: Launch, why: str, running_since: float | None, *, retry: bool) -> None:
        now = self._clock.now()
        self._core.emit(LaunchRefused(at=now, command=command.id, why=why, retry=retry, running_since=running_since))

    async def _terminate(self, command: Terminate) -> None:
        try:
            await self._end(command.instance, command.id)
        except ProviderError as error:
            self._lose(command.instance, str(error))
            return
        self._core.emit(InstanceTerminated(at=self._clock.now(), command=command.id, instance=command.instance))

    async def _end(self, instance: str, token: str) -> None:
        conversation = self._conversations.pop(instance, None)
        if conversation is not None:
            await conversation.shut_down(token)
        await self._world.provider.terminate(instance)

    async def _publish(self, command: Publish) -> None:
        to = self._world.result / "checkpoint.pt"
        try:
            _describe(command, self._world.result / "config.json")
            await self._world.store.fetch(command.trial, command.checkpoint, command.sha256, to)
        except (StoreError, OSError) as error:
            self._core.emit(PublishFailed(at=self._clock.now(), command=command.id, why=str(error)))
            return
        self._core.emit(ModelPublished(at=self._clock.now(), command=command.id, path=str(to)))

    def _spawn(self, key: str, work: Coroutine[None, None, None]) -> None:
        """Run it beside the others; a command that is already being carried out is not begun again."""
        if key in self._tasks and not self._tasks[key].done():
            return
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._look)
        self._tasks[key] = task

    def _look(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core.crash(error)

    # ------------------------------------------------------------ agents

    async def _reattach(self, instance: str) -> bool:
        if await self._world.provider.gone(instance):
            return False
        try:
            await self._converse(instance, self._core.seen(instance))
        except ProviderError:
            return False
        return True

    async def _converse(self, instance: str, seen: int) -> Conversation:
        ears = Ears(self._hear, self._lose, self._look, self._orders, self._core.lease)
        conversation = Conversation(instance, self._world.run, seen, self._world.provider.connect, ears)
        self._conversations[instance] = conversation
        await conversation.start()
        return conversation

    def _orders(self, instance: str) -> list[Order]:
        """What must be said again on a new connection."""
        if instance in self._preparing:
            return [self._preparing[instance][0]]
        return [order_of(c) for c in self._core.pending(instance) if isinstance(c, StartTrial | StopTrial)]

    def _lose(self, instance: str, why: str) -> None:
        self._conversations.pop(instance, None)
        if instance in self._preparing:
            self._prepared(instance, f"{instance} was lost: {why}")
            return
        self._core.emit(InstanceLost(at=self._clock.now(), instance=instance, why=why))

    def _prepared(self, instance: str, why: str) -> None:
        """The instance is ready, or why it is not."""
        _, prepared = self._preparing.pop(instance)
        if not prepared.done():
            prepared.set_result(why)

    def _hear(self, instance: str, fact: Fact, ahead_s: float) -> None:
        if isinstance(fact, Prepared | Refused) and instance in self._preparing:
            self._prepared(instance, fact.why if isinstance(fact, Refused) else "")
            return
        now = self._clock.now()
        happened = min(now, max(0.0, self._clock.of_wall(fact.at - ahead_s)))
        event = event_of(fact, instance, now, happened, self._world.metric)
        if event is not None:
            self._core.emit(event)


def _describe(command: Publish, to: Path) -> None:
    """The winner's configuration beside its checkpoint."""
    to.parent.mkdir(parents=True, exist_ok=True)
    about = {"trial": command.trial, "config": command.config, "metric": command.metric}
    to.write_text(json.dumps(about, indent=2) + "\n")
