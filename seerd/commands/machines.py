"""`seerd machines`: who has which GPUs, on this machine or on the hosts of a spec.

The one rule: it only looks. On hosts that takes the agent's zip, which stays in their cache.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from seerd.agent.gpu_leases import LeaseFolderError
from seerd.agent.gpu_report import report
from seerd.commands.common import SpecOptions, tell
from seerd.errors import SeerdError, UsageError
from seerd.spec.clusters import Cluster, HostsCluster
from seerd.telling.machines_table import machines_table
from seerd.telling.plan_json import Json

if TYPE_CHECKING:
    from seerd.backends.hosts.provider import SshHost
    from seerd.backends.ssh.pushing import PackedBundle

HERE = "this machine"
PYTHON = "python3"


def machines(options: SpecOptions | None, *, json: bool) -> None:
    """Tell who has which GPUs. A machine that cannot be asked is told with the reason.

    Raises `UsageError` for a spec whose instances are rented, `SpecError` for one that cannot be
    read.
    """
    cluster = None if options is None else _cluster(options)
    tell({"machines": _asked(cluster)}, machines_table, json=json)


def _cluster(options: SpecOptions) -> Cluster:
    return options.load_group().lead.cluster if options.is_group else options.load().cluster


def _asked(cluster: Cluster | None) -> list[Json]:
    if cluster is None or cluster.here:
        return [_here()]
    if cluster.rented:
        raise UsageError("instances of ec2 are rented for one run alone, so nobody shares them")
    return asyncio.run(_hosts(cast("HostsCluster", cluster)))


def _here() -> Json:
    try:
        return _row(HERE, report())
    except LeaseFolderError as error:
        return _unasked(HERE, str(error))


async def _hosts(cluster: HostsCluster) -> list[Json]:
    from seerd.backends.ssh.remote import AT_ONCE
    from seerd.runs.clusters import hosts_of

    packed, few = await asyncio.to_thread(_packed), asyncio.Semaphore(AT_ONCE)

    async def ask(host: SshHost) -> Json:
        async with few:
            return await _asked_host(host, packed)

    return list(await asyncio.gather(*map(ask, hosts_of(cluster))))


def _packed() -> PackedBundle:
    """Make what hosts need to answer: the agent's zip, and no source."""
    from seerd.backends.ssh.pushing import Bundle, pack
    from seerd.shell.bundle import build_agent

    with tempfile.TemporaryDirectory(prefix="seerd-") as folder:
        zip_, source = Path(folder, "agent.pyz"), Path(folder, "source")
        source.mkdir()
        build_agent(zip_)
        return pack(Bundle(zip_, source))


async def _asked_host(host: SshHost, packed: PackedBundle) -> Json:
    from seerd.backends.ssh.connecting import UnreachableError, open_connection
    from seerd.backends.ssh.pushing import RemoteTask, run_remote_task

    try:
        connection = await open_connection(host.machine)
    except UnreachableError as error:
        return _unasked(host.name, str(error))
    try:
        task = RemoteTask("gpus", "none", PYTHON, {})
        return _row(host.name, await run_remote_task(connection, task, packed))
    except (UnreachableError, SeerdError, KeyError, TypeError, ValueError) as error:
        return _unasked(host.name, str(error))
    finally:
        connection.abort()


def _row(name: str, told: dict[str, Any]) -> Json:
    now = float(told["now"])
    for one in [*told["gpus"], *told["runs"]]:
        since = one.pop("since")
        one["for_s"] = None if since is None else round(max(0.0, now - float(since)), 3)
    return {"machine": name, "gpus": told["gpus"], "runs": told["runs"], "why": ""}


def _unasked(name: str, why: str) -> Json:
    return {"machine": name, "gpus": [], "runs": [], "why": why}
