"""What agents are told and heard: against an agent that is a script of what to answer, over a real
socket.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seerd.agent.protocol import (
    VERSION,
    Ask,
    Download,
    Expected,
    Grant,
    Hello,
    Job,
    Parts,
    Prepare,
    Prepared,
    Slot,
    Start,
    Stop,
    Welcome,
)
from seerd.agent.wire import decode, encode
from seerd.backends.base import Connection, Launched, Span
from seerd.clock import RunClock
from seerd.core.commands import StartTrial, StopTrial
from seerd.core.events import InstanceLost
from seerd.errors import ProviderError, StoreError
from seerd.shell.agents import Readiness
from seerd.shell.daemon import Tasks
from seerd.shell.losses import Losses
from seerd.shell.policy import PolicyProcess
from seerd.shell.run_environment import RunEnvironment, Running
from seerd.shell.sessions import Sessions
from seerd.shell.timings import TIMINGS, DaemonTimings
from seerd.stores.base import slot_name
from seerd.stores.directory import DirectoryStore
from tests.conftest import small_facts
from tests.shell.place import Core

JOB = Job(
    "source", "train.py", [], "python", "python3", {}, [], "store", "accuracy", "max", [1], 1, 10.0
)
HEALTHY = Expected(gpus=0, free_bytes=0, torch=False)
START = StartTrial(
    id="5.0",
    trial="t1",
    attempt=1,
    instance="i-1",
    gpus=(0,),
    config={},
    seed=1,
    checkpoints=(),
    why="first",
)
STOP = StopTrial(
    id="6.0", trial="t1", attempt=1, instance="i-1", checkpoint=True, grace_s=1.0, why="paused"
)


@dataclass
class Agent:
    """`ahead_s`: of its clock; `boots`: what it says its machine's boot is, one for each
    connection; `told`: all but renewals.
    """

    path: Path
    ahead_s: float = 0.0
    boots: list[str] = field(default_factory=lambda: ["one"])
    told: list[Any] = field(default_factory=list)
    prepared: list[Prepare] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        seq = 0
        while line := await reader.readline():
            message = decode(line)
            if isinstance(message, Hello):
                boot = self.boots.pop(0) if len(self.boots) > 1 else self.boots[0]
                now, seq = time.time() + self.ahead_s, message.seen
                writer.write(encode(Welcome(VERSION, "1", 4, seq, now, [], boot)))
            elif isinstance(message, Prepare):
                self.prepared.append(message)
                seq += 1
                writer.write(encode(Prepared(seq, time.time(), message.id)))
            elif message.kind not in ("renew", "ack"):
                self.told.append(message)
        writer.close()


class SlowPresigning(DirectoryStore):
    """Signing waits until it is `let`."""

    let: asyncio.Event

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        await self.let.wait()
        return Grant(trial, attempt, [], [])


class Expiring(DirectoryStore):
    """Credentials have expired, until they are `renewed`. `signed`: each attempt, and the number of
    the checkpoint from which on URLs were made for it.
    """

    renewed = False
    signed: list[tuple[str, int, int]]

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        if not self.renewed:
            raise StoreError("the credentials have expired")
        self.signed.append((trial, attempt, first))
        return Grant(trial, attempt, [], [])


class Reach:
    """How instances are reached."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self, instance: str) -> Connection:
        return await asyncio.open_unix_connection(str(self._path))

    def journal(self, instance: str) -> None: ...

    def address(self, instance: str) -> str:
        return "10.0.0.1"

    async def terminate(self, name: str, spare_s: float) -> Span:
        return Span()


@dataclass
class Place:
    sessions: Sessions
    agent: Agent
    core: Core

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while True:
                if true():
                    return
                await asyncio.sleep(0.005)


def play(
    scenario: Callable[[Place], Awaitable[None]],
    store: DirectoryStore,
    timings: DaemonTimings = TIMINGS,
    **agent: Any,
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            spoken = Agent(Path(folder) / "s", **agent)
            server = await asyncio.start_unix_server(spoken.serve, str(spoken.path))
            core = Core(RunClock(time.time()))
            policy = PolicyProcess(small_facts().problem)
            reach: Any = Reach(spoken.path)
            environment = RunEnvironment(
                *(reach, store, policy, JOB, "r1", "accuracy", Path(folder)),
                expected=HEALTHY,
                timings=timings,
            )
            try:
                async with Tasks() as tasks:
                    sessions = Sessions(environment, core, Losses(environment, core, tasks), tasks)
                    await scenario(Place(sessions, spoken, core))
            finally:
                for writer in spoken.writers:
                    writer.close()
                server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("ahead_s", "good"), [(0.0, True), (100.0, True), (500.0, False), (-500.0, False)]
)
def test_a_machine_whose_clock_is_wrong_is_no_good_and_another_may_be(
    ahead_s: float, good: bool, tmp_path: Path
) -> None:
    async def scenario(place: Place) -> None:
        outcome = await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        assert (outcome == Readiness()) is good
        assert good or ("the clock of i-1 is off by" in outcome.why and outcome.retry)

    play(scenario, DirectoryStore(tmp_path), ahead_s=ahead_s)


def test_what_is_ordered_later_is_said_later_however_long_signing_takes(tmp_path: Path) -> None:
    """An agent passes over the stop of an attempt that it does not know: said before its start, the
    attempt would run for ever.
    """
    store = SlowPresigning(tmp_path)

    async def scenario(place: Place) -> None:
        store_let = asyncio.Event()
        object.__setattr__(store, "let", store_let)
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        place.sessions.order(START)
        place.sessions.order(STOP)
        await asyncio.sleep(0)
        assert place.agent.told == []
        store_let.set()
        await place.until(lambda: len(place.agent.told) == 3)
        assert [type(message) for message in place.agent.told] == [Grant, Start, Stop]

    play(scenario, store)


def test_a_stop_waits_for_no_other_trial_s_urls(tmp_path: Path) -> None:
    """While nothing can be signed, since credentials have expired: not on this connection, and not
    on the next one.
    """
    store = SlowPresigning(tmp_path)
    other = msgspec.structs.replace(START, id="3.0", trial="t0002")

    async def scenario(place: Place) -> None:
        object.__setattr__(store, "let", asyncio.Event())
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        place.sessions.order(other)
        place.sessions.order(STOP)
        assert place.core.commands == []
        await place.until(lambda: [type(one) for one in place.agent.told] == [Stop])
        place.core.commands += [STOP, other]
        place.agent.writers[-1].close()
        await place.until(lambda: [type(one) for one in place.agent.told] == [Stop, Stop])

    play(scenario, store)


def test_a_start_that_waits_for_urls_waits_no_longer_once_its_trial_is_to_stop(
    tmp_path: Path,
) -> None:
    """Its agent hears of both, and says that it has ended."""

    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        place.core.commands += [START]
        place.sessions.order(START)
        await asyncio.sleep(0)
        assert place.agent.told == []
        place.core.commands += [STOP]
        place.sessions.order(STOP)
        await place.until(lambda: [type(one) for one in place.agent.told] == [Start, Stop])

    play(scenario, Expiring(tmp_path))


def test_urls_that_were_waited_for_are_for_what_is_saved_next_by_then(tmp_path: Path) -> None:
    """An agent uses those that came last, however many were asked for meanwhile; and nobody waits
    for those of an attempt that has ended.
    """
    store = Expiring(tmp_path)
    object.__setattr__(store, "signed", [])

    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        orders = place.sessions._conversations["i-1"].orders
        first, later, gone = (Running("t1", 1, 1), Running("t1", 1, 4), Running("t2", 1, 0))
        place.core.attempts = [first, gone]
        waiting = [asyncio.create_task(orders.renewal(one)) for one in (later, first, gone)]
        await asyncio.sleep(0)
        place.core.attempts = [replace(first, saved=3)]
        object.__setattr__(store, "renewed", True)
        told = await asyncio.gather(*waiting)
        assert [len(one) for one in told] == [1, 1, 0]
        assert store.signed == [("t1", 1, 5), ("t1", 1, 4)]

    play(scenario, store)


def test_a_machine_that_was_rebooted_is_lost_at_once(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        assert place.sessions.boot("i-1") == "one"
        place.agent.writers[-1].close()
        await place.until(lambda: bool(place.core.events))
        (lost,) = place.core.events
        assert isinstance(lost, InstanceLost)
        assert lost.instance == "i-1"
        assert "has been rebooted" in lost.why

    play(scenario, DirectoryStore(tmp_path), boots=["one", "two"])


@pytest.mark.parametrize("command", ["7.0", "7.0.3125"])
def test_each_node_of_an_attempt_is_told_its_own_part(tmp_path: Path, command: str) -> None:
    async def scenario(place: Place) -> None:
        for number, name in enumerate(("i-1", "i-2"), 1):
            await place.sessions.prepare(Launched(name, 4, time.time()), f"{number}.0")
        order = msgspec.structs.replace(START, id=command, beside=(("i-2", (0, 1)),))
        place.sessions.order(order)
        await place.until(lambda: len(place.agent.told) == 2)
        nodes = sorted((message.node for message in place.agent.told), key=lambda node: node.rank)
        assert [(node.rank, node.count, node.gpus) for node in nodes] == [(0, 2, 3), (1, 2, 3)]
        assert len({node.endpoint for node in nodes}) == 1

    play(scenario, DirectoryStore(tmp_path))


def test_an_instance_is_expected_to_have_the_gpus_that_it_was_launched_with(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 7, time.time()), "1.0")
        (prepare,) = place.agent.prepared
        assert prepare.expected == replace(HEALTHY, gpus=7, torch=True)

    play(scenario, DirectoryStore(tmp_path))


@dataclass
class Sent:
    """Notes what is sent, and how often the agent was made ready by then; `fails` first, if it is
    to.
    """

    place: Place
    log: list[tuple[str, str, int]] = field(default_factory=list)
    fails: Callable[[str], Awaitable[None]] | None = None

    async def send(self, instance: str) -> None:
        await self._note(instance, "")

    def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
        return partial(self._note, more=job)

    async def _note(self, instance: str, more: str) -> None:
        if self.fails is not None:
            await self.fails(instance)
        self.log.append((instance, more, len(self.place.agent.prepared)))


def sends(place: Place, fails: Callable[[str], Awaitable[None]] | None = None) -> Sent:
    sent = Sent(place, fails=fails)
    object.__setattr__(place.sessions._environment, "sources", sent)
    return sent


MORE = replace(JOB, id="more")


def test_sources_come_before_what_is_made_ready_with_them(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        sent = sends(place)
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        assert await place.sessions.prepare_for(MORE, ["i-1", "gone"], "job-1") == ""
        assert sent.log == [("i-1", "", 0), ("i-1", "more", 1)]
        assert [one.id for one in place.agent.prepared] == ["1.0", "job-1"]
        assert [job.id for job in place.agent.prepared[1].jobs] == ["more"]
        assert place.agent.prepared[1].expected == Expected(0, 0, torch=True), "no GPU is touched"

    play(scenario, DirectoryStore(tmp_path))


@pytest.mark.parametrize("goes", [False, True])
def test_a_source_that_cannot_be_sent_is_told_unless_its_instance_goes_meanwhile(
    goes: bool, tmp_path: Path
) -> None:
    async def scenario(place: Place) -> None:
        async def fails(instance: str) -> None:
            if goes:
                await place.sessions.drop(instance, "it is given back")
            raise ProviderError(f"{instance} could not be reached")

        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        sends(place, fails)
        why = await place.sessions.prepare_for(MORE, ["i-1"], "job-1")
        assert why == ("" if goes else "i-1 could not be reached")
        assert goes or await place.sessions.prepare(Launched("i-2", 4, time.time()), "2.0") == (
            Readiness("i-2 could not be reached", retry=True)
        )

    play(scenario, DirectoryStore(tmp_path))


def test_who_gives_an_instance_back_waits_for_nothing_that_is_sent_there(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        begun = asyncio.Event()

        async def never(instance: str) -> None:
            begun.set()
            await asyncio.Event().wait()

        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        sends(place, never)
        sending = asyncio.create_task(place.sessions.prepare_for(MORE, ["i-1"], "job-1"))
        await begun.wait()
        await place.sessions.drop("i-1", "it is given back")
        assert await sending == ""

    play(scenario, DirectoryStore(tmp_path))


def test_data_that_cannot_be_listed_makes_no_machine_ready_and_ends_no_run(tmp_path: Path) -> None:
    """For one more job, only its own is listed."""
    asked: list[str | None] = []

    async def scenario(place: Place) -> None:
        async def listed(job: str | None) -> list[Download]:
            asked.append(job)
            raise StoreError("there is no data at s3://b/corpus")

        object.__setattr__(place.sessions._environment, "data", listed)
        why = "there is no data at s3://b/corpus"
        readiness = await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        assert readiness == Readiness(why, retry=True)
        assert await place.sessions.prepare_for(MORE, ["i-1"], "job-1") == why
        assert asked == [None, "more"]
        assert place.agent.prepared == []

    play(scenario, DirectoryStore(tmp_path))


def test_attempts_that_run_get_new_urls_before_theirs_end(tmp_path: Path) -> None:
    store = Expiring(tmp_path)
    object.__setattr__(store, "signed", [])
    object.__setattr__(store, "renewed", True)

    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        place.core.attempts = [Running("t1", 1, 4)]
        granting = asyncio.create_task(place.sessions.keep_granting())
        await place.until(lambda: [type(one) for one in place.agent.told[:2]] == [Grant, Grant])
        granting.cancel()
        assert store.signed[:2] == [("t1", 1, 5), ("t1", 1, 5)]

    play(scenario, store, DaemonTimings(renew_urls_s=0.05))


class InParts(DirectoryStore):
    """Bytes are uploaded in parts."""

    async def parts(self, ask: Ask) -> Parts:
        return Parts(ask.trial, ask.attempt, ask.name, 1, ["url"], "whole", "none")


class Granting(DirectoryStore):
    """One URL is made for the next checkpoint."""

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        return Grant(trial, attempt, [Slot(slot_name(attempt, first), "put", "manifest")], [])


def test_an_agent_whose_urls_are_refused_gets_others_at_once(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        place.core.attempts = [Running("t1", 2, 3)]
        orders = place.sessions._conversations["i-1"].orders
        (answer,) = await orders.parts(Ask("t1", 2, slot_name(2, 4), 0))
        assert answer == Grant("t1", 2, [Slot(slot_name(2, 4), "put", "manifest")], [])
        assert await orders.parts(Ask("t1", 1, slot_name(1, 4), 0)) == []

    play(scenario, Granting(tmp_path))


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (Ask("t1", 2, slot_name(2, 1), 9), 1),
        (Ask("t1", 1, slot_name(1, 1), 9), 0),
        (Ask("t2", 2, slot_name(2, 1), 9), 0),
        (Ask("t1", 2, slot_name(3, 1), 9), 0),
        (Ask("t1", 2, "../t2/0002-000001", 9), 0),
    ],
)
def test_urls_are_for_checkpoints_of_attempts_that_run_there_whatever_is_asked_for(
    tmp_path: Path, asked: Ask, given: int
) -> None:
    async def scenario(place: Place) -> None:
        await place.sessions.prepare(Launched("i-1", 4, time.time()), "1.0")
        place.core.attempts = [Running("t1", 2, 0)]
        (answer,) = await place.sessions._conversations["i-1"].orders.parts(asked)
        assert isinstance(answer, Parts)
        assert len(answer.urls) == given

    play(scenario, InParts(tmp_path))
