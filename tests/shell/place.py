"""What tests of the daemon share: a run whose daemon, journal and conversations are the real ones,
and a world of one instance around it.

Its agent is a script of what to answer, over a real socket; a trigger in the journal's database
makes SQLite refuse to write what a test names.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seerd.agent.protocol import (
    VERSION,
    Ack,
    Checkpointed,
    Exited,
    Fact,
    Hello,
    Job,
    Prepare,
    Prepared,
    Reported,
    Shutdown,
    Start,
    Started,
    Stop,
    Training,
    Welcome,
)
from seerd.agent.wire import decode, encode
from seerd.backends.base import Adopted, Connection, Launched, Leftovers, Loss, Span
from seerd.clock import RunClock, unlimited
from seerd.core.asking import outlined
from seerd.core.commands import AnyCommand
from seerd.core.events import AgentFact, AnyEvent, RunFacts, RunStarted
from seerd.core.state import State, new_state
from seerd.runs.reading import replay
from seerd.shell.collecting import Collector
from seerd.shell.core import EventQueue
from seerd.shell.daemon import Daemon
from seerd.shell.journal import Entry, Journal
from seerd.shell.policy import PolicyProcess
from seerd.shell.run_environment import RunEnvironment, Running
from seerd.shell.timings import TIMINGS, DaemonTimings
from seerd.stores.directory import DirectoryStore

JOB = Job(
    "source",
    "train.py",
    [],
    "python",
    "python3",
    {},
    [],
    "store",
    "accuracy",
    "max",
    [1, 2],
    1,
    10.0,
)
REFUSAL = (
    "CREATE TRIGGER full BEFORE INSERT ON events WHEN instr(CAST(NEW.event AS TEXT), "
    "'\"{}\"') BEGIN SELECT RAISE(ABORT, 'disk full'); END"
)


@dataclass
class Agent:
    """Starts what it is told to, and tells of `saves` reports and checkpoints of each attempt;
    `heard`: all that was said to it, in order.
    """

    path: Path
    saves: int = 0
    facts: list[Fact] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    ended: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionResetError):  # of a daemon that ended with facts unread
            while line := await reader.readline():
                message = decode(line)
                self.heard.append(message)
                self._obey(message, writer)
                if isinstance(message, Shutdown):
                    break
        self.ended += 1
        writer.close()

    def _obey(self, message: Any, writer: asyncio.StreamWriter) -> None:
        at = time.time()
        if isinstance(message, Hello):
            writer.write(encode(Welcome(VERSION, "1", 8, len(self.facts), at, [], "boot")))
            writer.write(b"".join(encode(fact) for fact in self.facts[message.seen :]))
        elif isinstance(message, Prepare | Start | Stop) and message.id not in self.taken:
            self.taken.add(message.id)
            self._carry_out(message, writer, at)

    def _carry_out(self, message: Any, writer: asyncio.StreamWriter, at: float) -> None:
        if isinstance(message, Prepare):
            self._tell(writer, Prepared, at, message.id)
        elif isinstance(message, Start):
            trial = message.trial, message.attempt
            self._tell(writer, Started, at, message.id, *trial, 7)
            self._tell(writer, Training, at, *trial, 0)
            for epoch in range(1, self.saves + 1):
                self._tell(writer, Reported, at, *trial, epoch, {"accuracy": 0.5}, 1.0)
                self._tell(
                    writer,
                    Checkpointed,
                    at,
                    *trial,
                    f"{epoch:06d}",
                    epoch,
                    {"accuracy": 0.5},
                    "0" * 64,
                    1,
                    0.1,
                )
        else:
            self._tell(writer, Exited, at, message.trial, message.attempt, "asked", 0)

    def _tell(self, writer: asyncio.StreamWriter, kind: Any, *values: Any) -> None:
        self.facts.append(kind(len(self.facts) + 1, *values))
        writer.write(encode(self.facts[-1]))

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    @property
    def acknowledged(self) -> int:
        """The last fact that the daemon says it has."""
        return max((ack.seen for ack in self.of(Ack)), default=0)


class OfAnyName(dict[str, SimpleNamespace]):
    """Trials, made when they are first asked for."""

    def __init__(self, make: Callable[[str], SimpleNamespace]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> SimpleNamespace:
        return self.setdefault(name, self._make(name))


@dataclass
class Core:
    """What conversations ask of the daemon: a `seerd.shell.core.Core`."""

    clock: RunClock
    seen: int = 0
    commands: list[AnyCommand] = field(default_factory=list)
    attempts: list[Running] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> SimpleNamespace:
        """Trials, all alike, and what was decided about requests."""
        checkpoints = [
            SimpleNamespace(name="other", reports=9),
            SimpleNamespace(name="0001-000002", reports=3),
        ]
        config = {"lr": 0.1}
        known = {"asked_s": 0.25, "seed": 7, "config": config, "checkpoints": checkpoints}
        trials = OfAnyName(lambda name: SimpleNamespace(id=name, **known))
        requests = SimpleNamespace(answered=self.answers)
        plan, facts = SimpleNamespace(question=None), SimpleNamespace(parts=1)
        return SimpleNamespace(facts=facts, trials=trials, requests=requests, plan=plan)

    @property
    def queue(self) -> EventQueue:
        return EventQueue()

    def emit(self, event: AnyEvent) -> None:
        if isinstance(event, AgentFact):
            self.seen = event.fact
        self.events.append(event)

    def pending(self, instance: str) -> list[AnyCommand]:
        return self.commands

    def running(self, instance: str) -> list[Running]:
        return self.attempts

    def holds(self, instance: str) -> list[str]:
        return [f"{one.trial}/{one.attempt}" for one in self.attempts]

    def known(self, instance: str) -> tuple[int, str]:
        return self.seen, ""

    def ends_in(self) -> float:
        return 3600.0

    def lease(self) -> tuple[float, float, float]:
        return 60.0, 4.0, 120.0

    def spare(self) -> float:
        return 60.0


@dataclass
class Provider:
    """One instance of eight GPUs, there when `gate` is open."""

    agent: Agent
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    adopted: list[tuple[list[str], list[str]]] = field(default_factory=list)

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None: ...

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        self.adopted.append((list(known), list(tokens)))
        return list(known), []

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        self.asked.append(token)
        await self.gate.wait()
        return Launched("i-1", 8, time.time())

    async def connect(self, instance: str) -> Connection:
        return await asyncio.open_unix_connection(str(self.agent.path))

    def journal(self, instance: str) -> None: ...

    def address(self, instance: str) -> str:
        return "10.0.0.1"

    async def terminate(self, name: str, spare_s: float = 0.0) -> Span:
        return Span()

    async def loss(self) -> Loss:
        return await asyncio.get_running_loop().create_future()

    async def leftovers(self) -> Leftovers:
        return Leftovers()

    async def close(self) -> None: ...


class Store(DirectoryStore):
    """Notes what is to be kept. `ahead_s`: how far its clock is ahead; None: it has none."""

    kept: list[tuple[str, list[str]]]
    ahead_s: float | None

    async def time(self) -> float | None:
        return None if self.ahead_s is None else time.time() + self.ahead_s

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        self.kept.append((trial, list(names)))


@dataclass
class Place:
    """A run's journal, and the world around it.

    shown   the events that people were shown
    policy  see `seerd.shell.policy_main.Opening.plan`
    uploads, collector, timings  see `RunEnvironment`
    steady  whether a run that is taken up is on the same boot
    """

    facts: RunFacts
    journal: Path
    agent: Agent
    provider: Provider
    store: Store
    shown: list[AnyEvent] = field(default_factory=list)
    first: bool = True
    policy: str = ""
    uploads: Callable[[], str] | None = None
    steady: bool = True
    collector: Collector | None = None
    timings: DaemonTimings = TIMINGS

    async def run(self, until: Callable[[Daemon], bool] = lambda daemon: False) -> None:
        """A daemon, the first one or a later one, until something is so; then it is killed. Raises
        what it raises.
        """
        with Journal.open(self.journal) as journal:
            state = new_state(self.facts) if self.first else replay(journal)
            policy = PolicyProcess(self.facts.problem, plan=self.policy)
            best = self.journal.parent / "best"
            environment = RunEnvironment(
                self.provider, self.store, policy, JOB, "small", "accuracy", best
            )
            more = {"uploads": self.uploads, "collector": self.collector, "timings": self.timings}
            environment = replace(environment, **more)
            daemon = Daemon(state, journal, environment, self._watch)
            work = (
                daemon.begin(RunStarted(at=daemon.clock.now(), facts=self.facts))
                if self.first
                else daemon.resume(steady=self.steady)
            )
            self.first = False
            running = asyncio.ensure_future(work)
            await holds(lambda: running.done() or until(daemon))
            running.cancel()
            await asyncio.wait({running})
            await holds(lambda: self.agent.ended == len(self.agent.writers))
            if not running.cancelled():
                running.result()

    def _watch(self, state: State, now: float, entries: list[Entry]) -> None:
        self.shown += [entry.event for entry in entries]

    def refuse(self, kind: str) -> None:
        """From now on the journal takes no event of this kind."""
        self._say(REFUSAL.format(kind))

    def mend(self) -> None:
        """It takes all again."""
        self._say("DROP TRIGGER full")

    def _say(self, sql: str) -> None:
        connection = sqlite3.connect(self.journal)
        connection.execute(sql)
        connection.commit()
        connection.close()

    def events(self) -> list[AnyEvent]:
        with Journal.open(self.journal, read_only=True) as journal:
            return [entry.event for entry in journal.entries()]


async def holds(true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(20):
        while True:
            if true():
                return
            await asyncio.sleep(0.005)


def play(
    facts: RunFacts, folder: Path, scenario: Callable[[Place], Awaitable[None]], *, saves: int = 0
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as short:
            agent = Agent(Path(short) / "s", saves)
            server = await asyncio.start_unix_server(agent.serve, str(agent.path))
            Journal.create(folder / "journal.db", time.time()).close()
            provider, store = Provider(agent), Store(folder / "store")
            object.__setattr__(store, "kept", [])
            object.__setattr__(store, "ahead_s", 0.0)
            provider.gate.set()
            try:
                await scenario(
                    Place(outlined(facts), folder / "journal.db", agent, provider, store)
                )
            finally:
                for writer in agent.writers:
                    writer.close()
                server.close()

    asyncio.run(run())
