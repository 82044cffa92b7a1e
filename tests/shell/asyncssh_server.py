"""An SSH server on loopback for machines without OpenSSH's, which asyncssh brings along:
`python asyncssh_server.py FOLDER PORT AUTHORIZED`. Its host key and the home folder are in FOLDER.

The one rule: it does what sshd does for whoever logs in with a key of AUTHORIZED: programs with a
session of their own, and ways to Unix sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import asyncssh

from seerd.agent.gpu_leases import ELSEWHERE

CHUNK = 1 << 16
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class Server(asyncssh.SSHServer):
    """Lets whoever is logged in reach Unix sockets."""

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True


async def serve(folder: Path, port: int, authorized: str) -> None:
    """Serve until this process is ended."""
    user = getpass.getuser()
    env = {"HOME": str(folder / "home"), "USER": user, "PATH": SYSTEM_PATH}
    env[ELSEWHERE] = str(folder / "gpus")

    async def run(session: asyncssh.SSHServerProcess[bytes]) -> None:
        program = await asyncio.create_subprocess_shell(
            session.command or "",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd="/",
            env=env,
            start_new_session=True,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        feeding = asyncio.create_task(copy(session.stdin, program.stdin))
        await asyncio.gather(
            copy(program.stdout, session.stdout), copy(program.stderr, session.stderr)
        )
        session.exit(await program.wait())
        await feeding

    server = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=Server,
        process_factory=run,
        encoding=None,
        server_host_keys=[str(folder / "host")],
        authorized_client_keys=authorized,
    )
    await server.wait_closed()


async def copy(
    source: asyncio.StreamReader | asyncssh.SSHReader[bytes],
    sink: asyncio.StreamWriter | asyncssh.SSHWriter[bytes],
) -> None:
    """Copy until the source ends, or one of the two is gone; the sink is told of the end."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
