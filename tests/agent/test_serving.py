"""An agent in a fork of this process, and a daemon's side of its socket: what it tells and when it
lets go.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.agents import RUN, Client
from seerd.agent import clock, host
from seerd.agent.journal import AgentJournal, facts_after
from seerd.agent.nvml import Shares
from seerd.agent.orders import Here, Orders
from seerd.agent.protocol import (
    Ack,
    Alive,
    Ask,
    Computed,
    Exited,
    Hello,
    Job,
    Noticed,
    Prepare,
    Prepared,
    Renew,
    Reported,
    Shutdown,
    Start,
    Started,
    Stop,
    Welcome,
)
from seerd.agent.serve import Agent, Lease
from seerd.agent.spot import ACTION, ENDPOINT
from seerd.agent.talk import Talk
from seerd.agent.timings import TIMINGS, Timings
from tests.agent.forks import forked, status_of
from tests.agent.test_agent_spot import Service

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

FORSAKEN, FAILED = 3, 4
WAITS = "while ! test -e $SEERD_DIR/stop; do sleep 0.02; done"
PACED = """
import json, os, time
for epoch in range(1, 21):
    with open(os.path.join(os.environ["SEERD_DIR"], "out.jsonl"), "a") as out:
        print(json.dumps({"kind": "report", "epoch": epoch, "metrics": {"accuracy": 0.5}}), file=out)
    time.sleep(0.06)
"""
"""Without a process for each pause, which a busy machine would take its time for."""
SAYS = (
    'echo \'{"kind": "report", "epoch": %s, "metrics": {"accuracy": 0.5}}\' >>$SEERD_DIR/out.jsonl'
)


class Alone:
    """A folder for agents that are forks of this process."""

    def __init__(self, top: Path) -> None:
        self.folder = top / "i"
        for path in (self.folder, top / "source", top / "lib"):
            path.mkdir()
        (self.folder / "agent.lock").touch()
        self.here = Here(RUN, 4, False, self.folder, top / "lib")
        self.agents: list[int] = []
        self.clients: list[Client] = []
        self.job = Job(
            source=str(top / "source"),
            script="sh",
            args=["-c", "{script}"],
            launcher="command",
            python="",
            env={},
            setup=[],
            store=str(top / "store"),
            metric="accuracy",
            mode="max",
            allocations=[1, 2],
            threads=1,
            checkpoint_every_s=10.0,
            names=["script"],
        )

    def launch(
        self,
        lease: Lease | None = None,
        *,
        spot: bool = False,
        shares: Shares | None = None,
        timings: Timings = TIMINGS,
    ) -> None:
        """Start an agent; return when it has a socket."""
        begins = lease or Lease(clock.now() + 600, 10.0)

        def lives() -> None:
            os.chdir(self.folder)
            os.umask(0o077)
            host.adopt_orphans()
            sys.exit(asyncio.run(self._serve(begins, spot, shares, timings)))

        self.agents.append(forked(lives))
        self.wait(lambda: (self.folder / "agent.sock").exists() or not self.lives())

    async def _serve(
        self, lease: Lease, spot: bool, shares: Shares | None, timings: Timings
    ) -> int:
        agent = Agent(replace(self.here, timings=timings), lease, spot=spot)
        if shares is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, agent._report_use, shares)
            loop.call_later(0.2, agent._report_use, shares)
        try:
            return FORSAKEN if await agent.serve() else 0
        except Exception:  # noqa: BLE001
            return FAILED

    def lives(self) -> bool:
        return host.is_there(self.agents[-1])

    def wait(self, holds: Any) -> None:
        end = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)

    def end(self) -> int:
        """Wait for the agent's end; return its exit status."""
        status = status_of(self.agents.pop())
        (self.folder / "agent.sock").unlink(missing_ok=True)
        return status

    def connect(self, seen: int = 0, holds: list[str] | None = None) -> Client:
        client = self.client()
        client.say(Hello(11, RUN, seen, holds))
        self.welcome = client.read()
        assert isinstance(self.welcome, Welcome)
        return client

    def client(self) -> Client:
        self.clients.append(Client(self.folder))
        return self.clients[-1]

    def ready(self) -> Client:
        """A client of an agent that is prepared."""
        client = self.connect()
        client.say(Prepare("p", self.job))
        client.until(Prepared)
        return client

    def start(self, client: Client, script: str, trial: str = "t1", gpu: int = 0) -> None:
        client.say(Start(f"s-{trial}", trial, 1, [gpu], {"script": script}, 17, []))

    @property
    def facts(self) -> list[Any]:
        return facts_after(self.folder / "journal.jsonl", 0)


@pytest.fixture
def alone() -> Iterator[Alone]:
    top = Path(tempfile.mkdtemp(prefix="alone-"))
    made = Alone(top)
    yield made
    for client in made.clients:
        client.close()
    for agent in made.agents:
        os.kill(agent, signal.SIGKILL)
        status_of(agent)
    host.kill(lambda: host.each_of_run(RUN), set())
    shutil.rmtree(top)


def test_a_daemon_is_welcomed_with_what_the_agent_is(alone: Alone) -> None:
    before = clock.now()
    alone.launch()
    alone.connect()
    welcome, wall = alone.welcome, time.time()
    assert before <= welcome.now <= clock.now()
    assert welcome == Welcome(
        *(11, "2", 4, 0, welcome.now, [], host.boot_id(), welcome.wall, True, 0, []),
    )
    assert abs(welcome.wall - wall) < 30
    assert (alone.folder / "agent.sock").stat().st_mode & 0o777 == 0o600


def test_a_shut_down_kills_at_once_and_is_no_letting_go(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    alone.start(client, WAITS)
    client.until(Started)
    client.say(Shutdown("x"))
    facts = client.rest()
    assert alone.end() == 0
    assert [type(fact) for fact in facts] == [Prepared, Started, Exited]
    assert (facts[-1].cause, facts[-1].code) == ("asked", -9)
    assert alone.facts == facts


def test_a_signal_gives_trials_their_grace(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    alone.start(client, f"{WAITS}; exit 5")
    client.until(Started)
    os.kill(alone.agents[-1], signal.SIGTERM)
    assert client.until(Exited).code == 5
    client.say(Start("late", "t2", 1, [1], {"script": WAITS}, 1, []))
    client.rest()
    assert alone.end() == 0
    assert [fact.cause for fact in alone.facts if isinstance(fact, Exited)] == ["asked"]
    assert not any(getattr(fact, "trial", "") == "t2" for fact in alone.facts)


@pytest.mark.parametrize("is_renewed", [False, True])
def test_without_a_lease_the_agent_lets_go(alone: Alone, *, is_renewed: bool) -> None:
    began = time.monotonic()
    alone.launch(Lease(clock.now() + (600 if is_renewed else 1.0), 10.0))
    client = alone.ready()
    alone.start(client, f"{WAITS}; exit 5")
    client.until(Started)
    if is_renewed:
        client.say(Renew(0.5, 5.0))
        assert isinstance(client.read(), Alive)
    end = client.until(Exited)
    assert (end.cause, end.code) == ("lease", 5)
    client.rest()
    assert alone.end() == FORSAKEN
    assert 0.5 <= time.monotonic() - began < 30


def test_trials_that_ignore_the_end_of_the_lease_are_killed_after_the_grace(alone: Alone) -> None:
    alone.launch(Lease(clock.now() + 600, 10.0))
    client = alone.ready()
    alone.start(client, "sleep 60")
    client.until(Started)
    client.say(Renew(0.0, 0.3))
    began = time.monotonic()
    assert client.until(Exited).code == -9
    assert 0.25 <= time.monotonic() - began < 20
    assert alone.end() == FORSAKEN


def test_when_training_ends_is_written_once_until_it_changes(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    alone.start(client, WAITS)
    client.until(Started)
    horizon = alone.folder / "trials/t1/1/horizon.json"

    def told(ends_in_s: float | None, at: float | None = None) -> tuple[int, float]:
        client.say(Renew(600, 10.0, 120.0, ends_in_s, at))
        while not isinstance(client.read(), Alive):
            pass
        if not horizon.exists():
            return 0, 0.0
        return horizon.stat().st_ino, json.loads(horizon.read_text())["ends_since_boot"]

    assert told(None) == (0, 0.0)
    now = clock.now()
    first, ends = told(100.0, now)
    assert ends == pytest.approx(clock.to_boot(now + 100), abs=1e-3)
    assert told(110.0, now - 10.0) == (first, ends)
    assert told(100.09, now) == (first, ends)
    second, later = told(100.2, now)
    assert second != first
    assert later == pytest.approx(ends + 0.2, abs=1e-3)
    assert told(None) == (second, later)
    assert told(100.2, now)[1] == later


def test_an_order_has_to_be_one_for_an_agent(alone: Alone) -> None:
    alone.launch()
    client = alone.connect()
    client.say(Alive())
    assert client.read() is None
    again = alone.connect()
    again.say(Ack(0))
    again.say(Renew(600, 10.0))
    assert isinstance(again.read(), Alive)


def test_a_newer_connection_replaces_the_older_which_is_not_obeyed_any_more(alone: Alone) -> None:
    alone.launch()
    older = alone.ready()
    newer = alone.connect(seen=1)
    assert older.read() is None
    newer.say(Renew(600, 10.0))
    assert isinstance(newer.read(), Alive)


def test_facts_that_are_not_acknowledged_are_said_again(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    client.say(Ack(1), Renew(600, 10.0))
    assert isinstance(client.read(), Alive)
    client.close()
    alone.clients.pop()
    for seen, count in ((0, 1), (1, 0)):
        again = alone.connect(seen)
        assert (alone.welcome.last, alone.welcome.acked) == (1, 1)
        again.say(Renew(600, 10.0))
        kinds = [type(again.read()) for _ in range(count + 1)]
        assert kinds == [*[Prepared] * count, Alive]


def test_attempts_that_the_daemon_does_not_hold_are_ended_before_it_is_welcomed(
    alone: Alone,
) -> None:
    alone.launch()
    client = alone.ready()
    for gpu, trial in enumerate(("t1", "t2")):
        alone.start(client, WAITS, trial, gpu)
        client.until(Started, lambda fact, trial=trial: fact.trial == trial)
    alone.connect(3, ["t2/1"])
    assert alone.welcome.ended == ["t1/1"]
    assert alone.welcome.attempts == ["t2/1"]
    assert alone.welcome.last == 4


def test_a_daemon_that_got_no_welcome_is_told_again_what_was_ended(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    alone.start(client, "sleep 60")
    client.until(Started)
    for _ in range(2):
        ending = alone.connect(2, [])
        assert alone.welcome.ended == ["t1/1"]
    ending.say(Ack(ending.until(Exited).seq))
    ending.say(Renew(600, 10.0))
    ending.until(Alive)
    alone.connect(3, [])
    assert alone.welcome.ended == []


def test_no_question_is_asked_before_the_welcome(alone: Alone) -> None:
    async def asks() -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            journal = AgentJournal(alone.folder / "journal.jsonl")
            talk = Talk(reader, writer, alone.here, journal)
            talk.say(Ask("t1", 1, "1", 1))
            await talk.farewell()
            journal.close()
            return theirs.recv(1)

    assert asyncio.run(asks()) == b""


class Counting(AgentJournal):
    """Counts how often it is read."""

    reads = 0

    def lines_after(self, seen: int) -> list[bytes]:
        self.reads += 1
        return super().lines_after(seen)


def test_a_daemon_that_has_nothing_gets_all_by_one_reading_of_the_file(alone: Alone) -> None:
    journal = Counting(alone.folder / "journal.jsonl")
    facts = [Noticed(0, 1.0, "cold", None, "x")] * 1000
    journal.add(facts)
    journal.acknowledge(1000)

    async def tells() -> int:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        daemon, speaks = await asyncio.open_connection(sock=theirs)
        talk = Talk(reader, writer, alone.here, journal)
        carried = Orders(alone.here, journal, print, print, print)  # type: ignore[arg-type]
        talks = asyncio.ensure_future(talk.listen(Hello(11, RUN, 0), carried, print))
        lines = [await daemon.readline() for _ in range(1001)]
        speaks.close()
        await talks
        talk.close()
        return len(lines)

    assert asyncio.run(tells()) == 1001
    assert journal.reads <= 2
    journal.close()


def test_many_reports_are_kept_together_and_all_are_told_in_order(alone: Alone) -> None:
    alone.launch(None)
    client = alone.ready()
    alone.start(client, f"{sys.executable} -c {shlex.quote(PACED)}")
    epochs, came = [], []
    while not isinstance(fact := client.read(), Exited):
        if isinstance(fact, Reported):
            epochs.append(fact.epoch)
            came.append(time.monotonic())
    assert epochs == [*range(1, 21)]
    gaps = [after - before for before, after in pairwise(came)]
    assert sum(gap > 0.02 for gap in gaps) < 19


def test_the_lock_shows_that_the_agent_lives(alone: Alone) -> None:
    lock = alone.folder / "agent.lock"
    os.utime(lock, (0, 0))
    before = clock.now()
    alone.launch()
    alone.wait(lambda: lock.stat().st_mtime >= before)
    first = lock.stat().st_mtime
    alone.wait(lambda: lock.stat().st_mtime > first)
    assert lock.stat().st_mtime - first >= 0.4
    assert lock.stat().st_mtime <= clock.now()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()
    monkeypatch.setenv(ENDPOINT, made.url)
    yield made
    made.shutdown()
    made.server_close()


TAKEN = b'{"action": "terminate", "time": "2026-11-20T08:22:00Z"}'


def test_an_instance_that_will_be_taken_away_lets_go_if_no_daemon_is_there(
    alone: Alone, service: Service
) -> None:
    alone.launch(spot=True, timings=Timings(deserted_s=0.5))
    client = alone.ready()
    alone.start(client, f"{WAITS}; exit 5")
    client.until(Started)
    service.pages[ACTION] = TAKEN
    notice = client.until(Noticed)
    assert (notice.what, notice.why) == ("interruption", "")
    assert notice.by == pytest.approx(1795162920.0, abs=0.1)
    assert (alone.folder / "trials/t1/1/save").exists()
    time.sleep(0.8)
    client.say(Renew(600, 10.0))
    while not isinstance(client.read(), Alive):
        pass
    client.close()
    alone.clients.pop()
    assert alone.end() == FORSAKEN
    assert [fact.cause for fact in alone.facts if isinstance(fact, Exited)] == ["lease"]
    service.pages.clear()
    alone.launch(spot=True, timings=Timings(deserted_s=0.5))
    time.sleep(0.8)
    assert alone.lives(), "nobody has said that it will be taken away"


def test_an_instance_that_nothing_was_said_of_waits_for_its_daemon(alone: Alone) -> None:
    alone.launch(timings=Timings(deserted_s=0.2))
    alone.connect().close()
    alone.clients.pop()
    time.sleep(0.6)
    assert alone.lives()


def test_how_busy_gpus_are_is_told_once_until_it_changes(alone: Alone) -> None:
    alone.launch(shares=[0.5, None, 0.25, 1.0])
    client = alone.connect()
    told = client.until(Computed)
    assert told == Computed(1, told.at, [0.5, None, 0.25, 1.0])
    time.sleep(0.2)
    client.say(Renew(600, 10.0))
    assert isinstance(client.read(), Alive)


def test_an_agent_whose_journal_cannot_be_written_fails_with_nothing_left(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    alone.start(client, "echo $$ >$SEERD_DIR/pid; sleep 60")
    client.until(Started)
    pid = alone.folder / "trials/t1/1/pid"
    alone.wait(lambda: pid.exists() and pid.read_text())
    resource.prlimit(alone.agents[-1], resource.RLIMIT_FSIZE, (1, 1))
    client.say(Start("x", "t2", 1, [9], {"script": "true"}, 1, []))
    assert alone.end() == FAILED
    assert not host.is_there(int(pid.read_text()))


def test_a_stop_is_carried_out_and_a_second_time_is_none(alone: Alone) -> None:
    alone.launch()
    client = alone.ready()
    alone.start(client, WAITS)
    client.until(Started)
    for _ in range(2):
        client.say(Stop("x", "t1", 1, True, 60.0))
    assert client.until(Exited).code == 0
