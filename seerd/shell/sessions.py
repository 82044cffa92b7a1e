"""The conversations with the agents of a run: one for each instance that is there.

The one rule: what an instance's agent is told reaches it in the order in which the core asked for
it, on whatever connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from seerd.agent.protocol import Prepare
from seerd.core.commands import StartTrial, StopTrial
from seerd.shell.agents import Conversation, Readiness
from seerd.shell.losses import Losses
from seerd.shell.nodes import instances_of
from seerd.shell.orders import InstanceOrders
from seerd.shell.providers.base import Launched
from seerd.shell.run_environment import Core, RunEnvironment

RENEW_URLS_S = 600.0
"""Grants are renewed this often: temporary credentials end, and URLs that were signed with them."""


class Sessions:
    """The conversations of one run, in tasks that end with their group."""

    def __init__(
        self, environment: RunEnvironment, core: Core, losses: Losses, tasks: asyncio.TaskGroup
    ) -> None:
        self._environment = environment
        self._core = core
        self._losses = losses
        self._tasks = tasks
        self._conversations: dict[str, Conversation] = {}

    async def keep_granting(self) -> None:
        """Renew grants again and again."""
        while True:
            await asyncio.sleep(RENEW_URLS_S)
            for conversation in self._open().values():
                for running in self._core.running(conversation.instance):
                    conversation.tell(partial(conversation.orders.presign, running))

    async def take_up(self, instance: str) -> None:
        """Talk to this instance's agent; returns when all that it had kept for us was heard.

        Raises `ProviderError`.
        """
        await self._begin(instance).start()

    async def prepare(self, launched: Launched, token: str) -> Readiness:
        """Have a new instance made ready for trials."""
        expected = self._environment.expected
        if expected is not None:
            expected = replace(expected, gpus=launched.gpus)
        order = Prepare(token, self._environment.job, expected)
        try:
            return await self._begin(launched.instance).prepare(order)
        except asyncio.CancelledError:
            await self.drop(launched.instance, "it is given back")
            raise

    def boot(self, instance: str) -> str:
        """Which boot of its machine we talk to; empty if that is not known."""
        there = self._open()
        return there[instance].boot if instance in there else ""

    def instances(self) -> list[str]:
        """Those that we talk to."""
        return list(self._open())

    def order(self, command: StartTrial | StopTrial) -> None:
        """Tell every instance whose agent it concerns."""
        there = self._open()
        for instance in instances_of(command):
            if instance in there:
                there[instance].tell(partial(there[instance].orders.of, command))

    def renew(self) -> None:
        """Renew all leases now: what is done next must not find one that is about to end."""
        for conversation in self._open().values():
            conversation.renew()

    def committed(self, instance: str, fact: int) -> None:
        """Facts of this agent up to this number are in the journal."""
        if instance in self._conversations:
            self._conversations[instance].commit(fact)

    async def shut_down(self, instance: str, token: str, spare_s: float) -> None:
        """Have its agent kill what still runs and end; returns when it has, or cannot be reached,
        for which `spare_s` seconds are waited at most.
        """
        conversation = self._conversations.pop(instance, None)
        if conversation is not None:
            await conversation.shut_down(token, spare_s)

    async def drop(self, instance: str, why: str) -> None:
        """The instance is gone."""
        conversation = self._conversations.pop(instance, None)
        if conversation is not None:
            await conversation.drop(why)

    def _begin(self, instance: str) -> Conversation:
        orders = InstanceOrders(instance, self._environment, self._core)
        conversation = Conversation(orders, self._losses, self._tasks)
        self._conversations[instance] = conversation
        return conversation

    def _open(self) -> dict[str, Conversation]:
        """Without those that are over: their instances are being given up."""
        self._conversations = {i: c for i, c in self._conversations.items() if not c.over}
        return self._conversations
