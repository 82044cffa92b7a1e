"""Conversations with agents, one per instance, reconnected as long as the instance may exist.

The one rule: each fact is emitted once and in order, and acknowledged only when it is in the
journal. After a lost connection the conversation goes on after the last emitted fact, and orders
without an outcome are sent again: an agent carries out an order's id once. An agent that breaks the
protocol for `give_up_s` seconds is given up. One of another version is replaced; the new one reads
the old one's facts from its journal.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from seerd.agent import protocol
from seerd.agent.protocol import FACTS, VERSION, Fact, Order, ProtocolError
from seerd.agent.wire import decode, encode
from seerd.backends.base import LineReader, Writer
from seerd.clock import wall
from seerd.core.commands import GrowTrial, StartTrial, StopTrial
from seerd.core.events import EventsMissing
from seerd.errors import ProviderError, SeerdError
from seerd.shell.losses import Losses
from seerd.shell.run_environment import Running
from seerd.shell.translate import InstanceOrders, stop_of
from seerd.stores.base import slot_number

ACK_S = 0.05  # longest wait of an acknowledgement, seconds; less than `agent.serve.FLUSH_S`
LEAST_S = 0.3  # seconds that an agent has to receive the end although the run's time is up
CLOCK_S = 120.0
PREPARE_S = 1200.0  # longest preparation of an instance, which is paid, seconds
WITHOUT_GROW = "1"  # `Welcome.agent` of agents that do not know the order to grow
BROKEN = (ProtocolError, ValueError)  # `ValueError`: asyncio, of a line without an end
FAILURES = (OSError, ProviderError, *BROKEN, asyncio.IncompleteReadError, TimeoutError)


class RebootError(Exception):
    """The machine has been rebooted since the last connection."""


class ForeignError(Exception):
    """The agent speaks another version of the protocol and refuses to talk."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The outcome of preparing an instance."""

    why: str = ""  # why it cannot be used; empty if it can
    retry: bool = False  # whether another instance might do
    cause: str = ""  # a `core.events.SetbackCause`; empty: another reason


class _Preparation:
    """An instance is to be made ready, after the data of `job` (None: of all) were fetched."""

    def __init__(self, order: protocol.Prepare, job: str | None = None) -> None:
        self.order, self.job = order, job
        self.outcome: asyncio.Future[Readiness] = asyncio.get_running_loop().create_future()

    def answer(self, readiness: Readiness) -> None:
        """Set the outcome, if it is not set."""
        if not self.outcome.done():
            self.outcome.set_result(readiness)


class Conversation:
    """The conversation with the agent of one instance."""

    def __init__(self, orders: InstanceOrders, losses: Losses, tasks: asyncio.TaskGroup) -> None:
        self.orders = orders
        self.instance = orders.instance
        self._environment = orders.environment
        self._timings = self._environment.timings
        self._core = orders.core
        self._losses = losses
        self._tasks = tasks
        self._seen, self.boot = self._core.known(self.instance)  # boot: of its machine; or empty
        # Seconds that its time, and its wall clock, are ahead of `clock.wall`; the latter compared
        # with the wall clock if that is nearer, which may have been wrong when this process began.
        self.ahead_s = self.off_s = 0.0
        self.welcome: protocol.Welcome | None = None  # the agent's answer to the last connection
        self._writer: Writer | None = None
        self._speaking = asyncio.Lock()
        self._starting: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._preparing: _Preparation | None = None  # of the instance, or for one more job
        self._committed = 0
        self._acking: asyncio.TimerHandle | None = None
        self._ending = False
        self._replaced = False
        self._last_order: protocol.Shutdown | None = None

    @property
    def over(self) -> bool:
        """Whether the conversation has ended for good."""
        return self._task is not None and self._task.done()

    async def start(self) -> None:
        """Connect to the agent. Returns when every fact that it had kept has been emitted, or the
        conversation is ended. Raises `ProviderError` if it does not answer within `catch_up_s`
        seconds.
        """
        name, first = f"conversation {self.instance}", asyncio.FIRST_COMPLETED
        self._task = self._tasks.create_task(self._keep_talking(), name=name)
        caught_up = asyncio.create_task(self._caught_up.wait())
        patience_s = self._timings.catch_up_s
        await asyncio.wait({self._task, caught_up}, timeout=patience_s, return_when=first)
        caught_up.cancel()
        if not self._caught_up.is_set() and not self._ending:
            raise ProviderError(f"the agent of {self.instance} does not answer")

    async def prepare(self, order: protocol.Prepare) -> Readiness:
        """Make a new instance ready for trials, and check its clock. Failures are in the result."""
        self._preparing = _Preparation(order)
        try:
            await self.start()
            if order.expected is not None and abs(self.off_s) > CLOCK_S:
                off = f"the clock of {self.instance} is off by {self.off_s:.0f}s"
                return Readiness(f"{off}; certificates and signatures go by it", retry=True)
            return await self._outcome(self._preparing)
        except ProviderError as error:
            return Readiness(str(error), retry=True)
        finally:
            self._preparing = None

    async def prepare_for(self, job: str, order: protocol.Prepare) -> Readiness:
        """Make a ready instance ready for one more job, one at a time; return failures too."""
        self._preparing = _Preparation(order, job)
        try:
            for sent in await self._orders_of(self._preparing):
                self.say(sent)
            return await self._outcome(self._preparing)
        finally:
            self._preparing = None

    async def _outcome(self, preparation: _Preparation) -> Readiness:
        try:
            async with asyncio.timeout(PREPARE_S):
                return await preparation.outcome
        except TimeoutError:
            work = (
                f"{PREPARE_S / 60:.0f} minutes of fetching data, running setup commands and checks"
            )
            return Readiness(f"{self.instance} was not ready after {work}")

    def say(self, order: Order) -> None:
        """Send this order now, if there is a connection; the next one sends `pending` again."""
        is_old = self.welcome is not None and self.welcome.agent == WITHOUT_GROW
        if self._writer is None or (is_old and isinstance(order, protocol.Grow)):
            return
        if isinstance(order, protocol.Renew | protocol.Stop):
            # From which moment, in the agent's time, its seconds count.
            clock, trials = self._core.clock, self._core.state.trials
            at_s = trials[order.trial].asked_s if isinstance(order, protocol.Stop) else clock.now()
            order = replace(order, at=clock.origin + at_s + self.ahead_s)
        self._writer.write(encode(order))

    def order(self, command: StartTrial | StopTrial | GrowTrial) -> None:
        """Send this command's orders: starts in order, as soon as they have URLs; a stop at once,
        unless its trial is still to be started, since a trial must end in time.
        """
        if isinstance(command, StopTrial) and not self._starting[command.trial]:
            self.say(stop_of(command))
            return
        starting = [command.trial] if isinstance(command, StartTrial) else []
        self._starting.update(starting)
        self._tasks.create_task(self._speak(partial(self.orders.of, command), starting))

    def answer(self, orders: Callable[[], Awaitable[list[Order]]]) -> None:
        """Start a task that makes these orders, about attempts that run, and sends them then."""
        self._tasks.create_task(self._answer_with(orders))

    async def _answer_with(self, orders: Callable[[], Awaitable[list[Order]]]) -> None:
        for order in await orders():
            self.say(order)

    async def _speak(
        self, orders: Callable[[], Awaitable[list[Order]]], starting: Collection[str]
    ) -> None:
        """Send these orders, which start trials `starting`, after those of earlier calls."""
        try:
            async with self._speaking:
                for order in await orders():
                    self.say(order)
        finally:
            self._starting.subtract(starting)

    async def _say_again(self) -> None:
        """Send everything still needed to a new connection, what ends a trial first."""
        commands = self._core.pending(self.instance)
        starting = {start.trial for start in commands if isinstance(start, StartTrial)}
        self._starting.update(starting)
        for command in commands:
            if isinstance(command, StopTrial) and command.trial not in starting:
                self.say(stop_of(command))
        await self._speak(self._pending, starting)

    def renew(self) -> None:
        """Send the agent its lease, and when training ends."""
        self.say(protocol.Renew(*self._core.lease(), ends_in_s=self._core.ends_in()))

    def commit(self, seen: int) -> None:
        """Acknowledge all facts up to number `seen`, which are in the journal, soon."""
        self._committed = seen
        if self._acking is None:
            self._acking = asyncio.get_running_loop().call_later(ACK_S, self._acknowledge)

    def _acknowledge(self) -> None:
        self._acking = None
        self.say(protocol.Ack(self._committed))

    async def shut_down(self, token: str, spare_s: float = math.inf) -> None:
        """Have the agent kill what still runs and end. Returns when it has closed the connection or
        cannot be reached, or after `spare_s` seconds; then it ends by itself.
        """
        self._ending = True
        self._last_order = protocol.Shutdown(token)
        self.say(self._last_order)
        least_s = LEAST_S if self._writer is not None else 0.0
        await self.close(min(self._timings.answer_s, max(least_s, spare_s)))

    async def drop(self, why: str) -> None:
        """End the conversation because of `why`: the instance is gone."""
        self._fail_preparing(why)
        await self.close()

    async def close(self, patience_s: float = 0.0) -> None:
        """End the conversation but not the agent, which has `patience_s` seconds to end it."""
        self._ending = True
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=patience_s)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _keep_talking(self) -> None:
        failing_since: float | None = None
        give_up_s = self._timings.give_up_s
        while True:
            began, broken = asyncio.get_running_loop().time(), False
            try:
                await self._talk_to_ours()
            except (RebootError, ForeignError) as error:
                self._lose(str(error))
                return
            except FAILURES as error:
                why, broken = str(error) or type(error).__name__, isinstance(error, BROKEN)
            else:
                why = "the agent closed the connection"
            if self._ending:
                return
            now = asyncio.get_running_loop().time()
            if self._caught_up.is_set() and (
                not broken or failing_since is None or now - began > give_up_s
            ):
                failing_since = now
            elif failing_since is None:
                failing_since = began
            self._caught_up.clear()
            if now - failing_since > give_up_s:
                self._lose(why)
                return
            await asyncio.sleep(self._timings.retry_s)

    async def _talk_to_ours(self) -> None:
        """Talk to the agent; replace it once if it speaks another version of the protocol."""
        try:
            await self._talk()
        except ForeignError:
            if self._replaced:
                raise
            _, grace_s, _ = self._core.lease()
            await self._environment.provider.end_agent(self.instance, grace_s)
            self._replaced = True
            await self._talk()

    async def _talk(self) -> None:
        """Hold one connection, from hello until it breaks."""
        reader, writer = await self._environment.provider.connect(self.instance)
        renewing: asyncio.Task[None] | None = None
        try:
            holds = self._core.holds(self.instance)
            writer.write(encode(protocol.Hello(VERSION, self._environment.run, self._seen, holds)))
            welcome, ahead_s = await self._welcome(reader)
            self._writer = writer
            if self._last_order is not None:
                self.say(self._last_order)
            renewing = asyncio.create_task(self._keep_renewing())
            await self._say_again()
            await self._listen(reader, welcome, ahead_s)
        finally:
            self._writer = None
            if renewing is not None:
                renewing.cancel()
            writer.close()

    async def _welcome(self, reader: LineReader) -> tuple[protocol.Welcome, float]:
        line = await _line_within(self._timings.answer_s, reader)
        if not line:
            raise ProtocolError("the agent closed the connection instead of answering")
        welcome = decode(line)
        if isinstance(welcome, protocol.Refused):
            raise ForeignError(f"its agent does not talk to this version of seerd: {welcome.why}")
        if not isinstance(welcome, protocol.Welcome):
            raise ProtocolError(f"the agent answered {welcome.kind} instead of welcome")
        if self.boot and welcome.boot != self.boot:
            raise RebootError(f"{self.instance} has been rebooted: what ran there is gone")
        if welcome.last < self._seen:
            # It sends facts before they are on its disk; its next ones would be taken for these.
            raise RebootError(
                f"{self.instance} has lost facts that it had reported: its agent's journal was "
                "damaged, or its disk is an older one"
            )
        if self.welcome is None and welcome.acked > self._seen:
            now, acked = self._core.clock.now(), welcome.acked
            self._core.emit(EventsMissing(at=now, instance=self.instance, acked=acked))
        self.welcome, self.boot = welcome, welcome.boot
        self.ahead_s = welcome.now - wall()
        shown = welcome.now if welcome.wall is None else welcome.wall
        self.off_s = min(shown - wall(), shown - time.time(), key=abs)
        return welcome, self.ahead_s

    async def _listen(self, reader: LineReader, welcome: protocol.Welcome, ahead_s: float) -> None:
        last, patience_s = welcome.last, self._timings.silent_s if welcome.answers else None
        if self._seen >= last:
            self._caught_up.set()
        while line := await _line_within(patience_s, reader):
            message = decode(line)
            if isinstance(message, protocol.Alive):
                continue
            if isinstance(message, protocol.Ask):
                self.answer(partial(self.orders.parts, message))
                continue
            if not isinstance(message, FACTS):
                raise ProtocolError(f"the agent sent {message.kind}, which is not a fact")
            if message.seq > self._seen + 1:
                raise ProtocolError(f"the agent sent fact {message.seq} after fact {self._seen}")
            if message.seq > self._seen:
                self._seen = message.seq
                self._receive(message, ahead_s)
            if self._seen >= last:
                self._caught_up.set()
            await self._core.queue.room(self.instance)

    async def _pending(self) -> list[Order]:
        preparing = self._preparing
        first = [] if preparing is None else await self._orders_of(preparing)
        is_new = preparing is not None and preparing.job is None
        return first if is_new else [*first, *await self.orders.pending()]

    async def _orders_of(self, preparation: _Preparation) -> list[Order]:
        """Return the orders of a preparation; answer it if they cannot be made."""
        try:
            return [*await self.orders.downloads(preparation.job), preparation.order]
        except SeerdError as error:
            preparation.answer(Readiness(str(error), retry=True))
            return []

    def _receive(self, fact: Fact, ahead_s: float) -> None:
        preparing = self._preparing
        if (
            preparing is not None
            and isinstance(fact, protocol.Prepared | protocol.Refused)
            and (preparing.job is None or fact.id == preparing.order.id)
        ):
            outcome = Readiness()
            if isinstance(fact, protocol.Refused):
                outcome = Readiness(fact.why, fact.unhealthy, fact.cause)
            preparing.answer(outcome)
            return
        if isinstance(fact, protocol.Checkpointed) and self.orders.is_ours(
            fact.trial, fact.attempt
        ):
            saved = Running(fact.trial, fact.attempt, slot_number(fact.name))
            self.answer(partial(self.orders.renewal, saved))
        self._losses.emit(self.instance, fact, ahead_s)

    def _lose(self, why: str) -> None:
        if self._preparing is None or self._preparing.job is not None:
            self._losses.give_up(self.instance, why)
        self._fail_preparing(why)

    def _fail_preparing(self, why: str) -> None:
        if self._preparing is not None:
            self._preparing.answer(Readiness(f"{self.instance} was lost: {why}", retry=True))

    async def _keep_renewing(self) -> None:
        while True:
            self.renew()
            await asyncio.sleep(self._timings.renew_s)


async def _line_within(for_s: float | None, reader: LineReader) -> bytes:
    """Read a line. Raises `TimeoutError` if none comes for so many seconds (None: no limit)."""
    try:
        async with asyncio.timeout(for_s):
            return await reader.readline()
    except TimeoutError:
        silent = f"the agent has not answered for {for_s:.0f}s"
        raise TimeoutError(f"{silent}: it is stopped, hangs, or cannot be reached") from None
