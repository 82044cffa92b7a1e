"""Programs that run as root on machines that are being installed: on an SSH server in this process,
whose `sudo` is a script that says who it would be.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tarfile
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import pytest

from seerd.backends.ssh import connecting, pushing
from seerd.backends.ssh.connecting import RemoteMachine
from seerd.backends.ssh.workbench import Workbench
from seerd.clock import unlimited
from seerd.errors import ProviderError
from tests.shell.asyncssh_server import copy
from tests.shell.place import holds
from tests.shell.sshd import new_key

SUDO = '#!/bin/sh\n[ "$1" = -n ] || exit 9\nshift\n[ -e "$ROOT" ] || { cat "$0.says" >&2; exit 1; }\nexec "$@"\n'


@dataclass
class Server:
    """One machine. `root`: while this file is there, `sudo` obeys; `commands`: what was run."""

    folder: Path
    port: int = 0
    commands: list[str] = field(default_factory=list)
    open: list[asyncssh.SSHServerConnection] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def refuses(self, text: str) -> None:
        """From now on `sudo` says this, and does nothing."""
        self.root.unlink(missing_ok=True)
        (self.folder / "bin" / "sudo.says").write_text(text)

    def machine(self) -> RemoteMachine:
        host_key = (self.folder / "host.pub").read_text()
        key = self.folder / "user"
        return RemoteMachine("i-1", "127.0.0.1", "me", self.port, (host_key,), key)

    async def serve(self, session: asyncssh.SSHServerProcess[bytes]) -> None:
        self.commands.append(session.command or "")
        self.open.append(session.channel.get_connection())
        env = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "ROOT": str(self.root)}
        streams = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
        program = await asyncio.create_subprocess_shell(
            f"exec {session.command}", env=env, start_new_session=True, **streams
        )
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        feeding = asyncio.create_task(copy(session.stdin, program.stdin))
        try:
            await asyncio.gather(
                tell(program.stdout, session.stdout), tell(program.stderr, session.stderr)
            )
            status = await program.wait()
        finally:
            feeding.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            await program.communicate()
        if status < 0:
            session.exit_with_signal({-9: "KILL"}[status])
        else:
            session.exit(status)


async def tell(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    """Copy until the source ends; the sink stays open, since the other one has the same end."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(1 << 16):
            sink.write(data)


def play(
    folder: Path, scenario: Callable[[Server, Workbench], Awaitable[None]], **timings: float
) -> None:
    """A machine whose `sudo` obeys, and a workbench that has no connection to it yet."""

    async def run() -> None:
        server = Server(folder)
        (folder / "bin").mkdir()
        (folder / "bin" / "sudo").write_text(SUDO)
        (folder / "bin" / "sudo").chmod(0o755)
        server.root.touch()
        for name in ("host", "user"):
            new_key(folder / name)
        listening = await asyncssh.listen(
            "127.0.0.1",
            0,
            process_factory=server.serve,
            encoding=None,
            server_host_keys=[str(folder / "host")],
            authorized_client_keys=str(folder / "user.pub"),
        )
        server.port = listening.get_port()
        bench = Workbench(**timings)
        try:
            async with asyncio.timeout(30):
                await scenario(server, bench)
        finally:
            await bench.close()
            listening.close()

    asyncio.run(run())


def test_a_program_runs_as_root_with_its_text_on_its_input_alone(tmp_path: Path) -> None:
    async def scenario(server: Server, bench: Workbench) -> None:
        await bench.ready(server.machine(), 10.0)
        lines: list[str] = []
        program = "echo one; echo two >&2; cat; printf 'thr\\xffee\\r\\nend'; exit 7"
        assert await bench.run("i-1", program, lines.append) == 7
        assert lines == ["one", "two", "thr\ufffdee", "end"]
        assert await bench.run("i-1", "true", lines.append) == 0
        assert server.commands[0] == "sudo -n true"
        assert not any("echo" in command for command in server.commands)
        assert bench.lease_s is unlimited

    play(tmp_path, scenario)


def test_a_program_that_is_killed_or_whose_machine_goes_is_no_exit_status(tmp_path: Path) -> None:
    async def scenario(server: Server, bench: Workbench) -> None:
        await bench.ready(server.machine(), 10.0)
        lost = "the SSH connection to i-1 was lost: "
        with pytest.raises(ProviderError, match=f"{lost}the program was ended by SIGKILL"):
            await bench.run("i-1", "kill -9 $$", lambda line: None)
        with pytest.raises(ProviderError, match=lost):
            await bench.run("i-1", "echo up; sleep 30", lambda line: server.open[-1].abort())
        with pytest.raises(ProviderError, match=lost):
            await bench.run("i-1", "true", lambda line: None)
        with pytest.raises(ProviderError, match=lost):
            await bench.send("i-1", server.folder / "host", "/tmp")

    play(tmp_path, scenario)


def test_what_is_sent_is_unpacked_in_its_folder_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "CHUNK", 4096)
    archive, to = tmp_path / "a.tar", tmp_path / "to" / "there"
    (tmp_path / "big").write_bytes(b"x" * 10_000)
    with tarfile.open(archive, "w") as packed:
        packed.add(tmp_path / "big", "in/big")

    async def scenario(server: Server, bench: Workbench) -> None:
        await bench.ready(server.machine(), 10.0)
        await bench.send("i-1", archive, str(to))
        assert (to / "in" / "big").read_bytes() == b"x" * 10_000
        await bench.send("i-1", archive, str(to))
        archive.write_bytes(b"no archive" * 1000)
        with pytest.raises(ProviderError) as refused:
            await bench.send("i-1", archive, str(to))
        assert str(refused.value).startswith(f"i-1 could not unpack what was sent to {to}: tar: ")
        assert "\n" not in str(refused.value)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("sudo:  a password\nis required", "does not let root's work be done: sudo: a password is"),
        ("System is booting up.", "it is still booting (pam_nologin): System is booting up."),
        ("x" * 500, f"root's work be done: {'x' * connecting.SHOWN}"),
    ],
)
def test_a_machine_that_lets_nobody_be_root_is_waited_for_and_then_told(
    tmp_path: Path, says: str, why: str
) -> None:
    async def scenario(server: Server, bench: Workbench) -> None:
        server.refuses(says)
        with pytest.raises(ProviderError) as refused:
            await bench.ready(server.machine(), 3.0)
        told = str(refused.value)
        where = f"i-1 (me@127.0.0.1:{server.port}) could not be reached over SSH within 3s: "
        assert told.startswith(where)
        assert why in told
        assert len(server.commands) > 1
        tries = len(server.commands)
        with pytest.raises(ProviderError):
            await bench.ready(server.machine(), 0.0)
        assert len(server.commands) == tries + 1
        waiting = asyncio.create_task(bench.ready(server.machine(), 20.0))
        await holds(lambda: len(server.commands) == tries + 3)
        server.root.touch()
        await waiting
        assert await bench.run("i-1", "true", lambda line: None) == 0

    play(tmp_path, scenario, longest_wait_s=0.1)


def test_a_machine_without_a_server_is_told_at_once_where_no_wait_would_help(
    tmp_path: Path,
) -> None:
    async def scenario(server: Server, bench: Workbench) -> None:
        bad = RemoteMachine(
            "i-1", "127.0.0.1", "me", server.port, ("ssh-ed25519 !",), server.folder / "user"
        )
        with pytest.raises(ProviderError, match="a key cannot be read"):
            await bench.ready(bad, 3600.0)

    play(tmp_path, scenario)


def test_there_is_no_agent_and_who_is_forgotten_hears_no_more(tmp_path: Path) -> None:
    async def scenario(server: Server, bench: Workbench) -> None:
        machine = server.machine()
        for work in (bench.connect(machine), bench.end_agent(machine, 1.0)):
            with pytest.raises(ProviderError, match="i-1 has no agent: it is being installed"):
                await work
        await bench.ready(machine, 10.0)
        connection = bench._connections["i-1"]
        await bench.forget("i-1")
        await connection.wait_closed()
        assert bench._connections == {}
        await bench.forget("i-1")
        await bench.ready(machine, 10.0)
        connection = bench._connections["i-1"]
        await bench.close()
        await connection.wait_closed()
        assert bench._connections == {}

    play(tmp_path, scenario)
