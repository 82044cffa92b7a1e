"""What is said to agents and heard from them: orders with the grants that they need, facts as events.

The one rule: what an instance's agent is told reaches it in the order in which the core asked for it, on whatever connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from seerd.agent.protocol import Ask, Checkpointed, Fact, Order, Parts, Prepare, Prepared, Refused
from seerd.core.commands import AnyCommand, StartTrial, StopTrial
from seerd.errors import ProviderError, SeerdError
from seerd.shell.agents import Conversation, Ears
from seerd.shell.clock import RunClock
from seerd.shell.nodes import instances_of, start_on
from seerd.shell.providers.base import Launched
from seerd.shell.stores.base import slot_name, slot_number
from seerd.shell.stores.data import chunks
from seerd.shell.translate import event_of, order_of
from seerd.shell.world import Core, Running, World

AGAIN_S = 1.0
CLOCK_S = 120.0
PREPARE_S = 1200.0
"""An instance is paid for while it is set up; what takes longer belongs into an image."""
GRANT_S = 600.0
"""Grants are renewed this often: temporary credentials end, and URLs that were signed with them."""

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the preparation of an instance: `why` it cannot be used, empty if it can; `retry`: another one might do."""

    why: str = ""
    retry: bool = False


class Talks:
    """The conversations of one run. `spawn` does work beside everything else; `lost` takes instances that cannot be reached any more."""

    def __init__(
        self,
        world: World,
        core: Core,
        clock: RunClock,
        spawn: Callable[[Work], object],
        lost: Callable[[str, str], None],
    ) -> None:
        self._world = world
        self._core = core
        self._clock = clock
        self._spawn = spawn
        self._lost = lost
        self._conversations: dict[str, Conversation] = {}
        self._preparing: dict[str, tuple[Prepare, asyncio.Future[Outcome]]] = {}
        self._granting: asyncio.Task[None] | None = None

    async def take_up(self, instance: str) -> None:
        """Talk to this instance's agent; returns when all that it had kept for us was heard. Raises `ProviderError`."""
        ears = Ears(self._hear, self._ask, self._lose, self._look, self._pending, self._core.lease)
        conversation = Conversation(instance, self._world.run, *self._core.known(instance), self._world.provider, ears)
        self._conversations[instance] = conversation
        if self._granting is None:
            self._granting = asyncio.get_running_loop().create_task(self._keep_granting())
            self._granting.add_done_callback(self._look)
        await conversation.start()

    async def prepare(self, launched: Launched, token: str) -> Outcome:
        """Have a new instance made ready for trials."""
        instance, expected = launched.instance, self._world.expected
        if expected is not None:
            expected = replace(expected, gpus=launched.gpus)
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._preparing[instance] = Prepare(token, self._world.job, expected), done
        try:
            await self.take_up(instance)
            off_s = self._conversations[instance].off_s if instance in self._conversations else 0.0
            if expected is not None and abs(off_s) > CLOCK_S:
                return Outcome(
                    f"the clock of {instance} is off by {off_s:.0f}s; certificates and signatures go by it",
                    retry=True,
                )
            async with asyncio.timeout(PREPARE_S):
                return await done
        except TimeoutError:
            long = f"{PREPARE_S / 60:.0f} minutes"
            return Outcome(f"{instance} was not ready after {long} of fetching data, running setup commands and checks")
        except ProviderError as error:
            return Outcome(str(error), retry=True)
        except asyncio.CancelledError:
            await self.drop(instance, "it is given back")
            raise
        finally:
            self._preparing.pop(instance, None)

    def boot(self, instance: str) -> str:
        """Which boot of its machine we talk to; empty if that is not known."""
        return self._conversations[instance].boot if instance in self._conversations else ""

    def instances(self) -> list[str]:
        """Those that we talk to."""
        return list(self._conversations)

    def order(self, command: StartTrial | StopTrial) -> None:
        """Tell every instance whose agent it concerns."""
        for instance in instances_of(command):
            self._say(instance, partial(self._orders, command, instance))

    def renew(self) -> None:
        """Renew all leases now: what is done next must not find one that is about to end."""
        for conversation in self._conversations.values():
            conversation.renew()

    def committed(self, instance: str, fact: int) -> None:
        """Facts of this agent up to this number are in the journal."""
        if instance in self._conversations:
            self._conversations[instance].commit(fact)

    async def shut_down(self, instance: str, token: str, spare_s: float) -> None:
        """Have its agent kill what still runs and end; returns when it has, or cannot be reached, for which `spare_s` seconds
        are waited at most.
        """
        conversation = self._conversations.pop(instance, None)
        if conversation is not None:
            await conversation.shut_down(token, spare_s)

    async def drop(self, instance: str, why: str) -> None:
        """The instance is gone."""
        self._fail_preparing(instance, why)
        conversation = self._conversations.pop(instance, None)
        if conversation is not None:
            await conversation.close()

    async def close(self) -> None:
        """End all conversations; agents go on by themselves."""
        if self._granting is not None:
            self._granting.cancel()
        await asyncio.gather(*(c.close() for c in self._conversations.values()))

    # ------------------------------------------------------------ saying

    def _say(self, instance: str, orders: Callable[[], Coroutine[Any, Any, list[Order]]]) -> None:
        conversation = self._conversations.get(instance)
        if conversation is not None:
            self._spawn(conversation.speak(orders))

    async def _pending(self, instance: str) -> list[Order]:
        """What must be said again on a new connection."""
        if instance in self._preparing:
            return [*await self._downloads(), self._preparing[instance][0]]
        orders = [o for running in self._core.running(instance) for o in await self._grant(running)]
        for command in self._core.pending(instance):
            orders += await self._orders(command, instance)
        return orders

    async def _orders(self, command: AnyCommand, instance: str) -> list[Order]:
        if isinstance(command, StopTrial):
            return [order_of(command)]
        if not isinstance(command, StartTrial):
            return []
        start = start_on(command, instance, self._world.provider.address)
        if start.node is not None and start.node.rank > 0:
            return [start]
        return [*await self._grant(Running(command.trial, command.attempt, 0), command.checkpoints), start]

    async def _grant(self, running: Running, checkpoints: Sequence[str] = ()) -> list[Order]:
        """Without credentials nothing can be signed, and a trial must not start without what it was to go on from: that is waited for."""
        while True:
            try:
                store = self._world.store
                grant = await store.grant(running.trial, running.attempt, running.saved + 1, checkpoints)
            except SeerdError:
                await asyncio.sleep(AGAIN_S)
            else:
                return [] if grant is None else [grant]

    async def _downloads(self) -> list[Order]:
        if self._world.data is None:
            return []
        return list(chunks(await self._world.data()))

    async def _keep_granting(self) -> None:
        while True:
            await asyncio.sleep(GRANT_S)
            for instance in list(self._conversations):
                for running in self._core.running(instance):
                    self._say(instance, partial(self._grant, running))

    # ------------------------------------------------------------ hearing

    def _hear(self, instance: str, fact: Fact, ahead_s: float) -> None:
        if isinstance(fact, Prepared | Refused) and instance in self._preparing:
            outcome = Outcome(fact.why, fact.unhealthy) if isinstance(fact, Refused) else Outcome()
            self._resolve(instance, outcome)
            return
        if isinstance(fact, Checkpointed) and self._runs(instance, fact.trial, fact.attempt):
            saved = Running(fact.trial, fact.attempt, slot_number(fact.name))
            self._say(instance, partial(self._grant, saved))
        now = self._clock.now()
        happened = min(now, max(0.0, self._clock.of_wall(fact.at - ahead_s)))
        event = event_of(fact, instance, now, happened, self._world.metric)
        if event is not None:
            self._core.emit(event)

    def _ask(self, instance: str, ask: Ask) -> None:
        self._say(instance, partial(self._parts, ask, instance))

    async def _parts(self, ask: Ask, instance: str) -> list[Order]:
        """Places are for the attempts of that instance alone, whatever its agent asks for."""
        number = slot_number(ask.name)
        if ask.name == slot_name(ask.attempt, number) and self._runs(instance, ask.trial, ask.attempt):
            return [await self._world.store.parts(ask)]
        return [Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")]

    def _runs(self, instance: str, trial: str, attempt: int) -> bool:
        return any((one.trial, one.attempt) == (trial, attempt) for one in self._core.running(instance))

    def _lose(self, instance: str, why: str) -> None:
        self._conversations.pop(instance, None)
        if instance in self._preparing:
            self._fail_preparing(instance, why)
        else:
            self._lost(instance, why)

    def _fail_preparing(self, instance: str, why: str) -> None:
        if instance in self._preparing:
            self._resolve(instance, Outcome(f"{instance} was lost: {why}", retry=True))

    def _resolve(self, instance: str, outcome: Outcome) -> None:
        _, done = self._preparing[instance]
        if not done.done():
            done.set_result(outcome)

    def _look(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core.crash(error)
