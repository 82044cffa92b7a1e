"""Running one program on a machine over SSH.

The one rule: whoever gives up on a program does not wait for its end. sshd closes its side of a
channel only when the program has ended, which may take minutes (a setup command) or for ever (a
program that hangs). The program may run on meanwhile, so use this only on machines that are ended
afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncssh


@contextlib.asynccontextmanager
async def running(
    connection: asyncssh.SSHClientConnection, command: str
) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
    """Run a shell command on the machine, for the length of the block. If the block ends normally,
    wait for the command's end; if it raises, close the channel and go on at once.
    """
    process = await connection.create_process(command, encoding=None)
    try:
        yield process
    except BaseException:
        process.channel.abort()
        raise
    process.close()
    await process.wait_closed()
