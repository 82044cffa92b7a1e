"""The daemon itself, whole, with two instances over real sockets: the agent of one keeps to the
protocol, that of the other does not.

Whatever the second one sends, the run ends as it should, with the model of the first, and the
second is at most given up.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from seerd.agent.protocol import (
    VERSION,
    Checkpointed,
    Exited,
    Hello,
    Job,
    Message,
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
from seerd.clock import unlimited
from seerd.core.asking import outlined
from seerd.core.events import InstanceLost, InstanceReady, RunFacts, RunStarted, TrialExited
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State, new_state
from seerd.errors import LaunchError
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Parameter, Space
from seerd.runs.reading import replay
from seerd.shell.daemon import Daemon
from seerd.shell.home import RunFolder
from seerd.shell.journal import Journal
from seerd.shell.policy import PolicyProcess
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.timings import DaemonTimings
from seerd.stores.directory import DirectoryStore
from seerd.telling.plain import lines_to

JOB = Job(
    "source", "train.py", [], "python", "python3", {}, [], "store", "accuracy", "max", [1], 1, 10.0
)
DEADLINE_S = 60.0
IMPATIENT = DaemonTimings(give_up_s=1.5, catch_up_s=1.5, retry_s=0.05)
REPORTS = 40


@dataclass
class Peer:
    """An agent that is a script: it trains by saying so. `evil`: what it sends, besides, whenever
    an attempt begins, one on each connection; `early`: what it answers instead of a welcome, one on
    each connection until there is none left.
    """

    name: str
    store: Path
    evil: list[bytes] = field(default_factory=list)
    early: list[bytes] = field(default_factory=list)
    facts: list[bytes] = field(default_factory=list)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    writer: asyncio.StreamWriter | None = None
    last: int = 0
    shift: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                await self._hear(decode(line), writer)
        except OSError:
            pass
        finally:
            writer.close()

    async def _hear(self, message: Message, writer: asyncio.StreamWriter) -> None:
        match message:
            case Hello():
                if self.early:
                    writer.write(self.early.pop(0))
                    return
                writer.write(encode(Welcome(VERSION, "1", 1, self.last, time.time(), [], "one")))
                self.writer = writer
                writer.writelines(self.facts[message.seen :])
                if self.running and self.evil:
                    writer.write(self.evil.pop(0))
            case Prepare():
                self.tell(Prepared(0, time.time(), message.id))
            case Start():
                if self.evil:
                    said = self.evil.pop(0)
                    writer.write(said)
                    if self.shift:
                        self.facts += [
                            fact + b"\n" for fact in said.splitlines() if b'"seq"' in fact
                        ]
                        self.last += self.shift
                self.running[message.trial] = asyncio.ensure_future(self._train(message))
            case Shutdown():
                writer.close()
            case Stop() if message.trial in self.running:
                self.running.pop(message.trial).cancel()
                self._exit(message.trial, message.attempt)

    def tell(self, fact) -> None:
        self.last += 1
        self.facts.append(encode(replace(fact, seq=self.last)))
        if self.writer is not None:
            self.writer.write(self.facts[-1])

    def _exit(self, trial: str, attempt: int, cause: str = "asked") -> None:
        self.tell(Exited(0, time.time(), trial, attempt, cause, 0))

    async def _train(self, start: Start) -> None:
        trial, attempt = start.trial, start.attempt
        self.tell(Started(0, time.time(), start.id, trial, attempt, 1))
        self.tell(Training(0, time.time(), trial, attempt, 0))
        for epoch in range(1, REPORTS + 1):
            await asyncio.sleep(0.05)
            metrics = {"accuracy": epoch / 1000}
            self.tell(Reported(0, time.time(), trial, attempt, epoch, metrics, 0.1))
            name, data = f"{epoch:06d}-{epoch:08d}", b"model"
            folder = self.store / trial
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.pt").write_bytes(data)
            sha256 = hashlib.sha256(data).hexdigest()
            about = trial, attempt, name, epoch, metrics, sha256
            self.tell(Checkpointed(0, time.time(), *about, 5, 0.1))
        self.running.pop(trial)
        self._exit(trial, attempt, "finished")


@dataclass
class Machines:
    """Where the two are. `peers`: by instance; `servers` listen until the end."""

    folder: Path
    waiting: list[Peer]
    peers: dict[str, Peer] = field(default_factory=dict)
    servers: list[asyncio.Server] = field(default_factory=list)
    given_back: set[str] = field(default_factory=set)

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None: ...

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        return list(known), []

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        if not self.waiting:
            raise LaunchError("there are no more", retry=False)
        peer = self.waiting.pop(0)
        self.servers.append(
            await asyncio.start_unix_server(peer.serve, str(self.folder / peer.name))
        )
        self.peers[peer.name] = peer
        return Launched(peer.name, 1, time.time())

    async def connect(self, instance: str) -> Connection:
        return await asyncio.open_unix_connection(str(self.folder / instance), limit=1 << 21)

    def journal(self, instance: str) -> None: ...

    def address(self, instance: str) -> str:
        return "127.0.0.1"

    async def terminate(self, name: str, spare_s: float = 0.0) -> Span:
        self.given_back.add(name)
        return Span()

    async def loss(self) -> Loss:
        return await asyncio.get_running_loop().create_future()

    async def leftovers(self) -> Leftovers:
        return Leftovers()

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        for peer in self.peers.values():
            for task in peer.running.values():
                task.cancel()


@dataclass(frozen=True)
class Ended:
    state: State
    events: list
    output: str


def run(*, evil: Sequence[bytes] = (), early: Sequence[bytes] = (), shift: int = 0) -> Ended:
    """A run on two instances, one of which does this; `shift`: how many facts there are in what it
    sends.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as top:
        folder = Path(top)
        problem = Problem(
            Limits(DEADLINE_S, 1000.0, 2),
            Space((Parameter("lr", low=0.1, high=0.9),)),
            PolicyParams(name="random", p_max=1, t_min_s=1.0, trials=2),
            gpus_per_instance=1,
        )
        cluster = ClusterFacts(
            billing="held", gpus_per_instance=1, max_instances=2, terminate_s=0.0
        )
        made = RunFacts(
            run="r", name="r", metric="accuracy", mode="max", problem=problem, cluster=cluster
        )
        facts = outlined(made)
        store = folder / "store"
        machines: Any = Machines(
            folder, [Peer("good", store), Peer("evil", store, list(evil), list(early), shift=shift)]
        )
        policy = PolicyProcess(problem)
        world = RunEnvironment(
            *(machines, DirectoryStore(store), policy, JOB, "r", "accuracy", folder / "best"),
            timings=IMPATIENT,
        )
        with (
            Journal.create(folder / "journal.db", time.time()) as journal,
            (folder / "out").open("w") as out,
        ):
            daemon = Daemon(new_state(facts), journal, world, lines_to(RunFolder(folder), out))
            asyncio.run(daemon.begin(RunStarted(at=daemon.clock.now(), facts=facts)))
            state = replay(journal)
            events = [entry.event for entry in journal.entries()]
        return Ended(state, events, (folder / "out").read_text())


def check(ended: Ended) -> None:
    """The run came to its own end with every trial finished, and nobody was hurt on the other
    instance.
    """
    state = ended.state
    assert state.phase is RunPhase.OVER
    assert state.end.status == "done"
    assert state.result.published is not None
    assert [(trial.phase, trial.reports) for trial in state.trials.values()] == [
        (TrialPhase.FINISHED, REPORTS)
    ] * 2
    assert not [e for e in ended.events if isinstance(e, InstanceLost) and e.instance == "good"]
    assert not [
        e
        for e in ended.events
        if isinstance(e, TrialExited) and e.instance == "good" and e.cause != "finished"
    ]


def line(kind: str, **fields: object) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


REPORT = {
    "seq": 2,
    "at": 0.0,
    "trial": "t0001",
    "attempt": 1,
    "epoch": 1,
    "metrics": {"accuracy": 1.0},
    "unit_s": 0.1,
}
STARTED = b'{"kind":"started","seq":2,"at":0,"id":"x","trial":"t","attempt":1,"pid":%d}\n'
SAVED = {"name": "x", "sha256": "0" * 64, "size": 1, "save_s": 0.0}
BREAKERS = [
    b"x" * (11 << 20),
    b"\xff\xfe\0\n",
    b"[" * 100_000 + b"\n",
    line("ack", seen=1),
    line("reported", **{**REPORT, "seq": 10**15}),
    line("reported", **{**REPORT, "epoch": 2**70}),
    line("reported", **{**REPORT, "epoch": 2**54}),
    line("reported", **{**REPORT, "epoch": -5}),
    line("reported", **{**REPORT, "unit_s": float("nan")}),
    line("reported", **{**REPORT, "unit_s": 1e300}),
    line("reported", **{**REPORT, "at": -1e308}),
    line("checkpointed", **{**REPORT, **SAVED, "name": "../../x"}).replace(b', "unit_s": 0.1', b""),
    line("checkpointed", **{**REPORT, **SAVED, "name": "nul\0"}).replace(b', "unit_s": 0.1', b""),
    STARTED % 2**70,
    STARTED.replace(b"%d", b"9" * 4300),
    encode(Welcome(VERSION, "1", 1, 10**9, 0.0, [], "one")),
]
"""Each is the end of a connection, and of nothing else."""


def test_an_agent_that_breaks_the_protocol_again_and_again_is_given_up():
    ended = run(evil=BREAKERS * 4)
    check(ended)
    assert [e.instance for e in ended.events if isinstance(e, InstanceLost)] == ["evil"]


def test_an_agent_that_breaks_the_protocol_now_and_then_is_tried_again():
    ended = run(evil=BREAKERS[:3])
    check(ended)
    assert not [e for e in ended.events if isinstance(e, InstanceLost)]


def test_an_agent_that_announces_facts_and_tells_none_is_not_waited_for():
    ended = run(early=BREAKERS[-1:])
    check(ended)


def test_an_agent_that_answers_nonsense_is_no_instance():
    ended = run(early=BREAKERS[:-1] * 4)
    check(ended)
    assert [e.instance for e in ended.events if isinstance(e, InstanceReady)] == ["good"]


def lies() -> bytes:
    """Facts that are well-formed and not so: of orders, attempts and trials that are not this
    agent's.
    """
    seq = count(2)
    about = {"at": 0.0, "attempt": 1}
    said = [
        line("refused", seq=next(seq), at=0.0, id=f"{e}.{i}", why="\ud800\x1b[2J")
        for e in range(1, 5)
        for i in range(3)
    ]
    for trial in ("t0001", "t0002", "t1", "", "../x", "\udcff", "\x1b[2J\n"):
        of = {**about, "trial": trial}
        said += [
            line("started", seq=next(seq), id="1.0", pid=-1, **of),
            line("training", seq=next(seq), epoch=1 << 53, **of),
            line(
                "reported",
                seq=next(seq),
                epoch=1 << 53,
                metrics={"accuracy": 1e308, "\ud800": None},
                unit_s=1e9,
                **of,
            ),
            line(
                "checkpointed",
                **{
                    **of,
                    **SAVED,
                    "seq": next(seq),
                    "name": "0001-" + "9" * 50,
                    "sha256": "\ud800",
                    "epoch": 1,
                    "metrics": {},
                },
            ),
            line("ask", trial=trial, attempt=1, name="0001-" + "9" * 50, size=2**53),
            line(
                "exited",
                seq=next(seq),
                cause="?",
                code=2**53,
                rank=-1,
                tail=["\x1b[2J", "\ud800"],
                silent=-1e12,
                **of,
            ),
        ]
    said.append(line("noticed", seq=next(seq), at=0.0, what="?", by=1e12))
    return b"".join(said)


def test_an_agent_that_lies_about_others_is_heard_and_not_believed():
    ended = run(evil=[lies()], shift=lies().count(b'"seq"'))
    state = ended.state
    assert state.phase is RunPhase.OVER
    assert state.result.published is not None
    assert all(part.isprintable() for part in ended.output.split("\n"))
    assert [
        t.reports
        for t in state.trials.values()
        if t.phase is TrialPhase.FINISHED and t.crashes == 0
    ]
