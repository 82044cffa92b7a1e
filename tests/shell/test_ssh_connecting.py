"""Into machines over SSH: whom seerd trusts, how long it tries, and what it says when it cannot get
in.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import psutil
import pytest

from seerd.backends.bundle import build_agent
from seerd.backends.ssh.connecting import (
    RemoteMachine,
    UnreachableError,
    _identity,
    open_connection,
)
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote
from seerd.errors import ProviderError
from tests.shell.sshd import Sshd, free_port, new_key, sshds, until

OPTIONS = AgentOptions("digits-1", 2, False, 60.0, 5.0, False, False, "python3")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    top = tmp_path_factory.mktemp("bundle")
    build_agent(top / "agent.pyz")
    (top / "source").mkdir()
    (top / "source" / "train.py").write_text("pass\n")
    return Bundle(top / "agent.pyz", top / "source")


@pytest.fixture
def server() -> Iterator[Sshd]:
    with sshds(1) as made:
        yield made[0]


def with_remote(
    bundle: Bundle,
    work: Callable[[Remote], Awaitable[None]],
    options: AgentOptions = OPTIONS,
    **timings: float,
) -> None:
    async def run() -> None:
        remote = Remote(bundle, options, **timings)
        try:
            await work(remote)
        finally:
            await remote.close()

    asyncio.run(run())


def failure(
    bundle: Bundle, machine: RemoteMachine, patience_s: float = 0.0, options: AgentOptions = OPTIONS
) -> str:
    """What `ready` says about a machine that cannot be got ready."""
    said = ""

    async def work(remote: Remote) -> None:
        nonlocal said
        with pytest.raises(ProviderError) as caught:
            await remote.ready(machine, patience_s)
        said = str(caught.value)

    with_remote(bundle, work, options)
    return said


def test_a_machine_with_another_host_key_than_it_was_launched_with_gets_nothing(
    server: Sshd, bundle: Bundle
) -> None:
    new_key(server.folder / "other")
    other = replace(server.machine(), host_keys=((server.folder / "other.pub").read_text(),))
    said = failure(bundle, other)
    assert "host key mismatch" in said
    assert "SHA256:" in said
    assert list(server.home.iterdir()) == []


def test_a_machine_without_any_host_key_to_expect_is_not_trusted(
    server: Sshd, bundle: Bundle
) -> None:
    assert "host key mismatch" in failure(bundle, replace(server.machine(), host_keys=()))
    assert list(server.home.iterdir()) == []


def test_a_host_key_that_is_replaced_while_the_machine_boots_is_waited_for(
    server: Sshd, bundle: Bundle
) -> None:
    new_key(server.folder / "final")
    machine = replace(server.machine(), host_keys=((server.folder / "final.pub").read_text(),))

    async def work(remote: Remote) -> None:
        getting_ready = asyncio.create_task(remote.ready(machine, 30.0))
        await asyncio.to_thread(until, lambda: "Connection" in (server.folder / "log").read_text())
        server.stop()
        for suffix in ("", ".pub"):
            (server.folder / f"final{suffix}").replace(server.folder / f"host{suffix}")
        await asyncio.to_thread(server.start)
        await getting_ready

    with_remote(bundle, work)


def test_a_closed_port_is_tried_until_the_patience_is_over(bundle: Bundle, tmp_path: Path) -> None:
    new_key(tmp_path / "user")
    machine = RemoteMachine("m1", "127.0.0.1", "nobody", free_port(), (), tmp_path / "user")
    begun = time.monotonic()
    said = failure(bundle, machine, 1.0)
    assert 0.5 < time.monotonic() - begun < 3.0
    assert said.startswith(
        f"m1 (nobody@127.0.0.1:{machine.port}) could not be reached over SSH within 1s: "
    )
    assert "connection refused" in said


def test_a_server_that_starts_late_is_found(server: Sshd, bundle: Bundle) -> None:
    server.stop()

    async def work(remote: Remote) -> None:
        getting_ready = asyncio.create_task(remote.ready(server.machine(), 30.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        await getting_ready

    with_remote(bundle, work)


def test_somebody_who_is_silent_or_no_ssh_server_is_told_apart(tmp_path: Path) -> None:
    new_key(tmp_path / "user")

    async def cause(greeting: bytes) -> str:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            while not greeting and await reader.read(1 << 16):
                pass
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            with pytest.raises(UnreachableError) as caught:
                await open_connection(
                    RemoteMachine("m1", "127.0.0.1", "nobody", port, (), tmp_path / "user"),
                    login_s=0.5,
                )
            return str(caught.value)

    assert "timed out" in asyncio.run(cause(b""))
    assert "disconnected" in asyncio.run(cause(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_a_name_that_nobody_knows_is_not_tried_again(bundle: Bundle, tmp_path: Path) -> None:
    new_key(tmp_path / "user")
    machine = RemoteMachine("m1", "no-such-host.invalid", "nobody", 22, (), tmp_path / "user")
    assert "cannot be resolved" in failure(bundle, machine, 60.0)


def test_an_address_without_a_route_is_said_to_have_none(tmp_path: Path) -> None:
    new_key(tmp_path / "user")
    with pytest.raises(UnreachableError, match="no route to it"):
        asyncio.run(
            open_connection(
                RemoteMachine("m1", "255.255.255.255", "nobody", 22, (), tmp_path / "user")
            )
        )


def test_a_key_that_the_machine_does_not_take(server: Sshd, bundle: Bundle) -> None:
    new_key(server.folder / "stranger")
    said = failure(bundle, server.machine(key=server.folder / "stranger"))
    assert "authentication failed" in said
    assert str(server.folder / "stranger") in said


def test_a_missing_key_file_is_named(server: Sshd, bundle: Bundle) -> None:
    assert "nowhere" in failure(bundle, server.machine(key=server.folder / "nowhere"), 60.0)


def test_a_machine_that_still_boots_says_so_before_the_login(bundle: Bundle) -> None:
    text = (
        "System is booting up. Unprivileged users are not permitted to log in yet. See "
        "pam_nologin(8)."
    )
    with sshds(1, "Banner /dev/null", "AllowUsers nobody-yet") as (server,):
        (server.folder / "nologin").write_text(text)
        server.extra[0] = f"Banner {server.folder / 'nologin'}"
        server.stop()
        server.start()
        assert "still booting (pam_nologin)" in failure(bundle, server.machine())


def test_a_machine_that_still_boots_is_waited_for(bundle: Bundle) -> None:
    with sshds(1, "ForceCommand true") as (server,):
        gate = server.folder / "nologin"
        gate.write_text(
            "System is booting up. Unprivileged users are not permitted to log in yet.\n"
        )
        server.extra[0] = (
            f"ForceCommand if [ -e {gate} ]; then cat {gate} >&2; exit 254; fi; eval "
            '"$SSH_ORIGINAL_COMMAND"'
        )
        server.stop()
        server.start()
        assert "still booting (pam_nologin)" in failure(bundle, server.machine())

        async def work(remote: Remote) -> None:
            getting_ready = asyncio.create_task(remote.ready(server.machine(), 30.0))
            await asyncio.to_thread(until, server.connections)
            gate.unlink()
            await getting_ready

        with_remote(bundle, work)


def test_a_machine_without_the_python_says_what_to_do(server: Sshd, bundle: Bundle) -> None:
    said = failure(bundle, server.machine(), 60.0, replace(OPTIONS, python="python3.999"))
    assert "no 'python3.999'" in said
    assert "[train] python" in said


def test_an_old_python_is_told_by_its_version(server: Sshd, bundle: Bundle) -> None:
    old = server.folder / "old-python"
    pretend = "import sys; sys.version_info = (3, 6, 9, 'final', 0)"
    old.write_text(f'#!/bin/sh\nshift 3\nexec python3 -I -c "{pretend}; exec(sys.argv[1])" "$@"\n')
    old.chmod(0o755)
    said = failure(bundle, server.machine(), 60.0, replace(OPTIONS, python=str(old)))
    assert "is version 3.6.9; seerd's agent needs 3.9 or newer" in said


def test_what_a_shells_start_files_print_disturbs_nothing(server: Sshd, bundle: Bundle) -> None:
    (server.home / ".bashrc").write_text("echo Welcome to the cluster\n")

    async def work(remote: Remote) -> None:
        await remote.ready(server.machine(), 20.0)

    with_remote(bundle, work)


class KnownHosts:
    """A user's ~/.ssh on this side."""

    def __init__(self, home: Path, server: Sshd) -> None:
        self._home = home
        (home / ".ssh").mkdir(mode=0o700)
        for suffix in ("", ".pub"):
            (home / ".ssh" / f"id_ed25519{suffix}").write_bytes(
                Path(f"{server.user_key}{suffix}").read_bytes()
            )
        (home / ".ssh" / "id_ed25519").chmod(0o600)
        self.machine = replace(server.machine(), host_keys=None, key=None)

    def know(self, key: str) -> None:
        (self._home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{self.machine.port} {key}\n")


@pytest.fixture
def known(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownHosts:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return KnownHosts(tmp_path, server)


def test_a_host_that_the_user_knows_is_reached_with_the_users_own_key(
    known: KnownHosts, server: Sshd, bundle: Bundle
) -> None:
    known.know(server.host_key)

    async def work(remote: Remote) -> None:
        await remote.ready(known.machine, 20.0)

    with_remote(bundle, work)


def test_a_key_that_only_ssh_agent_has_opens_a_host(
    known: KnownHosts, server: Sshd, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.know(server.host_key)
    (tmp_path / ".ssh" / "id_ed25519").unlink()
    assert "authentication failed" in failure(bundle, known.machine, 60.0)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(server.folder / "ssh-agent"))
    holder = subprocess.Popen(
        ["ssh-agent", "-D", "-a", server.folder / "ssh-agent"], stdout=subprocess.DEVNULL
    )
    try:
        until((server.folder / "ssh-agent").exists)
        subprocess.run(["ssh-add", "-q", server.user_key], check=True)

        async def work(remote: Remote) -> None:
            await remote.ready(known.machine, 20.0)

        with_remote(bundle, work)
    finally:
        holder.terminate()
        holder.wait()


def test_a_host_that_the_user_does_not_know_is_not_trusted_and_the_way_to_accept_it_is_told(
    known: KnownHosts, bundle: Bundle, server: Sshd
) -> None:
    said = failure(bundle, known.machine, 60.0)
    assert "its host key is not known" in said
    assert f"ssh-keyscan -p {known.machine.port} 127.0.0.1 >> ~/.ssh/known_hosts" in said
    assert list(server.home.iterdir()) == []


def test_a_host_that_shows_another_key_than_the_user_knows(
    known: KnownHosts, bundle: Bundle, server: Sshd
) -> None:
    new_key(server.folder / "other")
    known.know((server.folder / "other.pub").read_text())
    said = failure(bundle, known.machine, 60.0)
    assert "host key mismatch" in said
    assert f"ssh-keygen -R '[127.0.0.1]:{known.machine.port}'" in said


def test_the_users_configuration_names_machines(
    known: KnownHosts, server: Sshd, bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / ".ssh" / "config").write_text(
        f"Host gpubox\n  HostName 127.0.0.1\n  Port {server.port}\n"
    )
    known.know(server.host_key)
    machine = RemoteMachine("gpubox", "gpubox", known.machine.user)

    async def work(remote: Remote) -> None:
        await remote.ready(machine, 20.0)

    with_remote(bundle, work)
    assert (server.home / ".seerd" / "digits-1" / "agent.sock").exists()


RELAY = """
import os, socket, sys, threading
there = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def back():
    while data := there.recv(65536):
        os.write(1, data)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
"""


@pytest.mark.parametrize("way", ["ProxyJump", "ProxyCommand", "a command of the machine's"])
def test_an_instance_is_reached_through_what_is_between(
    known: KnownHosts, server: Sshd, bundle: Bundle, tmp_path: Path, way: str
) -> None:
    """Instances of EC2 have a key of the run; what is in front of them has the user's own."""
    known.know(server.host_key)
    (tmp_path / "relay.py").write_text(RELAY)
    with sshds(1) as (inner,):
        machine, closed = replace(inner.machine("i-1"), address="localhost"), free_port()
        command = (sys.executable, str(tmp_path / "relay.py"), str(inner.port))
        lines = [f"Host front\n  HostName 127.0.0.1\n  Port {server.port}\n", "Host localhost\n"]
        if way == "ProxyJump":
            lines += ["  ProxyJump front\n"]
        else:
            machine = replace(machine, port=closed)  # nobody is there without the command
        if way == "ProxyCommand":
            lines += [f"  ProxyCommand {' '.join(command)}\n"]
        elif way != "ProxyJump":
            machine = replace(machine, proxy=command)
        (tmp_path / ".ssh" / "config").write_text("".join(lines))

        async def work() -> None:
            remote = Remote(bundle, OPTIONS)
            await remote.ready(machine, 20.0)
            await remote.close()
            await asyncio.to_thread(until, lambda: not relays())

        asyncio.run(work())
        assert (inner.home / ".seerd" / "digits-1" / "agent.sock").exists()


def relays() -> list[psutil.Process]:
    """Those that are left."""
    return [child for child in psutil.Process().children() if "relay.py" in str(child.cmdline())]


def test_a_partition_is_noticed_by_the_reader(server: Sshd, bundle: Bundle) -> None:
    """Everything between us stops without a word: a relay in the middle swallows it."""

    async def relay(
        swallow: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                if not swallow.is_set():
                    sink.write(data)

        try:
            await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)
        finally:
            back.close()
            writer.close()

    async def work(remote: Remote) -> None:
        swallow = asyncio.Event()
        async with await asyncio.start_server(
            lambda r, w: relay(swallow, r, w), "127.0.0.1", 0
        ) as middle:
            machine = replace(server.machine(), port=middle.sockets[0].getsockname()[1])
            await remote.ready(machine, 20.0)
            reader, _ = await remote.connect(machine)
            swallow.set()
            async with asyncio.timeout(10.0):
                with pytest.raises(OSError, match="was lost"):
                    await reader.readline()
            await remote.forget(machine.name)

    with_remote(bundle, work, keepalive_s=0.2)


@pytest.mark.parametrize("key", [True, False])
def test_only_keys_are_shown_and_the_agent_of_the_user_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bool
) -> None:
    """For a machine that the run has launched, and for one that the user's configuration names."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    new_key(tmp_path / "user")
    configured = tmp_path / "config"
    configured.write_text("Host *\n  ForwardAgent yes\n  PreferredAuthentications password\n")
    machine = RemoteMachine("it", "127.0.0.1", "me", key=tmp_path / "user" if key else None)
    chosen = {"config": str(configured)} | _identity(machine)
    options = asyncssh.SSHClientConnectionOptions(**chosen)
    assert options.preferred_auth == ["publickey"]
    assert options.agent_forward_path is None
