"""Who has which GPUs of the hosts. It only looks; that takes the agent's zip, which stays in their
cache.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from seerd.backends.backend import PYTHON, GpuUse
from seerd.backends.bundle import build_agent
from seerd.backends.hosts.provider import SshHost
from seerd.backends.ssh.connecting import UnreachableError, open_connection
from seerd.backends.ssh.pushing import Bundle, PackedBundle, RemoteTask, pack, run_remote_task
from seerd.backends.ssh.remote import AT_ONCE
from seerd.errors import SeerdError


async def of_hosts(hosts: Sequence[SshHost]) -> list[GpuUse]:
    """Ask every host. One that cannot be asked has the reason."""
    packed, few = await asyncio.to_thread(_packed), asyncio.Semaphore(AT_ONCE)

    async def ask(host: SshHost) -> GpuUse:
        async with few:
            return await _asked(host, packed)

    return list(await asyncio.gather(*map(ask, hosts)))


def _packed() -> PackedBundle:
    """Make what hosts need to answer: the agent's zip, and no source."""
    with tempfile.TemporaryDirectory(prefix="seerd-") as folder:
        zip_, source = Path(folder, "agent.pyz"), Path(folder, "source")
        source.mkdir()
        build_agent(zip_)
        return pack(Bundle(zip_, source))


async def _asked(host: SshHost, packed: PackedBundle) -> GpuUse:
    try:
        connection = await open_connection(host.machine)
    except UnreachableError as error:
        return GpuUse(host.name, why=str(error))
    try:
        task = RemoteTask("gpus", "none", PYTHON, {})
        return GpuUse(host.name, await run_remote_task(connection, task, packed))
    except (UnreachableError, SeerdError, KeyError, TypeError, ValueError) as error:
        return GpuUse(host.name, why=str(error))
    finally:
        connection.abort()
