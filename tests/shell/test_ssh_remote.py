"""Agents on machines over SSH: what is sent, what survives a lost connection, what is left in the
end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from seerd.agent.protocol import (
    MAX_LINE,
    VERSION,
    Hello,
    Job,
    Message,
    Prepare,
    Prepared,
    Refused,
    Start,
    Started,
    Training,
    Welcome,
)
from seerd.agent.wire import decode, encode
from seerd.backends.base import Printed
from seerd.backends.bundle import build_agent
from seerd.backends.ssh import pushing
from seerd.backends.ssh import remote as remote_module
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.errors import ProviderError
from tests.shell.sshd import Sshd, agents, sshds, until

SCRIPT = """
import json, os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.path.join(os.environ["SEERD_DIR"], "out.jsonl"), "a") as out:
    out.write(json.dumps({"kind": "training", "at": time.time(), "epoch": 0}) + "\\n")
print("here I am", flush=True)
time.sleep(600)
"""


@dataclass
class Place:
    """Servers, and what a run would send them."""

    servers: list[Sshd]
    bundle: Bundle
    run: str

    @property
    def server(self) -> Sshd:
        return self.servers[0]

    @property
    def folder(self) -> Path:
        """The agent's own on the first server."""
        return self.server.home / ".seerd" / self.run

    def options(self, **other: Any) -> AgentOptions:
        usual = {"gpus": 2, "cuda": False, "lease_s": 60.0, "grace_s": 5.0}
        return AgentOptions(
            **{
                "run": self.run,
                **usual,
                "power_off": False,
                "spot": False,
                "python": "python3",
                **other,
            }
        )

    def do(self, work: Callable[[Remote], Awaitable[None]], **other: Any) -> None:
        """One daemon's life."""

        async def live() -> None:
            remote = Remote(self.bundle, self.options(**other))
            try:
                async with asyncio.timeout(90):
                    await work(remote)
            finally:
                await remote.close()

        asyncio.run(live())

    def job(self) -> Job:
        rest: dict[str, Any] = {
            "metric": "accuracy",
            "mode": "max",
            "allocations": [1],
            "threads": 1,
        }
        return Job(
            source=str(self.folder / "source"),
            script="train.py",
            args=[],
            launcher="python",
            python=sys.executable,
            env={},
            setup=[],
            store=str(self.folder / "store"),
            checkpoint_every_s=10.0,
            **rest,
        )

    def sent(self) -> dict[str, bytes]:
        """The source as the first server has it."""
        top = self.folder / "source"
        return {
            str(path.relative_to(top)): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    build_agent(tmp_path / "agent.pyz")
    source = tmp_path / "source"
    (source / "lib").mkdir(parents=True)
    (source / "train.py").write_text(SCRIPT)
    (source / "lib" / "big.bin").write_bytes(secrets.token_bytes(700_000))
    (source / "lib" / "twin.bin").write_bytes((source / "lib" / "big.bin").read_bytes())
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    with sshds(1) as servers:
        yield Place(servers, Bundle(tmp_path / "agent.pyz", source), f"run-{secrets.token_hex(4)}")


class Talk:
    """A daemon's side of a tunnel."""

    def __init__(self, run: str, connection: tuple[Any, Any]) -> None:
        self._run = run
        self.reader, self.writer = connection

    async def hello(self, seen: int = 0) -> Welcome:
        self.say(Hello(VERSION, self._run, seen))
        return await self.until(Welcome)

    def say(self, message: Message) -> None:
        self.writer.write(encode(message))

    async def until(self, kind: type) -> Any:
        while line := await self.reader.readline():
            message = decode(line)
            if isinstance(message, kind):
                return message
            assert not isinstance(message, Refused), message
        raise AssertionError(f"no {kind.__name__} came")

    async def train(self, job: Job) -> None:
        """Have a trial of one attempt run."""
        self.say(Prepare("p", job))
        await self.until(Prepared)
        self.say(Start("s", "t1", 1, [0], {"lr": 0.1}, 17, []))
        await self.until(Training)


def marked(run: str) -> list[int]:
    """Processes that carry the mark of the run's attempts."""
    mark = f"SEERD_ATTEMPT={run}/".encode()
    found = []
    for pid in psutil.pids():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_machine_gets_agent_and_source_and_answers(place: Place) -> None:
    async def work(remote: Remote) -> None:
        await remote.ready(place.server.machine(), 20.0)
        welcome = await Talk(place.run, await remote.connect(place.server.machine())).hello()
        assert welcome.gpus == 2

    place.do(work)
    assert place.sent().keys() == {"train.py", "run.sh", "lib/big.bin", "lib/twin.bin"}
    assert place.sent()["lib/big.bin"] == (place.bundle.source / "lib" / "big.bin").read_bytes()
    assert os.access(place.folder / "source" / "run.sh", os.X_OK)
    assert place.folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of source files each start of an agent has brought."""
    counts: list[int] = []

    async def counted(*asked: Any) -> Any:
        done = await pushing.run_remote_task(*asked)
        counts.extend([done["received"]] if isinstance(done, dict) and "received" in done else [])
        return done

    monkeypatch.setattr(remote_module, "run_remote_task", counted)
    return counts


def test_one_more_job_s_source_comes_to_those_that_run_and_what_was_refused_comes_mended(
    place: Place, received: list[int]
) -> None:
    """Trials run in the others' folders meanwhile, and bytes travel once."""
    source, machine, jobs = place.bundle.source, place.server.machine(), ["one"]

    def write(job: str, text: str) -> None:
        shutil.copytree(source / "lib", source / job, dirs_exist_ok=True)
        (source / job / "own.txt").write_text(text)

    async def work(remote: Remote) -> None:
        remote.jobs = lambda: jobs
        remote.machine = lambda _: machine
        write("one", "one")
        await remote.ready(machine, 20.0)
        await remote.send("")
        (place.folder / "source" / "one" / "made").write_text("by a trial")
        write("two", "wrong")
        await remote.with_one_more("two")("")
        shutil.rmtree(source / "two")
        await remote.send("")
        write("two", "right")
        await remote.with_one_more("two")("")
        jobs.append("two")
        await remote.send("")

    async def later(remote: Remote) -> None:
        remote.jobs = lambda: jobs
        remote.machine = lambda _: machine
        await remote.send("")

    place.do(work)
    at_first = len(received)
    place.do(later)
    sent = place.sent()
    assert (sent["one/own.txt"], sent["two/own.txt"]) == (b"one", b"right")
    assert sent["one/made"] == b"by a trial"
    assert "train.py" not in sent
    assert sum(received[:at_first]) == 700_000 + len("one" + "wrong" + "right")
    assert received[at_first:] == [0]


def test_what_is_being_sent_is_told_while_it_lasts(place: Place) -> None:
    (place.bundle.source / "more.bin").write_bytes(os.urandom(6_000_000))
    told: list[str] = []

    async def work(remote: Remote) -> None:
        sending = asyncio.ensure_future(remote.ready(place.server.machine(), 20.0))
        while not sending.done():
            await asyncio.sleep(0)
            told.append(remote.uploads())
        await sending
        assert remote.uploads() == ""

    place.do(work)
    assert told[0] == ""
    (some,) = {one for one in told if one}
    assert some.startswith("the source is being sent to 1 machine, 7 MB; leave out")


def test_only_what_changed_is_sent_again(place: Place, received: list[int]) -> None:
    machine = place.server.machine()

    async def push(remote: Remote) -> None:
        await remote.ready(machine, 20.0)

    place.do(push)
    everything = sum(
        path.stat().st_size for path in place.bundle.source.rglob("*") if path.is_file()
    )
    twin = (place.bundle.source / "lib" / "twin.bin").stat().st_size
    assert received == [everything - twin]
    place.do(push)
    assert received[1] == 0
    (place.bundle.source / "train.py").write_text(SCRIPT + "# changed\n")
    (place.bundle.source / "run.sh").unlink()
    place.do(push)
    assert received[2] == len(SCRIPT) + len("# changed\n")
    assert place.sent().keys() == {"train.py", "lib/big.bin", "lib/twin.bin"}
    place.run += "-next"
    place.do(push)
    assert received[3] == 0
    assert place.sent()["lib/twin.bin"] == (place.bundle.source / "lib" / "twin.bin").read_bytes()


def test_what_a_trial_prints_can_be_read_while_there_is_a_connection(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        remote.machine = lambda _: machine
        assert await remote.printed("", 0.0) is None
        await remote.ready(machine, 20.0)
        assert await remote.printed("", 0.0) == Printed(machine.name, {}, 0.0)
        talk = Talk(place.run, await remote.connect(machine))
        await talk.hello()
        await talk.train(place.job())
        logs: dict[str, bytes] = {}
        while b"here I am" not in b"".join(logs.values()):
            printed = await remote.printed("", 0.0)
            assert printed is not None
            logs = dict(printed.logs)
        assert all(name.startswith("trials/t1/1/logs/") for name in logs)
        assert time.time() - 30 < printed.until < time.time()
        await remote.end(machine)

    place.do(work)


def test_files_of_an_agent_can_be_read(place: Place, tmp_path: Path) -> None:
    machine, to = place.server.machine(), tmp_path / "read"

    async def work(remote: Remote) -> None:
        remote.machine = lambda _: machine
        with pytest.raises(ProviderError, match="no connection"):
            await remote.read("", "trials/t1/a.pt", to, 9)
        await remote.ready(machine, 20.0)
        folder = place.folder / "trials" / "t1"
        folder.mkdir(parents=True)
        for name, data in {
            "a.pt": bytes(range(256)) * 4096,
            "b.json": b"{1}",
            "c.json": b"{2}",
        }.items():
            (folder / name).write_bytes(data)
        await remote.read("", "trials/t1/a.pt", to, 1 << 30)
        assert to.read_bytes() == (folder / "a.pt").read_bytes()
        await remote.read("", "trials/t1/*.json", to, 5)
        assert to.read_bytes() == b"{1}{2"
        await remote.read("", "trials/none/*.json", to, 5)
        assert to.read_bytes() == b""
        await remote.end(machine)

    place.do(work)


def test_a_machine_that_never_stops_talking_is_not_listened_to(place: Place) -> None:
    loud = place.server.home / "python3"
    loud.write_text("#!/bin/sh\nexec tr '\\0' x < /dev/zero\n")
    loud.chmod(0o755)

    async def work(remote: Remote) -> None:
        with pytest.raises(ProviderError, match="more than any answer"):
            await remote.ready(place.server.machine(), 20.0)

    place.do(work, python=str(loud))


def test_an_agent_and_its_trial_survive_the_daemon_and_every_connection(place: Place) -> None:
    machine = place.server.machine()

    async def first(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        await Talk(place.run, await remote.connect(machine)).hello()
        talk = Talk(place.run, await remote.connect(machine))
        await talk.hello()
        await talk.train(place.job())

    place.do(first)
    place.server.stop()
    place.server.start()

    async def second(remote: Remote) -> None:
        talk = Talk(place.run, await remote.connect(machine))
        assert (await talk.hello()).attempts == ["t1/1"]
        await talk.until(Started)
        await remote.end(machine)

    place.do(second)
    until(lambda: not agents(place.server.home))


def test_a_lost_connection_is_told_and_the_next_one_goes_on(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        talk = Talk(place.run, await remote.connect(machine))
        await talk.hello()
        await asyncio.to_thread(place.server.drop_connections)
        with pytest.raises(OSError, match="was lost"):
            await talk.reader.readline()
        talk.say(Hello(VERSION, place.run, 0))
        await Talk(place.run, await remote.connect(machine)).hello()

    place.do(work)


def test_connections_that_drop_while_a_machine_is_made_ready_do_not_matter(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        getting_ready = asyncio.create_task(remote.ready(machine, 60.0))
        for _ in range(3):
            await asyncio.to_thread(
                until, lambda: place.server.connections() or getting_ready.done()
            )
            await asyncio.to_thread(place.server.drop_connections)
        await getting_ready
        await Talk(place.run, await remote.connect(machine)).hello()

    place.do(work)
    assert place.sent()["train.py"].decode() == SCRIPT


def test_an_agent_that_died_is_started_again_with_the_gpus_it_had(place: Place) -> None:
    machine = place.server.machine()

    async def first(remote: Remote) -> None:
        await remote.ready(machine, 20.0, 7)

    async def second(remote: Remote) -> None:
        assert (await Talk(place.run, await remote.connect(machine)).hello()).gpus == 7

    place.do(first)
    agent = psutil.Process(int((place.folder / "agent.pid").read_text()))
    agent.kill()
    until(lambda: not agents(place.server.home))
    place.do(second)


def test_an_agent_has_nothing_of_whom_it_was_started_by(place: Place) -> None:
    async def work(remote: Remote) -> None:
        await remote.ready(place.server.machine(), 20.0)

    place.do(work)
    agent = int((place.folder / "agent.pid").read_text())
    assert psutil.Process(agent).name() == "seerd-agent"
    assert os.getsid(agent) == os.getpgid(agent) == agent
    open_ones = {int(fd.name): str(fd.readlink()) for fd in Path(f"/proc/{agent}/fd").iterdir()}
    own = str(place.folder.resolve())
    assert [open_ones.pop(n) for n in range(3)] == [
        "/dev/null",
        f"{own}/agent.out",
        f"{own}/agent.out",
    ]
    assert not [
        to for to in open_ones.values() if not to.startswith((f"{own}/", "socket:", "anon_inode:"))
    ]


def test_an_agent_that_does_not_start_is_told_with_its_last_lines(place: Place) -> None:
    async def work(remote: Remote) -> None:
        with pytest.raises(
            ProviderError,
            match=r"does not start; its last lines:\n(.|\n)*invalid float value: 'soon'",
        ):
            await remote.ready(place.server.machine(), 20.0)

    place.do(work, grace_s="soon")


def test_an_agent_that_never_hears_from_the_daemon_ends_within_the_lease_of_that_moment(
    place: Place,
) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        remote.lease_s = lambda: 0.5
        await remote.ready(machine, 20.0)
        async with asyncio.timeout(20):
            while await remote.left(machine):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    place.do(work)


def test_what_is_ended_leaves_logs_and_nothing_else(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        talk = Talk(place.run, await remote.connect(machine))
        await talk.hello()
        await talk.train(place.job())
        (place.folder / "store" / "t1").mkdir(parents=True, exist_ok=True)
        (place.folder / "store" / "t1" / "big.pt").write_bytes(b"0" * 1000)
        left = await remote.left(machine)
        assert any("process" in line and place.run in line for line in left)
        assert any("agent" in line for line in left)
        await remote.end(machine)
        assert await remote.left(machine) == []
        await remote.end(machine)

    place.do(work)
    until(lambda: not agents(place.server.home))
    assert marked(place.run) == []
    kept = {
        str(path.relative_to(place.folder)) for path in place.folder.rglob("*") if path.is_file()
    }
    assert {"agent.log", "agent.out"} <= kept
    assert (
        {path for path in kept if "/" in path}
        == {path for path in kept if path.startswith("trials/t1/1/logs/")}
        != set()
    )
    assert "here I am" in "".join(
        path.read_text() for path in (place.folder / "trials").rglob("*.log")
    )


def test_what_a_killed_agent_left_behind_is_ended_too(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        talk = Talk(place.run, await remote.connect(machine))
        await talk.hello()
        await talk.train(place.job())
        psutil.Process(int((place.folder / "agent.pid").read_text())).kill()
        assert marked(place.run)
        await remote.end(machine)

    place.do(work)
    assert marked(place.run) == []


def test_long_lines_pass_through_and_the_end_of_an_agent_is_an_end(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        reader, writer = await remote.connect(machine)
        talk = Talk(place.run, (reader, writer))
        await talk.hello()
        padding = "x" * (MAX_LINE - 4096)
        job = place.job()
        long = Job(
            **{
                **{name: getattr(job, name) for name in job.__dataclass_fields__},
                "env": {"LONG": padding},
            }
        )
        talk.say(Prepare("p", long))
        await talk.until(Prepared)
        await remote.end(machine)
        while line := await reader.readline():  # a late notice that starts are cold
            assert b'"kind":"noticed"' in line

    place.do(work)


def test_a_tunnel_carries_lines_of_a_mebibyte_to_us(place: Place) -> None:
    """The agent's socket is taken by somebody who says much."""
    machine = place.server.machine()
    lines = [b"a" * (MAX_LINE - 1) + b"\n", b"b\n", b"c" * (MAX_LINE - 1) + b"\n", b"the rest"]

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(lines))
        await writer.drain()
        writer.close()

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        (place.folder / "agent.sock").unlink()
        async with await asyncio.start_unix_server(speak, place.folder / "agent.sock"):
            reader, writer = await remote.connect(machine)
            assert [await reader.readline() for _ in range(5)] == [*lines, b""]
            writer.close()

    place.do(work)


def test_a_home_with_a_long_path_has_a_short_way_to_the_socket(place: Place) -> None:
    place.run = f"run-{secrets.token_hex(45)}"
    assert len(str(place.folder / "agent.sock")) > 108

    async def work(remote: Remote) -> None:
        await remote.ready(place.server.machine(), 20.0)
        await Talk(place.run, await remote.connect(place.server.machine())).hello()

    place.do(work)


def test_one_connection_per_machine_carries_more_tunnels_than_sessions(place: Place) -> None:
    machine = place.server.machine()

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)
        for _ in range(12):
            reader, writer = await remote.connect(machine)
            await Talk(place.run, (reader, writer)).hello()
        await remote.ready(machine, 20.0)
        assert place.server.connections() == 1

    place.do(work)


def test_nobody_else_on_the_machine_reads_what_is_sent_in_argv(place: Place) -> None:
    seen: set[str] = set()

    async def work(remote: Remote) -> None:
        getting_ready = asyncio.create_task(remote.ready(place.server.machine(), 20.0))
        while not getting_ready.done():
            for process in psutil.process_iter(["cmdline"]):
                seen.update(process.info["cmdline"] or ())
            await asyncio.sleep(0)
        await getting_ready

    place.do(work)
    key = place.server.user_key.read_text()
    assert not any("PRIVATE KEY" in text or key in text for text in seen)
    assert any("sys.stdin.buffer.read" in text for text in seen)


def test_eight_machines_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_agent(tmp_path / "agent.pyz")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(SCRIPT)
    with sshds(8) as servers:
        place = Place(
            servers,
            Bundle(tmp_path / "agent.pyz", tmp_path / "source"),
            f"run-{secrets.token_hex(4)}",
        )

        async def talk(remote: Remote, server: Sshd) -> None:
            await remote.ready(server.machine(), 30.0)
            await Talk(place.run, await remote.connect(server.machine())).hello()

        async def work(remote: Remote) -> None:
            begun = time.monotonic()
            await asyncio.gather(*(talk(remote, server) for server in servers))
            took_s = time.monotonic() - begun
            with capsys.disabled():
                print(f"\n8 machines from SSH to an agent that answers: {took_s:.2f}s")

        place.do(work)
        assert (
            len(
                {
                    (server.home / ".seerd" / place.run / "agent.pid").read_text()
                    for server in servers
                }
            )
            == 8
        )


def test_a_server_that_allows_no_tunnel_says_which_setting_forbids_it(place: Place) -> None:
    place.server.extra.append("AllowStreamLocalForwarding no")
    place.server.stop()
    place.server.start()

    async def work(remote: Remote) -> None:
        await remote.ready(place.server.machine(), 20.0)
        with pytest.raises(ProviderError, match="AllowStreamLocalForwarding"):
            await remote.connect(place.server.machine())

    place.do(work)
