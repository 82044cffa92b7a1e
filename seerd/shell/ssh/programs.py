"""A program on a machine, for as long as somebody wants it.

The one rule: whoever gives a program up does not wait for it to end. sshd closes its side of a
channel only when the program has ended, and one that hangs, or a setup command of minutes, never
would in time. It may go on meanwhile: only for machines that are then ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncssh


@contextlib.asynccontextmanager
async def running(
    connection: asyncssh.SSHClientConnection, command: str
) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
    """This shell command there. Who leaves the block in good order waits for its end, others end
    its standard input and go.
    """
    process = await connection.create_process(command, encoding=None)
    try:
        yield process
    except BaseException:
        process.channel.abort()
        raise
    process.close()
    await process.wait_closed()
