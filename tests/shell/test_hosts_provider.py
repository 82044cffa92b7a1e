"""Machines that people have: each used by one instance at a time, and given back as it was."""

from __future__ import annotations

import asyncio
import getpass
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seerd.agent.protocol import VERSION, Hello, Welcome
from seerd.agent.wire import decode, encode
from seerd.backends.base import Connection, Provider, Span
from seerd.backends.bundle import build_agent
from seerd.backends.hosts.provider import HostsProvider, SshHost
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.errors import CloudError, LaunchError, ProviderError
from tests.shell.sshd import Sshd, agents, sshds, until

USER = getpass.getuser()


@dataclass
class Place:
    """Three servers, which the user knows."""

    servers: list[Sshd]
    bundle: Bundle
    run: str = field(default_factory=lambda: f"run-{secrets.token_hex(4)}")

    def hosts(self) -> tuple[SshHost, ...]:
        return tuple(
            SshHost("127.0.0.1", USER, server.port, 2 + n, cuda=False)
            for n, server in enumerate(self.servers)
        )

    def name(self, number: int) -> str:
        return f"{USER}@127.0.0.1:{self.servers[number].port}"

    def do(self, work: Callable[[HostsProvider], Awaitable[None]], patience_s: float = 0.5) -> None:
        """One daemon's life."""

        async def live() -> None:
            options = AgentOptions(self.run, 1, True, 60.0, 5.0, False, False, "python3")
            remote = Remote(self.bundle, options, reconnect_s=0.5)
            provider = HostsProvider(self.hosts(), remote, patience_s)
            try:
                async with asyncio.timeout(90):
                    await provider.open()
                    await work(provider)
            finally:
                await provider.close()

        asyncio.run(live())

    def agents(self) -> list[int]:
        return [len(agents(server.home)) for server in self.servers]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    build_agent(tmp_path / "agent.pyz")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("pass\n")
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with sshds(3) as servers:
        (ssh / "id_ed25519").write_bytes(servers[0].user_key.read_bytes())
        (ssh / "id_ed25519").chmod(0o600)
        (ssh / "known_hosts").write_text(
            "".join(f"[127.0.0.1]:{s.port} {s.host_key}" for s in servers)
        )
        yield Place(servers, Bundle(tmp_path / "agent.pyz", tmp_path / "source"))


async def welcome(run: str, connection: Connection) -> Welcome:
    reader, writer = connection
    writer.write(encode(Hello(VERSION, run, 0)))
    message = decode(await reader.readline())
    writer.close()
    assert isinstance(message, Welcome)
    return message


def test_it_is_a_provider(place: Place) -> None:
    provider: Provider = HostsProvider(
        place.hosts(),
        Remote(place.bundle, AgentOptions("r", 1, False, 1, 1, False, False, "python3")),
    )
    assert provider is not None


def test_each_host_is_one_instance_with_its_own_gpus_until_there_is_none_left(place: Place) -> None:
    async def work(provider: HostsProvider) -> None:
        launched = await asyncio.gather(*(provider.launch(f"5.{n}") for n in range(3)))
        assert [(made.instance, made.gpus) for made in launched] == [
            (f"{place.name(n)}-5", 2 + n) for n in range(3)
        ]
        for made in launched:
            assert (
                await welcome(place.run, await provider.connect(made.instance))
            ).gpus == made.gpus
            assert provider.address(made.instance) == "127.0.0.1"
        with pytest.raises(LaunchError, match="all 3 hosts are in use") as caught:
            await provider.launch("6.0")
        assert not caught.value.retry

    place.do(work)


def test_the_same_token_gives_the_same_instance(place: Place) -> None:
    async def work(provider: HostsProvider) -> None:
        first = await provider.launch("5.0")
        pid = (place.servers[0].home / ".seerd" / place.run / "agent.pid").read_text()
        assert await provider.launch("5.0") == first
        assert (place.servers[0].home / ".seerd" / place.run / "agent.pid").read_text() == pid

    place.do(work)
    until(lambda: place.agents() == [1, 0, 0])


def test_what_is_given_back_runs_no_more_and_can_be_had_again(place: Place) -> None:
    async def work(provider: HostsProvider) -> None:
        begun = time.time()
        first = await provider.launch("5.0")
        assert any(
            first.instance.rpartition("-")[0] in line
            for line in (await provider.leftovers()).costing
        )
        span = await provider.terminate(first.instance)
        assert begun <= (span.since or 0) <= (span.until or 0) <= time.time()
        assert await provider.terminate(first.instance) == span
        assert (await provider.leftovers()).costing == []
        until(lambda: place.agents() == [0, 0, 0])
        again = await provider.launch("9.0")
        assert again.instance == f"{place.name(0)}-9"
        assert (await welcome(place.run, await provider.connect(again.instance))).last == 0
        with pytest.raises(ProviderError, match="was given back"):
            await provider.connect(first.instance)

    place.do(work)


def test_a_launch_that_is_given_back_under_way_brings_nothing(place: Place) -> None:
    async def work(provider: HostsProvider) -> None:
        launching = asyncio.create_task(provider.launch("5.0"))
        await asyncio.to_thread(until, place.servers[0].connections)
        await asyncio.sleep(0)
        await provider.terminate("5.0")
        with pytest.raises(LaunchError, match="given back"):
            await launching
        assert (await provider.leftovers()).costing == []
        assert await provider.terminate("never.0") == Span()

    place.do(work)
    until(lambda: place.agents() == [0, 0, 0])


def test_a_host_that_fails_is_passed_over_and_left_alone_for_a_while(place: Place) -> None:
    async def work(provider: HostsProvider) -> None:
        place.servers[0].stop()
        assert (await provider.launch("5.0")).instance == f"{place.name(1)}-5"
        place.servers[0].start()
        assert (await provider.launch("6.0")).instance == f"{place.name(2)}-6"
        with pytest.raises(LaunchError, match="connection refused") as caught:
            await provider.launch("7.0")
        assert caught.value.retry
        assert place.name(0) in str(caught.value)

    place.do(work)


def test_a_new_daemon_takes_up_what_it_knows_and_ends_the_rest(place: Place) -> None:
    kept: list[str] = []

    async def first(provider: HostsProvider) -> None:
        launched = await asyncio.gather(*(provider.launch(f"5.{n}") for n in range(3)))
        kept.extend(made.instance for made in launched[:2])

    async def second(provider: HostsProvider) -> None:
        place.servers[1].stop()
        assert await provider.adopt(kept, ["5.2"]) == (kept[:1], [])
        until(lambda: place.agents()[2] == 0)
        assert (await welcome(place.run, await provider.connect(kept[0]))).gpus == 2
        assert any(
            place.name(1) in line and "cannot be asked" in line
            for line in (await provider.leftovers()).costing
        )
        await provider.terminate(kept[0])

    place.do(first)
    until(lambda: place.agents() == [1, 1, 1])
    place.do(second)
    until(lambda: place.agents() == [0, 1, 0])


def test_no_host_at_all_is_told_before_anything_starts(place: Place) -> None:
    for server in place.servers:
        server.stop()
    (Path.home() / ".ssh" / "known_hosts").unlink()
    place.servers[2].start()

    async def work(provider: HostsProvider) -> None:
        raise AssertionError

    with pytest.raises(CloudError) as caught:
        place.do(work)
    said = str(caught.value)
    assert said.count("connection refused") == 2
    assert f"ssh-keyscan -p {place.servers[2].port} 127.0.0.1 >> ~/.ssh/known_hosts" in said


def test_a_host_that_cannot_be_reached_is_not_said_to_be_given_back(place: Place) -> None:
    async def work(provider: HostsProvider) -> None:
        made = await provider.launch("5.0")
        place.servers[0].stop()
        with pytest.raises(ProviderError, match="connection refused"):
            await provider.terminate(made.instance)
        place.servers[0].start()
        assert (await provider.terminate(made.instance)).until is not None

    place.do(work)
    until(lambda: place.agents() == [0, 0, 0])


def test_a_host_on_which_nothing_could_be_begun_is_given_back_at_once(place: Place) -> None:
    """Nothing of the run can be there, so nobody has to look."""

    async def work(provider: HostsProvider) -> None:
        for server in place.servers:
            server.stop()
        launching = asyncio.create_task(provider.launch("5.0"))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await provider.terminate("5.0")
            launching.cancel()
            assert (await provider.leftovers()).costing == []

    place.do(work, patience_s=20.0)
