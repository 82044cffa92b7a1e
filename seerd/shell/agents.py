"""Conversations with agents: one per instance, reconnected for as long as the instance may still be there.

The one rule: a fact is handed on in order and once, and acknowledged only when `commit` says that it is in the journal. An agent is not
trusted to keep to the protocol: one that breaks it for half a minute on end is given up, and nothing else comes of it. After a lost
connection the conversation goes on behind the last fact that was handed on; orders whose outcome is unknown are said again, since agents
carry out an order's id only once. An agent that will not talk to us is ended, and the one that is started in its place tells from its
journal what it had kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from seerd.agent.protocol import (
    FACTS,
    VERSION,
    Ack,
    Ask,
    Fact,
    Hello,
    Order,
    ProtocolError,
    Refused,
    Renew,
    Shutdown,
    Welcome,
)
from seerd.agent.wire import decode, encode
from seerd.errors import ProviderError
from seerd.shell.clock import wall
from seerd.shell.providers.base import Connection, Reader, Writer

RENEW_S = 5.0
RETRY_S = 0.2
GIVE_UP_S = 30.0
ANSWER_S = 10.0
CATCH_UP_S = 60.0
"""An agent that has announced facts and tells none is as good as silent, and a run must not wait for it beyond its deadline."""
BROKEN = (ProtocolError, ValueError)
"""What the agent said is no message; asyncio's word for a line that does not end is `ValueError`."""
FAILURES = (OSError, ProviderError, *BROKEN, asyncio.IncompleteReadError, TimeoutError)


class RebootError(Exception):
    """The machine behind an instance's name is not as it was."""


class ForeignError(Exception):
    """The agent will not talk to us: it speaks another version of the protocol."""


@dataclass(frozen=True, slots=True)
class Ears:
    """Who listens to a conversation.

    fact      a new fact, with the seconds by which the agent's clock is ahead of ours
    ask       a question that is no fact
    lost      the instance cannot be reached any more, and why; the conversation has ended
    ended     the task of a conversation that is over, to see whether it failed
    pending   finds the orders for this instance whose outcome is not known, and what they need
    lease     how long the agent may go on without us, and how long its trials may take to save, seconds
    """

    fact: Callable[[str, Fact, float], None]
    ask: Callable[[str, Ask], None]
    lost: Callable[[str, str], None]
    ended: Callable[[asyncio.Task[None]], None]
    pending: Callable[[str], Awaitable[list[Order]]]
    lease: Callable[[], tuple[float, float, float]]


class Ways(Protocol):
    """To the agents of a run's instances, see `providers.base`."""

    async def connect(self, instance: str) -> Connection:
        """A byte stream to the agent."""

    async def end_agent(self, instance: str, grace_s: float) -> None:
        """End it, so that `connect` starts another."""


class Conversation:
    """With the agent of one instance. `seen`: number of the last fact that was handed on; `boot`: of the machine, empty if not known yet;
    `ahead_s`: how far its clock is ahead of the shell's; `off_s`: the same, or of the wall clock if that is nearer: one of ours that was wrong
    when this process began, and is right now, is no fault of the machine.
    """

    def __init__(
        self,
        instance: str,
        run: str,
        seen: int,
        boot: str,
        ways: Ways,
        ears: Ears,
    ) -> None:
        self.instance = instance
        self.boot = boot
        self.ahead_s = self.off_s = 0.0
        self._run = run
        self._seen = seen
        self._ways = ways
        self._ears = ears
        self._writer: Writer | None = None
        self._speaking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._ending = False
        self._replaced = False
        self._last_order: Shutdown | None = None

    async def start(self) -> None:
        """Connect, and return when every fact that the agent had kept for us has been handed on.

        Raises `ProviderError` if the agent cannot be reached.
        """
        self._task = asyncio.create_task(self._keep_talking(), name=f"conversation {self.instance}")
        self._task.add_done_callback(self._ears.ended)
        caught_up = asyncio.create_task(self._caught_up.wait())
        await asyncio.wait({self._task, caught_up}, timeout=CATCH_UP_S, return_when=asyncio.FIRST_COMPLETED)
        caught_up.cancel()
        if not self._caught_up.is_set():
            raise ProviderError(f"the agent of {self.instance} does not answer")

    def say(self, order: Order) -> None:
        """Send this now; if the connection is down, orders are said again when it is back, as some of `pending`."""
        if self._writer is not None:
            self._writer.write(encode(order))

    async def speak(self, orders: Callable[[], Awaitable[list[Order]]]) -> None:
        """Find what is to be said, then say it: after all that was to be said before, and before all that comes later."""
        async with self._speaking:
            for order in await orders():
                self.say(order)

    def renew(self) -> None:
        """Tell the agent how long it may go on without us."""
        self.say(Renew(*self._ears.lease()))

    def commit(self, seen: int) -> None:
        """Facts up to this number are in the journal."""
        self.say(Ack(seen))

    async def shut_down(self, token: str, spare_s: float = ANSWER_S) -> None:
        """Have the agent kill what still runs and end; returns when it has closed the connection, or cannot be reached.

        One that is only just being connected to is told as soon as it can hear, if that is within `spare_s` seconds.
        """
        self._ending = True
        self._last_order = Shutdown(token)
        self.say(self._last_order)
        await self.close(ANSWER_S if self._writer is not None else min(ANSWER_S, spare_s))

    async def close(self, patience_s: float = 0.0) -> None:
        """End the conversation, after at most `patience_s` for the other side to end it. The agent goes on by itself."""
        self._ending = True
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=patience_s)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _keep_talking(self) -> None:
        failing_since: float | None = None
        while True:
            began, broken = asyncio.get_running_loop().time(), False
            try:
                await self._talk_to_ours()
            except (RebootError, ForeignError) as error:
                self._ears.lost(self.instance, str(error))
                return
            except FAILURES as error:
                why, broken = str(error) or type(error).__name__, isinstance(error, BROKEN)
            else:
                why = "the agent closed the connection"
            if self._ending:
                return
            now = asyncio.get_running_loop().time()
            if self._caught_up.is_set() and (not broken or failing_since is None or now - began > GIVE_UP_S):
                failing_since = now
            elif failing_since is None:
                failing_since = began
            self._caught_up.clear()
            if now - failing_since > GIVE_UP_S:
                self._ears.lost(self.instance, why)
                return
            await asyncio.sleep(RETRY_S)

    async def _talk_to_ours(self) -> None:
        """The same with the agent that takes the place of one that will not talk to us."""
        try:
            await self._talk()
        except ForeignError:
            if self._replaced:
                raise
            _, grace_s, _ = self._ears.lease()
            await self._ways.end_agent(self.instance, grace_s)
            self._replaced = True
            await self._talk()

    async def _talk(self) -> None:
        """One connection, from hello until it breaks."""
        reader, writer = await self._ways.connect(self.instance)
        renewing: asyncio.Task[None] | None = None
        try:
            writer.write(encode(Hello(VERSION, self._run, self._seen)))
            welcome, ahead_s = await self._welcome(reader)
            self._writer = writer
            if self._last_order is not None:
                self.say(self._last_order)
            renewing = asyncio.create_task(self._keep_renewing())
            await self.speak(lambda: self._ears.pending(self.instance))
            await self._listen(reader, welcome.last, ahead_s)
        finally:
            self._writer = None
            if renewing is not None:
                renewing.cancel()
            writer.close()

    async def _welcome(self, reader: Reader) -> tuple[Welcome, float]:
        async with asyncio.timeout(ANSWER_S):
            line = await reader.readline()
        if not line:
            raise ProtocolError("the agent closed the connection instead of answering")
        welcome = decode(line)
        if isinstance(welcome, Refused):
            raise ForeignError(f"its agent does not talk to this version of seerd: {welcome.why}")
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"the agent answered {welcome.kind} instead of welcome")
        if self.boot and welcome.boot != self.boot:
            raise RebootError(f"{self.instance} has been rebooted: what ran there is gone")
        self.boot, self.ahead_s = welcome.boot, welcome.now - wall()
        self.off_s = min(self.ahead_s, welcome.now - time.time(), key=abs)
        return welcome, self.ahead_s

    async def _listen(self, reader: Reader, last: int, ahead_s: float) -> None:
        if self._seen >= last:
            self._caught_up.set()
        while line := await reader.readline():
            message = decode(line)
            if isinstance(message, Ask):
                self._ears.ask(self.instance, message)
                continue
            if not isinstance(message, FACTS):
                raise ProtocolError(f"the agent sent {message.kind}, which is not a fact")
            if message.seq > self._seen + 1:
                raise ProtocolError(f"the agent told fact {message.seq} after fact {self._seen}")
            if message.seq > self._seen:
                self._seen = message.seq
                self._ears.fact(self.instance, message, ahead_s)
            if self._seen >= last:
                self._caught_up.set()

    async def _keep_renewing(self) -> None:
        while True:
            self.renew()
            await asyncio.sleep(RENEW_S)
