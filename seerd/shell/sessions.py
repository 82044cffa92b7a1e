"""The daemon's conversations with the agents of a run. Orders reach an instance's agent in the
order in which the core gave them, whichever connection carries them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial

from seerd.agent.protocol import Downloads, Expected, Job, Prepare, StoreProof, Welcome
from seerd.backends.base import Launched
from seerd.core.commands import GrowTrial, StartTrial, StopTrial
from seerd.errors import ProviderError, StoreError
from seerd.shell.agents import Conversation, Readiness
from seerd.shell.core import Core
from seerd.shell.losses import Losses
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.translate import InstanceOrders
from seerd.stores.base import slot_name


class Sessions:
    """The conversations of one run; their tasks end with their task group."""

    def __init__(
        self, environment: RunEnvironment, core: Core, losses: Losses, tasks: asyncio.TaskGroup
    ) -> None:
        self._environment = environment
        self._core = core
        self._losses = losses
        self._tasks = tasks
        self._conversations: dict[str, Conversation] = {}
        self._sending: dict[str, asyncio.Future[None]] = {}

    async def keep_granting(self) -> None:
        """Send every running attempt new URLs, every `renew_urls_s` seconds."""
        while True:
            await asyncio.sleep(self._environment.timings.renew_urls_s)
            for conversation in self._open().values():
                for running in self._core.running(conversation.instance):
                    conversation.answer(partial(conversation.orders.renewal, running))

    async def take_up(self, instance: str) -> None:
        """Connect to this instance's agent and receive all kept facts. Raises `ProviderError`."""
        await self._begin(instance).start()

    async def prepare(self, launched: Launched, token: str) -> Readiness:
        """Make a new instance ready: sources of added jobs, data, setup commands, checks."""
        environment = self._environment
        jobs, expected = list(environment.jobs), environment.expected
        if expected is not None:
            torch = any(map(_may_use_torch, jobs or [environment.job]))
            expected = replace(expected, gpus=launched.gpus, torch=torch)
        parts = self._core.state.facts.parts
        try:
            proof = await self._proof(launched.instance)
        except StoreError as error:
            return Readiness(str(error), retry=True)
        order = Prepare(token, environment.job, expected, jobs, parts, proof)
        try:
            if environment.sources is not None:
                why = await self._sent(launched.instance, environment.sources.send)
                if why:
                    return Readiness(why, retry=True)
            return await self._begin(launched.instance).prepare(order)
        except asyncio.CancelledError:
            await self.drop(launched.instance, "it is given back")
            raise

    async def _proof(self, instance: str) -> StoreProof | None:
        """Return URLs with which a rented instance shows that it can use the store. Raises
        `StoreError`.
        """
        if not self._environment.proves:
            return None
        name = slot_name(0, 1)
        grant = await self._environment.store.presign(proof_of(instance), 0, 1, [name])
        if grant is None or not (grant.puts and grant.gets):
            return None
        return StoreProof(grant.puts[0].data_url, grant.gets[0].data_url)

    async def prepare_for(self, job: Job, instances: Collection[str], token: str) -> str:
        """Make these instances ready for one more job; return what went wrong, or nothing, also for
        those that go meanwhile. `token`: of this preparation.
        """
        environment, conversations = self._environment, self._open()
        expected = None if environment.expected is None else Expected(0, 0, _may_use_torch(job))
        parts = self._core.state.facts.parts
        order = Prepare(token, environment.job, expected, [*environment.jobs, job], parts)
        sources = environment.sources
        send = None if sources is None else sources.with_one_more(job.id)

        async def made(conversation: Conversation) -> str:
            why = "" if send is None else await self._sent(conversation.instance, send)
            if not why and self._is_open(conversation):
                why = (await conversation.prepare_for(job.id, order)).why
            return why if self._is_open(conversation) else ""

        concerned = [conversations[name] for name in instances if name in conversations]
        try:
            every = await asyncio.gather(*map(made, concerned))
        except asyncio.CancelledError:
            back = Prepare(f"{token}-back", environment.job, None, list(environment.jobs), parts)
            for conversation in concerned:
                conversation.say(Downloads(True, []))
                conversation.say(back)  # it ends setup commands that run there
            raise
        return next((why for why in every if why), "")

    async def _sent(self, instance: str, send: Callable[[str], Awaitable[None]]) -> str:
        """Send the instance the jobs' sources, unless it is given back; return what went wrong."""
        sending = self._sending[instance] = asyncio.ensure_future(send(instance))
        try:
            await asyncio.wait({sending})
        finally:
            sending.cancel()
            self._sending.pop(instance, None)
        if sending.cancelled():
            return f"{instance} was given back"
        error = sending.exception()
        if error is not None and not isinstance(error, ProviderError):
            raise error
        return "" if error is None else str(error)

    def boot(self, instance: str) -> str:
        """Return the boot id of the instance's machine; empty if it is not known."""
        conversations = self._open()
        return conversations[instance].boot if instance in conversations else ""

    def clocks(self) -> dict[str, float]:
        """Return by how many seconds the clock of each instance is ahead of this machine's."""
        return {conversation.instance: conversation.off_s for conversation in self._open().values()}

    def welcomes(self) -> dict[str, Welcome]:
        """Return each agent's answer to the last connection."""
        return {
            conversation.instance: conversation.welcome
            for conversation in self._open().values()
            if conversation.welcome
        }

    def instances(self) -> list[str]:
        """Return the instances with an open conversation."""
        return list(self._open())

    def order(self, command: StartTrial | StopTrial | GrowTrial) -> None:
        """Send the command to the agent of each instance that it concerns."""
        conversations = self._open()
        for instance in command.nodes:
            if instance in conversations:
                conversations[instance].order(command)

    def renew(self) -> None:
        """Renew all leases now: the next command must not find one that is about to end."""
        for conversation in self._open().values():
            conversation.renew()

    def committed(self, instance: str, fact: int) -> None:
        """Acknowledge all facts up to number `fact`, which are in the journal, to the agent."""
        if instance in self._conversations:
            self._conversations[instance].commit(fact)

    async def shut_down(self, instance: str, token: str, spare_s: float) -> None:
        """Have the agent kill what runs and end, and wait for that, `spare_s` if unconnected."""
        conversation = self._pop(instance)
        if conversation is not None:
            await conversation.shut_down(token, spare_s)

    async def drop(self, instance: str, why: str) -> None:
        """End the conversation: the instance is gone."""
        conversation = self._pop(instance)
        if conversation is not None:
            await conversation.drop(why)

    def _pop(self, instance: str) -> Conversation | None:
        if instance in self._sending:
            self._sending[instance].cancel()
        return self._conversations.pop(instance, None)

    def _begin(self, instance: str) -> Conversation:
        orders = InstanceOrders(instance, self._environment, self._core)
        conversation = Conversation(orders, self._losses, self._tasks)
        self._conversations[instance] = conversation
        return conversation

    def _is_open(self, conversation: Conversation) -> bool:
        return self._open().get(conversation.instance) is conversation

    def _open(self) -> dict[str, Conversation]:
        """Return the conversations that are not over; the others' instances are being given up."""
        self._conversations = {i: c for i, c in self._conversations.items() if not c.over}
        return self._conversations


def proof_of(instance: str) -> str:
    """Return the name under which an instance puts a byte into the store, instead of a trial's."""
    return f".proof-{instance}"


def _may_use_torch(job: Job) -> bool:
    return job.launcher != "command"
