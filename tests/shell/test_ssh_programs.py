"""Programs on a machine over SSH that somebody gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from seerd.backends.ssh import pushing
from seerd.backends.ssh.connecting import open_connection
from seerd.backends.ssh.workbench import running
from seerd.errors import ProviderError
from tests.shell.sshd import Sshd, sshds

REMOTE_S = 30


@pytest.fixture
def server() -> Iterator[Sshd]:
    with sshds(1) as (server,):
        yield server


@pytest.mark.parametrize("after_s", [0.05, 0.3])
def test_whoever_gives_a_program_up_does_not_wait_for_its_end(server: Sshd, after_s: float) -> None:
    async def given_up() -> float:
        connection = await open_connection(server.machine())

        async def work() -> None:
            async with running(connection, f"sleep {REMOTE_S}") as process:
                await process.wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(after_s)
        task.cancel()
        began = time.monotonic()
        await asyncio.wait([task])
        took_s = time.monotonic() - began
        assert task.cancelled()
        again = await connection.run("echo still here")
        assert again.stdout == "still here\n", "the connection is as good as before"
        connection.abort()
        return took_s

    assert asyncio.run(given_up()) < REMOTE_S / 3


def test_a_line_without_end_is_no_answer() -> None:
    most = 2 * pushing.CHUNK

    async def said(size: int, *, ends: bool) -> int:
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(size) + (b"\n" if ends else b""))
        reader.feed_eof()
        return len(await pushing._Lines(reader, most).next())  # type: ignore[arg-type]

    assert asyncio.run(said(most - 1, ends=True)) == most
    for ends in (True, False):
        with pytest.raises(ProviderError, match="more than any answer"):
            asyncio.run(said(4 * most, ends=ends))
