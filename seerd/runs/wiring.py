"""From a spec to what a run acts on: instances, stores, the job as agents are told of it.

The one rule: what a resumed run needs of this is a value, `Setup`, that is kept in the run's folder; building the world from it asks nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from seerd.agent.protocol import Download, Expected, Job
from seerd.core.events import RunFacts
from seerd.core.rules import RULES
from seerd.errors import JournalError, UsageError
from seerd.planning.facts import MachineSlots, RentedOffer, local_slots, types_of
from seerd.planning.machine import this_machine
from seerd.shell.bundle import agent_for
from seerd.shell.collecting import Collector, Printed, Source
from seerd.shell.home import RunFolder
from seerd.shell.policy import PolicyProcess
from seerd.shell.providers.base import Provider
from seerd.shell.providers.ec2 import Ec2Provider
from seerd.shell.providers.ec2_request import Ec2Settings
from seerd.shell.providers.hosts import HostsProvider, SshHost
from seerd.shell.providers.local import LocalProvider
from seerd.shell.ssh.remote import AgentOptions, Cargo, Remote
from seerd.shell.stores.base import Store
from seerd.shell.stores.directory import DirectoryStore
from seerd.shell.stores.s3 import S3Store
from seerd.shell.world import RunEnvironment
from seerd.spec.spec import Spec
from seerd.spec.values import Data

GRACE_S = 10.0
CHECKPOINT_EVERY_S = 10.0
MARGIN_S = 600.0
"""From the deadline until whatever is left of a run switches itself off, whoever lives: long after every orderly end, and longer than the five
minutes before a scheduled power-off in which Linux lets nobody log in any more (shutdown(8)).
"""
BOOT_S = 420.0
"""An instance whose agent does not answer so long after it was asked for is given back."""
FREE_BYTES = 2 << 30
"""The least that a healthy instance has free: a few checkpoints and logs."""
SOURCE = "source"
"""Where the user's source is pushed, in the agent's folder."""


class Setup(msgspec.Struct, frozen=True):
    """What the daemon needs beyond the journal, kept as `setup.json` in the run's folder. Exactly one of `local`, `hosts` and `ec2` is there.

    store  a directory, or s3://bucket/prefix
    until  when the run's URLs and instances end at the latest, wall clock, seconds since 1970
    """

    job: Job
    store: str
    until: float
    local: MachineSlots | None = None
    hosts: tuple[SshHost, ...] = ()
    ec2: Ec2Settings | None = None
    data: tuple[Data, ...] = ()


def check_runnable(spec: Spec) -> None:
    """Raise `UsageError` for what the spec may say but cannot be run."""
    provider, store, more = spec.cluster.provider, spec.cluster.store, spec.cluster.more
    if provider == "local" and spec.train.data:
        raise UsageError(
            "train.data is for rented instances; on this machine, name the folder in the script or in train.args"
        )
    if provider == "local" and store is not None and store.startswith("s3://"):
        raise UsageError(f"on this machine checkpoints are kept in a directory, not in {store}")
    if provider == "ec2" and not (store or "").startswith("s3://"):
        raise UsageError('instances keep checkpoints in S3: add store = "s3://bucket/prefix" to [cluster]')
    if provider == "ec2" and "image" not in more:
        raise UsageError(
            'which image do the instances boot? Add to [cluster] image = "ami-...", or a public one with driver and torch, for example\n'
            '  image = "ssm:/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"\n'
            "`seerd image build` makes one of your own that boots faster."
        )
    if provider == "hosts" and store is None:
        raise UsageError(
            'hosts need a place for checkpoints that all of them reach: add store = "s3://bucket/prefix" to [cluster], or a directory that all '
            "of them and this machine have mounted under the same path"
        )


def setup_of(spec: Spec, folder: RunFolder, allocations: list[int], lease: RentedOffer | None, until: float) -> Setup:
    """What is kept of a new run beside its journal."""
    cluster = spec.cluster
    store = _store_of(spec, folder)
    if cluster.provider == "local":
        slots = local_slots(cluster.gpus, this_machine())
        job = _job(spec, str(folder.source.resolve()), store, allocations, slots.threads)
        return Setup(job, store, until, local=slots)
    threads = lease.threads if lease else 0
    job = _job(spec, SOURCE, "" if store.startswith("s3://") else store, allocations, threads)
    if cluster.provider == "hosts":
        hosts = tuple(SshHost(h.address, h.user, h.port, h.gpus, h.cuda) for h in cluster.more["hosts"])
        return Setup(job, store, until, hosts=hosts, data=spec.train.data)
    assert lease is not None
    return Setup(job, store, until, ec2=_ec2_of(spec, folder, lease, until), data=spec.train.data)


def save(setup: Setup, folder: RunFolder) -> None:
    """Keep it in the run's folder."""
    folder.setup.write_bytes(msgspec.json.encode(setup, enc_hook=str))


def load(folder: RunFolder) -> Setup:
    """As it was kept. Raises `JournalError` if it is not there, or not whole."""
    try:
        setup = msgspec.json.decode(folder.setup.read_bytes(), type=Setup, dec_hook=lambda kind, value: kind(value))
    except (OSError, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise JournalError(f"{folder.run} cannot go on: its {folder.setup.name} cannot be read: {error}") from error
    if [setup.local is not None, bool(setup.hosts), setup.ec2 is not None].count(True) != 1:
        raise JournalError(f"{folder.run} cannot go on: its {folder.setup.name} does not say where it runs")
    return setup


def prolonged(setup: Setup, until: float) -> Setup:
    """For a run that was interrupted and goes on: what it rents from now on ends later."""
    ec2 = None if setup.ec2 is None else replace(setup.ec2, hard_end=until)
    return msgspec.structs.replace(setup, until=until, ec2=ec2)


def world_of(setup: Setup, folder: RunFolder, facts: RunFacts) -> RunEnvironment:
    """What the run acts on."""
    folder.instances.mkdir(mode=0o700, exist_ok=True)
    store = _store(setup, folder.run)
    provider, printed = _provider(setup, folder)
    return RunEnvironment(
        provider=provider,
        store=store,
        policy=PolicyProcess(facts.problem),
        job=setup.job,
        run=folder.run,
        metric=facts.metric,
        result=folder.best,
        rented=setup.ec2 is not None,
        expected=_expected(setup),
        data=_data(setup, store, folder.run),
        collector=None if printed is None else Collector(printed, folder.instances),
    )


def _store_of(spec: Spec, folder: RunFolder) -> str:
    store = spec.cluster.store
    if store is not None and store.startswith("s3://"):
        return store
    return str(folder.store.resolve() if store is None else (Path(store) / folder.run).resolve())


def _job(spec: Spec, source: str, store: str, allocations: list[int], threads: int) -> Job:
    here = spec.cluster.provider == "local"
    return Job(
        source=source,
        script=spec.train.script,
        args=list(spec.train.args),
        launcher=spec.train.launcher,
        python=spec.train.python or (sys.executable if here else "python3"),
        env=dict(spec.train.env),
        setup=list(spec.train.setup),
        store=store,
        metric=spec.metric.name,
        mode=spec.metric.mode,
        allocations=allocations,
        threads=threads,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
    )


def _ec2_of(spec: Spec, folder: RunFolder, lease: RentedOffer, until: float) -> Ec2Settings:
    more = spec.cluster.more
    spot = more.get("market") == "spot"
    return Ec2Settings(
        run=folder.run,
        name=spec.name,
        owner=lease.owner,
        region=more.get("region"),
        instance_types=types_of(spec),
        gpus=lease.offer.gpus,
        market="spot" if spot else "on-demand",
        image=more["image"],
        subnets=more.get("subnets", ()),
        security_groups=more.get("security_groups", ()),
        key=more.get("key"),
        address=more.get("address", "private"),
        volume_gb=more.get("volume_gb"),
        tags=more.get("tags", {}),
        max_usd_per_h=lease.offer.usd_per_h if spot else None,
        hard_end=until,
        boot_s=BOOT_S,
        keys=folder.path / "keys",
    )


def _provider(setup: Setup, folder: RunFolder) -> tuple[Provider, Source | None]:
    """With the way to what trials print, where that is elsewhere."""
    if setup.local is not None:
        slots = setup.local
        local = LocalProvider(
            folder=folder.instances,
            run=folder.run,
            bundle=agent_for(folder.agent),
            gpus=slots.gpus,
            cuda=slots.cuda,
            lease_s=RULES.lease_s,
            grace_s=GRACE_S,
        )
        return local, None
    remote = Remote(Cargo(agent_for(folder.agent), folder.source), _agent_options(setup, folder))
    provider = HostsProvider(setup.hosts, remote) if setup.ec2 is None else Ec2Provider(setup.ec2, remote)

    async def printed(instance: str, after: float) -> Printed | None:
        machine = provider.machine(instance)
        found = await remote.printed(machine, after)
        return None if found is None else Printed(machine.name, *found)

    return provider, printed


def _agent_options(setup: Setup, folder: RunFolder) -> AgentOptions:
    rented = setup.ec2 is not None
    return AgentOptions(
        run=folder.run,
        gpus=setup.ec2.gpus if setup.ec2 is not None else min(host.gpus for host in setup.hosts),
        cuda=rented or all(host.cuda for host in setup.hosts),
        lease_s=RULES.lease_s,
        grace_s=GRACE_S,
        power_off=rented,
        spot=setup.ec2 is not None and setup.ec2.market == "spot",
        python="python3",
    )


def _store(setup: Setup, run: str) -> Store:
    if not setup.store.startswith("s3://"):
        return DirectoryStore(Path(setup.store))
    return S3Store(setup.store, run, setup.until, _region(setup))


def _data(setup: Setup, store: Store, run: str) -> Callable[[], Awaitable[list[Download]]] | None:
    if not setup.data:
        return None
    source = store if isinstance(store, S3Store) else S3Store(setup.data[0].source, run, setup.until, _region(setup))

    async def listed() -> list[Download]:
        return [item for data in setup.data for item in await source.downloads(data.source, data.to)]

    return listed


def _region(setup: Setup) -> str | None:
    return setup.ec2.region if setup.ec2 is not None else None


def _expected(setup: Setup) -> Expected | None:
    """What is looked at where somebody pays, or where GPUs were promised."""
    if setup.local is not None:
        return None
    torch = setup.job.launcher != "command"
    return Expected(gpus=0, free_bytes=FREE_BYTES, torch=torch)
