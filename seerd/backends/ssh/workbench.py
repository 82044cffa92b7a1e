"""Runs programs as root over SSH on machines that are being installed. A program and its values
come on standard input: everybody on the machine could read a command line.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import asyncssh

from seerd.backends.ssh.connecting import (
    BOOTING,
    LONGEST_WAIT_S,
    OnFailure,
    RemoteMachine,
    UnreachableError,
    ignore,
    open_connection,
    reach,
)
from seerd.backends.ssh.pushing import chunks, output_of
from seerd.backends.ssh.remote import TunnelReader, TunnelWriter
from seerd.clock import unlimited
from seerd.errors import ProviderError

# The whole program is read before any of it runs: a command in it that reads standard input would
# otherwise swallow the rest of the program.
_ROOT = "sudo -n /bin/bash -c 'program=$(cat); exec </dev/null 2>&1; eval \"$program\"'"


class Workbench:
    """The machines that are being installed, one connection each. Methods raise `ProviderError`."""

    def __init__(self, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        self._longest_wait_s = longest_wait_s
        self.lease_s: Callable[[], float] = unlimited
        self._connections: dict[str, asyncssh.SSHClientConnection] = {}

    async def ready(
        self, machine: RemoteMachine, patience_s: float, on_failure: OnFailure = ignore
    ) -> None:
        """Wait until commands can be run there as root, for up to `patience_s` seconds."""
        longest_s = self._longest_wait_s
        let_in = partial(_let_in, machine)
        connection = await reach(machine, patience_s, let_in, longest_s, on_failure)
        self._connections[machine.name] = connection

    async def connect(self, machine: RemoteMachine) -> tuple[TunnelReader, TunnelWriter]:
        """Raise `ProviderError`: a machine that is being installed has no agent."""
        raise ProviderError(f"{machine.name} has no agent: it is being installed")

    async def end_agent(self, machine: RemoteMachine, grace_s: float) -> None:
        raise ProviderError(f"{machine.name} has no agent: it is being installed")

    async def run(self, name: str, program: str, print_line: Callable[[str], None]) -> int:
        """Run this bash program as root, print its lines, and return its exit status."""
        try:
            async with running(self._connections[name], _ROOT) as process:
                process.stdin.write(program.encode())
                process.stdin.write_eof()
                async for line in process.stdout:
                    print_line(line.decode(errors="replace").rstrip("\r\n"))
                return _status(name, await process.wait())
        except (OSError, asyncssh.Error) as error:
            raise _lost(name, error) from error

    async def send(self, name: str, archive: Path, to: str) -> None:
        """Unpack a tar file there, as root, into the folder `to`, which is made if missing."""
        command = f'sudo -n /bin/sh -c \'mkdir -p "{to}" && tar -x --no-same-owner -f - -C "{to}"\''
        try:
            async with running(self._connections[name], command) as process:
                async for chunk in chunks(archive):
                    process.stdin.write(chunk)
                    await process.stdin.drain()
                process.stdin.write_eof()
                ended = await process.wait()
        except (OSError, asyncssh.Error) as error:
            raise _lost(name, error) from error
        if _status(name, ended):
            raise ProviderError(
                f"{name} could not unpack what was sent to {to}: {output_of(ended)}"
            )

    async def forget(self, name: str) -> None:
        if (connection := self._connections.pop(name, None)) is not None:
            connection.abort()

    async def close(self) -> None:
        for name in list(self._connections):
            await self.forget(name)


async def _let_in(machine: RemoteMachine) -> asyncssh.SSHClientConnection:
    """Connect once and try a command as root. Raises `UnreachableError`."""
    connection = await open_connection(machine)
    try:
        ended = await connection.run("sudo -n true", encoding=None, stdin=asyncssh.DEVNULL)
        if ended.exit_status == 0:
            return connection
        output = output_of(ended)
    except (OSError, asyncssh.Error) as error:
        output = str(error) or type(error).__name__
    with contextlib.suppress(OSError, asyncssh.Error):
        connection.abort()
    raise UnreachableError(
        f"it is still booting (pam_nologin): {output}"
        if BOOTING.search(output)
        else f"it does not let root's work be done: {output}"
    )


def _status(name: str, ended: asyncssh.SSHCompletedProcess) -> int:
    if ended.exit_signal:
        raise _lost(name, f"the program was ended by SIG{ended.exit_signal[0]}")
    if ended.exit_status is None:
        raise _lost(name, "it closed the connection")
    return ended.exit_status


def _lost(name: str, why: object) -> ProviderError:
    return ProviderError(f"the SSH connection to {name} was lost: {why}")


@contextlib.asynccontextmanager
async def running(
    connection: asyncssh.SSHClientConnection, command: str
) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
    """Run a shell command on the machine for the length of the block. If the block raises, close
    the channel and go on at once: sshd closes its side only when the program has ended, which may
    be never. The program may run on, so use this only on machines that are ended afterwards.
    """
    process = await connection.create_process(command, encoding=None)
    try:
        yield process
    except BaseException:
        process.channel.abort()
        raise
    process.close()
    await process.wait_closed()
