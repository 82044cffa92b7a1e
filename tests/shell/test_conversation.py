"""A conversation with an agent over connections that break: what is handed on, acknowledged and
said again.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent.protocol import (
    VERSION,
    Ack,
    Alive,
    Fact,
    Grow,
    Hello,
    Refused,
    Renew,
    Started,
    Stop,
    Welcome,
)
from seerd.agent.talk import AGENT
from seerd.agent.wire import decode, encode
from seerd.backends.base import Connection, Span
from seerd.clock import RunClock, wall
from seerd.core.commands import AnyCommand, GrowTrial, StopTrial
from seerd.core.events import EventsMissing, InstanceLost, TrialStarted
from seerd.errors import ProviderError
from seerd.shell.agents import Conversation
from seerd.shell.daemon import Tasks
from seerd.shell.losses import Losses
from seerd.shell.policy import PolicyProcess
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.timings import TIMINGS, DaemonTimings
from seerd.shell.translate import InstanceOrders
from seerd.stores.directory import DirectoryStore
from tests.conftest import small_facts
from tests.shell.place import JOB, Core

STOPPING = StopTrial(
    id="7.0", trial="t1", attempt=1, instance="i-1", checkpoint=True, grace_s=4.0, why="paused"
)
STOP = Stop("7.0", "t1", 1, checkpoint=True, grace_s=4.0)
GROWING = GrowTrial(id="6.0", trial="t2", attempt=1, instance="i-1", gpus=(0, 1))
AHEAD_S = 1000.0
"""How far the agent's time is ahead of ours."""


def fact(seq: int) -> Fact:
    return Started(seq, time.time(), f"{seq}.0", "t1", seq, 7)


@dataclass
class Agent:
    """Sends all facts that it has on every connection, whatever the daemon says that it knows;
    `heard`: by connection.

    speaks   this version of the protocol
    program  version of the agent itself
    answers  renewals, until it is `stopped`
    acked    the last fact that was acknowledged to it before
    ended    the grace periods of those in its place that were ended
    """

    facts: list[Fact]
    speaks: int = VERSION
    program: str = AGENT
    heard: list[list[Any]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    answers: bool = False
    stopped: bool = False
    acked: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.heard.append([])
        while line := await reader.readline():
            message = decode(line)
            self.heard[-1].append(message)
            if self.stopped:
                continue
            if isinstance(message, Renew) and self.answers:
                writer.write(encode(Alive()))
            if isinstance(message, Hello) and message.version != self.speaks:
                writer.write(
                    encode(Refused(0, time.time(), "", f"this agent speaks version {self.speaks}"))
                )
                break
            if isinstance(message, Hello):
                now = wall() + AHEAD_S
                last, known = len(self.facts), (self.answers, self.acked)
                about = (VERSION, self.program, 4, last, now, [], "boot", now, *known)
                writer.write(encode(Welcome(*about)))
                writer.write(b"".join(map(encode, self.facts)))
        writer.close()


@dataclass
class Ways:
    """To this agent, which listens here."""

    agent: Agent
    path: Path
    becomes: int

    async def connect(self, instance: str) -> Connection:
        return await asyncio.open_unix_connection(str(self.path))

    def journal(self, instance: str) -> None: ...

    async def terminate(self, name: str, spare_s: float) -> Span:
        return Span()

    async def end_agent(self, instance: str, grace_s: float) -> None:
        self.agent.ended.append(grace_s)
        self.agent.speaks = self.becomes


@dataclass
class Place:
    agent: Agent
    conversation: Conversation
    core: Core

    def told(self, kind: type[Stop | Renew | Grow], connection: int) -> list[Any]:
        """The orders of this kind, without their moments."""
        orders = [order for order in self.agent.heard[connection] if isinstance(order, kind)]
        return [o if isinstance(o, Grow) else replace(o, at=None) for o in orders]

    @property
    def handed_on(self) -> list[int]:
        return [event.fact for event in self.core.events if isinstance(event, TrialStarted)]

    @property
    def lost(self) -> list[InstanceLost]:
        return [event for event in self.core.events if isinstance(event, InstanceLost)]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while True:
                if true():
                    return
                await asyncio.sleep(0.005)


def play(
    scenario: Callable[[Place], Awaitable[None]],
    *facts: Fact,
    seen: int = 0,
    pending: tuple[AnyCommand, ...] = (),
    speaks: int = VERSION,
    program: str = AGENT,
    becomes: int = VERSION,
    answers: bool = False,
    acked: int = 0,
    timings: DaemonTimings = TIMINGS,
) -> None:
    """`speaks`: the agent's version of the protocol, and what it `becomes` when it is replaced;
    `answers`: whether it answers renewals.
    """

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            agent = Agent(list(facts), speaks, program, answers=answers, acked=acked)
            server = await asyncio.start_unix_server(agent.serve, str(path))
            core = Core(RunClock(time.time()), seen, list(pending))
            ways: Any = Ways(agent, path, becomes)
            store, policy = DirectoryStore(Path(folder)), PolicyProcess(small_facts().problem)
            environment = RunEnvironment(
                *(ways, store, policy, JOB, "r1", "accuracy", Path(folder)), timings=timings
            )
            try:
                async with Tasks() as tasks:
                    orders, losses = (
                        InstanceOrders("i-1", environment, core),
                        Losses(environment, core, tasks),
                    )
                    conversation = Conversation(orders, losses, tasks)
                    with contextlib.suppress(ProviderError):
                        await conversation.start()
                    await scenario(Place(agent, conversation, core))
            finally:
                for writer in agent.writers:
                    writer.close()
                server.close()

    asyncio.run(run())


def test_a_fact_that_is_sent_again_is_handed_on_once() -> None:
    async def scenario(place: Place) -> None:
        assert place.handed_on == [2, 3]
        place.agent.facts.append(fact(4))
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.handed_on) >= 3)
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 3 and len(place.agent.heard[2]) >= 1)
        assert place.handed_on == [2, 3, 4]

    play(scenario, fact(1), fact(2), fact(3), seen=1)


def test_an_agent_that_knows_more_than_the_journal_says_so_once() -> None:
    """Before its facts; a connection that breaks may leave some of them unheard."""

    async def scenario(place: Place) -> None:
        place.agent.acked = 9
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 2 and len(place.agent.heard[1]) >= 1)
        first, *others = place.core.events
        assert (first.instance, first.acked) == ("i-1", 2)
        assert not any(isinstance(event, EventsMissing) for event in others)

    play(scenario, fact(1), fact(2), seen=1, acked=2)
    asked = []

    async def nothing(place: Place) -> None:
        asked.extend(place.core.events)

    play(nothing, fact(1), fact(2), seen=1, acked=1)
    assert [type(event) for event in asked] == [TrialStarted]


def test_on_each_connection_the_agent_is_told_what_was_heard() -> None:
    async def scenario(place: Place) -> None:
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 2 and len(place.agent.heard[1]) >= 1)
        assert [said[0] for said in place.agent.heard] == [
            Hello(VERSION, "r1", 1, []),
            Hello(VERSION, "r1", 3, []),
        ]

    play(scenario, fact(1), fact(2), fact(3), seen=1)


def test_what_was_heard_is_not_acknowledged_before_it_is_kept() -> None:
    async def scenario(place: Place) -> None:
        assert place.handed_on == [1, 2, 3]
        place.conversation.commit(2)
        await place.until(lambda: any(isinstance(message, Ack) for message in place.agent.heard[0]))
        assert [message for message in place.agent.heard[0] if isinstance(message, Ack)] == [Ack(2)]

    play(scenario, fact(1), fact(2), fact(3))


def test_orders_without_an_outcome_are_said_on_every_connection() -> None:
    async def scenario(place: Place) -> None:
        await place.until(lambda: STOP in place.told(Stop, 0))
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 2 and STOP in place.told(Stop, 1))

    play(scenario, fact(1), pending=(STOPPING,))


def test_an_agent_is_told_on_every_connection_how_its_attempts_have_grown() -> None:
    grow = Grow("6.0", "t2", 1, [0, 1])

    async def scenario(place: Place) -> None:
        await place.until(lambda: place.told(Grow, 0) == [grow])
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 2 and place.told(Grow, 1) == [grow])

    play(scenario, fact(1), pending=(GROWING,))


def test_an_agent_from_before_attempts_could_grow_is_not_told() -> None:
    """It would end the connection."""

    async def scenario(place: Place) -> None:
        place.conversation.order(GROWING)
        place.conversation.order(STOPPING)
        await place.until(lambda: len(place.told(Stop, 0)) == 2)
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 2 and STOP in place.told(Stop, 1))
        assert [place.told(Grow, connection) for connection in (0, 1)] == [[], []]

    play(scenario, fact(1), pending=(GROWING, STOPPING), program="1")


def test_orders_carry_the_moment_from_which_their_seconds_count_in_the_agents_time() -> None:
    """One that is said again, or late, gives no new period."""

    async def scenario(place: Place) -> None:
        await place.until(lambda: bool(place.told(Renew, 0) and place.told(Stop, 0)))
        (stop, *_), (renewed, *_) = (
            [told for told in place.agent.heard[0] if isinstance(told, kind)]
            for kind in (Stop, Renew)
        )
        began = place.core.clock.origin + AHEAD_S
        assert stop.at == pytest.approx(began + place.core.state.trials["t1"].asked_s, abs=0.2)
        assert began <= renewed.at <= wall() + AHEAD_S
        place.core.clock.origin -= 60.0
        place.agent.writers[-1].close()
        await place.until(lambda: len(place.agent.heard) == 2 and bool(place.told(Stop, 1)))
        again = next(told for told in place.agent.heard[1] if isinstance(told, Stop))
        assert again.at == pytest.approx(stop.at - 60.0, abs=0.2)

    play(scenario, fact(1), pending=(STOPPING,))


def test_an_agent_of_another_version_is_replaced_and_what_it_had_kept_is_told() -> None:
    async def scenario(place: Place) -> None:
        assert place.agent.ended == [4.0]
        assert place.handed_on == [2, 3]
        assert place.lost == []

    play(scenario, fact(1), fact(2), fact(3), seen=1, speaks=VERSION + 1)


def test_an_agent_that_is_of_another_version_again_is_given_up() -> None:
    async def scenario(place: Place) -> None:
        assert place.agent.ended == [4.0]
        assert place.handed_on == []
        assert len(place.lost) == 1

    play(scenario, fact(1), speaks=VERSION + 1, becomes=VERSION + 2)


def test_an_agent_that_has_lost_what_it_had_told_is_lost() -> None:
    """Its next facts would have the numbers of those, and be taken for them."""

    async def scenario(place: Place) -> None:
        await place.conversation.start()
        await place.until(lambda: place.handed_on == [1, 2])
        place.agent.facts.pop()
        place.agent.writers[-1].close()
        await place.until(lambda: bool(place.lost))
        assert "has lost facts that it had reported" in place.lost[0].why

    play(scenario, fact(1), fact(2))


def test_facts_with_a_gap_end_the_connection_and_are_not_handed_on() -> None:
    async def scenario(place: Place) -> None:
        await place.conversation.start()
        await place.until(lambda: place.handed_on == [1])
        place.agent.writers[-1].write(encode(fact(3)))
        await place.until(lambda: len(place.agent.heard) > 1)
        assert place.handed_on == [1]

    play(scenario, fact(1))


def test_an_agent_that_answers_renewals_and_then_is_silent_is_lost() -> None:
    """It is stopped, or hangs: its connection stays open, and so is its next one."""
    quick = DaemonTimings(renew_s=0.05, silent_s=0.5, answer_s=0.3, give_up_s=0.5)

    async def scenario(place: Place) -> None:
        await place.until(lambda: len(place.told(Renew, 0)) > 20)
        assert len(place.agent.heard) == 1, "one that answers is left alone"
        place.agent.stopped = True
        await place.until(lambda: bool(place.lost))
        assert len(place.agent.heard) > 1
        assert "the agent has not answered for" in place.lost[0].why

    play(scenario, fact(1), answers=True, timings=quick)
