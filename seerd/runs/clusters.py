"""What depends on the kind of a cluster: one class for each kind.

The one rule: only this module asks which kind it is. What takes time to import is imported by the
methods that need it, since `seerd plan` asks no cloud and opens no connection.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from seerd.agent.arguments import fixed_environment
from seerd.errors import CloudError, UsageError
from seerd.planner.clouds import (
    INSTANCE_TYPES,
    ORPHAN_SPARE_S,
    PAPERS_TYPE,
    PRICES_AS_OF,
    RENTED_TERMINATE_S,
    UNPRICED_GPUS,
)
from seerd.planner.model import ClusterFacts
from seerd.planner.stages import instances_for
from seerd.planning.facts import Intended, Machine, MachineSlots, Place, Quote
from seerd.planning.machine import this_machine
from seerd.shell.home import Home, RunFolder
from seerd.shell.source_copy import CopyTerms, Say, links_out
from seerd.spec.clusters import Cluster, Ec2Cluster, HostsCluster, LocalCluster
from seerd.spec.program import why_no_python
from seerd.spec.spec import Spec
from seerd.spec.stores import WRITTEN
from seerd.stores.by_address import by_address

if TYPE_CHECKING:
    from seerd.backends.ec2.request import Ec2Settings
    from seerd.backends.hosts.provider import SshHost
    from seerd.runs.wiring import Setup, Site

UNBOUNDED = 8
"""GPUs of an instance if their number is not known: those of the papers' machines."""
THE_SPEC = "the spec says so"
"""The source of a price that the person has given."""
SOURCE = "source"
"""The folder in the agent's folder that the user's source is pushed to."""
PYTHON = "python3"
"""The interpreter on machines other than this one, if the spec names none."""

C = TypeVar("C", bound=Cluster)


@dataclass(frozen=True)
class ClusterKind(ABC, Generic[C]):
    """A cluster as a spec asks for it, with all that depends on its kind.

    The methods stand in the order in which a run that begins calls them; a resumed one calls only
    the last two, and `why_not` is for a job that comes while a run goes on, too.
    """

    python: ClassVar[str] = PYTHON  # the interpreter of its trials, if the spec names none
    # whether they run on other machines, where links of the source lead nowhere
    elsewhere: ClassVar[bool] = True
    cluster: C

    @abstractmethod
    def check(self, spec: Spec) -> None:
        """Check that the spec can be run on this cluster. Raises `UsageError` if not."""

    @classmethod
    def why_not(cls, spec: Spec) -> str | None:  # noqa: ARG003
        """Say why a job cannot be run on such a cluster, whatever its spec says of one; None: it
        can.
        """
        return None

    @classmethod
    def python_in(cls, spec: Spec) -> str:  # noqa: ARG003
        """Return the folder that a relative `train.python` is relative to; empty: the source, as
        it is on other machines.
        """
        return ""

    @abstractmethod
    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        """Name the machines that trials run on, as profiles do, the preferred one first.

        machine  this machine
        """

    @abstractmethod
    def unasked_quote(self, machine: Machine | None) -> Quote:
        """Return what the cluster offers, without asking anybody. Raises `UsageError` if it cannot
        be.

        machine  this machine; None: one with as many GPUs as the plan likes
        """

    def quote(self, machine: Machine, home: Home) -> Quote:
        """Return what the cluster offers, after asking its cloud if it has one.

        Raises `CloudError` if the cloud refuses to tell.
        """
        return self.unasked_quote(machine)

    def check_quota(self, intended: Intended) -> None:
        """Check that the cloud allows the plan's peak. Raises `CloudError` if it does not."""

    def source(self, folder: RunFolder) -> str:
        """Return the folder of the user's source, as agents know it."""
        return SOURCE

    @abstractmethod
    def kept(self, spec: Spec, folder: RunFolder, quote: Quote, until: float) -> Any:
        """Return what a run's folder keeps about the cluster, as `Setup.where`: not empty, of
        `kept_type`.
        """

    @staticmethod
    @abstractmethod
    def kept_type() -> Any:
        """Return the type of what is kept, for msgspec."""

    @staticmethod
    @abstractmethod
    def site(setup: Setup, folder: RunFolder) -> Site:
        """Connect the daemon with the instances of a run, new or resumed."""


class Local(ClusterKind[LocalCluster]):
    """This machine: its CUDA devices if it has any, else CPU slots."""

    python = sys.executable
    elsewhere = False

    def check(self, spec: Spec) -> None:
        """Check that data and checkpoints are on this machine. Raises `UsageError` if not."""
        if self.cluster.store and by_address(self.cluster.store).by_urls:
            raise UsageError(
                f"on this machine checkpoints are kept in a directory, not in {self.cluster.store}"
            )
        if (why := self.why_not(spec)) is not None:
            raise UsageError(f"nothing was started: {why}")

    @classmethod
    def why_not(cls, spec: Spec) -> str | None:
        """Say that data is not on this machine, or that there is no Python for the trials."""
        if spec.train.data:
            return (
                "train.data is for rented instances; on this machine, name the folder in the "
                "script or in train.args"
            )
        if spec.train.launcher == "command" or spec.train.setup:
            return None
        return (
            why_no_python(
                spec.train.python or cls.python,
                spec.folder,
                fixed_environment(spec.train.env, spec.space.names),
                torch=spec.train.launcher == "torchrun",
            )
            or None
        )

    @classmethod
    def python_in(cls, spec: Spec) -> str:
        """Return the spec's folder: an environment is no code, so the one of the project is used,
        not a copy.
        """
        return str(spec.folder.resolve())

    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        """Name the CUDA devices, or how the cores are shared."""
        if machine.cuda_devices:
            return (f"{machine.cuda_devices} x {machine.device or 'CUDA device'}",)
        return (f"{self._gpus(machine)} slots on {machine.cores} CPU cores",)

    def unasked_quote(self, machine: Machine | None) -> Quote:
        """Offer as many GPUs as the spec says, or as the machine has.

        Raises `UsageError` if the spec asks for more CUDA devices than there are.
        """
        if machine is None:
            return Quote(ClusterFacts(billing="held", gpus_per_instance=UNBOUNDED))
        gpus = self._gpus(machine)
        return Quote(
            ClusterFacts(billing="held", gpus_per_instance=gpus, max_instances=1),
            threads=max(1, machine.cores // gpus),
            cuda=machine.cuda_devices > 0,
        )

    def source(self, folder: RunFolder) -> str:
        """Use the source in the run's folder where it is."""
        return str(folder.source.resolve())

    def kept(self, spec: Spec, folder: RunFolder, quote: Quote, until: float) -> MachineSlots:
        """Keep the GPUs that were offered."""
        gpus, weight = quote.facts.gpus_per_instance, self.cluster.weight
        return MachineSlots(gpus, quote.cuda, quote.threads, weight)

    @staticmethod
    def kept_type() -> Any:
        """Return the type of what is kept."""
        return MachineSlots

    @staticmethod
    def site(setup: Setup, folder: RunFolder) -> Site:
        """Start agents in the run's folder."""
        from seerd.backends.local.provider import LocalProvider
        from seerd.core.rules import RULES
        from seerd.runs.wiring import GRACE_S, Site
        from seerd.shell.bundle import agent_for

        slots: MachineSlots = setup.where
        provider = LocalProvider(
            folder=folder.instances,
            run=folder.run,
            bundle=agent_for(folder.agent),
            gpus=slots.gpus,
            cuda=slots.cuda,
            weight=slots.weight,
            lease_s=RULES.lease_s,
            grace_s=GRACE_S,
        )
        return Site(provider)

    def _gpus(self, machine: Machine) -> int:
        there, wanted = machine.cuda_devices, self.cluster.gpus
        if there and (wanted or 0) > there:
            raise UsageError(f"cluster.gpus = {wanted}, but this machine has {there} CUDA devices")
        return wanted or there or machine.cores


class Hosts(ClusterKind[HostsCluster]):
    """Machines that people have. All count as if they had only the GPUs of the smallest."""

    def check(self, spec: Spec) -> None:
        """Check that there is a checkpoint store that all hosts reach. Raises `UsageError` if
        not.
        """
        if self.cluster.store is None:
            raise UsageError(
                "hosts need a place for checkpoints that all of them reach: "
                f"add store = {WRITTEN} to [cluster], or a directory that all "
                "of them and this machine have mounted under the same path"
            )

    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        """Name all hosts alike."""
        return (self.cluster.provider,)

    def unasked_quote(self, machine: Machine | None) -> Quote:
        """Offer the hosts that the spec lists. Raises `UsageError` if it lists none."""
        sizes = [host.gpus for host in self.cluster.hosts]
        if not sizes:
            raise UsageError(
                'provider = "hosts" needs machines: hosts = [{ address = "10.0.0.5", user = '
                '"ubuntu", gpus = 8 }]'
            )
        return Quote(
            ClusterFacts(billing="held", gpus_per_instance=min(sizes), max_instances=len(sizes))
        )

    def kept(
        self, spec: Spec, folder: RunFolder, quote: Quote, until: float
    ) -> tuple[SshHost, ...]:
        """Keep the hosts."""
        return hosts_of(self.cluster)

    @staticmethod
    def kept_type() -> Any:
        """Return the type of what is kept."""
        from seerd.backends.hosts.provider import SshHost

        return tuple[SshHost, ...]

    @staticmethod
    def site(setup: Setup, folder: RunFolder) -> Site:
        """Reach the hosts over SSH."""
        from seerd.backends.hosts.provider import HostsProvider
        from seerd.runs.wiring import remote_of, site_of

        hosts: tuple[SshHost, ...] = setup.where
        gpus, cuda = min(host.gpus for host in hosts), all(host.cuda for host in hosts)
        remote = remote_of(folder, gpus, cuda=cuda, weight=hosts[0].weight)
        return site_of(setup, HostsProvider(hosts, remote), remote)


class Ec2(ClusterKind[Ec2Cluster]):
    """Instances of EC2. All types have the same number of GPUs, and count as the dearest."""

    def check(self, spec: Spec) -> None:
        """Check that checkpoints are kept in S3, and that an image and a type are named. Raises
        `UsageError` if not.
        """
        if not (self.cluster.store and by_address(self.cluster.store).by_urls):
            raise UsageError(
                f"instances keep checkpoints in S3: add store = {WRITTEN} to [cluster]"
            )
        if not self.cluster.image:
            raise UsageError(
                'which image do the instances boot? Add to [cluster] image = "ami-...", '
                "or a public one with driver and torch, for example\n"
                '  image = "ssm:/aws/service/deeplearning/ami/x86_64/'
                'oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"\n'
                "`seerd image build` makes one of your own that boots faster."
            )
        self._check_types()

    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        """Name the instance types; "ec2" if the spec names none."""
        return self.cluster.instance_type or (self.cluster.provider,)

    def unasked_quote(self, machine: Machine | None) -> Quote:
        """Offer the bundled facts of the types, at the spec's price if it names one.

        Raises `UsageError` for types that are not known, or if the spec names none.
        """
        self._check_types()
        return quote_of(self.cluster, *bundled(self.cluster))

    def quote(self, machine: Machine, home: Home) -> Quote:
        """Ask AWS for types, prices and the owner of the credentials. Raises `UsageError` if the
        spec names no type.
        """
        self._check_types()
        from seerd.runs import quotes

        return quotes.ask(self.cluster, home.path / "prices")

    def check_quota(self, intended: Intended) -> None:
        """Ask AWS how many instances the account may have. Raises `CloudError` if they are too
        few.
        """
        from seerd.runs import quotes

        size = intended.cluster.gpus_per_instance
        peak = max(instances_for(stage.groups, size) for stage in intended.outline.stages)
        quota = quotes.quota(self.cluster, peak)
        if quota.enough is False:
            some = (quota.instances or 0) * size
            fits = f", or run with what it allows: --max-gpus {some}" if some else ""
            raise CloudError(f"nothing was started: {quota.text}{fits}")

    def kept(self, spec: Spec, folder: RunFolder, quote: Quote, until: float) -> Ec2Settings:
        """Keep what will be asked for when instances are launched."""
        settings = settings_of(
            self.cluster,
            run=folder.run,
            name=spec.name,
            owner=quote.owner,
            gpus=quote.facts.gpus_per_instance,
            keys=folder.path / "keys",
            hard_end=until,
        )
        bid = quote.usd_per_h if self.cluster.market == "spot" else None
        python = spec.train.python or self.python
        return replace(settings, max_usd_per_h=bid, python=python)

    @staticmethod
    def kept_type() -> Any:
        """Return the type of what is kept."""
        from seerd.backends.ec2.request import Ec2Settings

        return Ec2Settings

    @staticmethod
    def site(setup: Setup, folder: RunFolder) -> Site:
        """Rent instances, and reach them over SSH."""
        from seerd.backends.ec2.provider import Ec2Provider
        from seerd.runs.wiring import remote_of, site_of

        kept: Ec2Settings = setup.where
        settings = replace(kept, hard_end=setup.until)
        spot = settings.market == "spot"
        remote = remote_of(folder, settings.gpus, cuda=True, rented=True, spot=spot)
        provider = Ec2Provider(settings, remote, shared=folder.path.parent / "dry-places")
        site = site_of(setup, provider, remote, settings.region)
        return replace(site, prolong=provider.prolong)

    def _check_types(self) -> None:
        if not self.cluster.types:
            raise UsageError(
                "which instances are to be rented? Add their type to [cluster], or several in "
                "order of preference, for example\n"
                '  instance_type = ["g6.xlarge", "g5.xlarge", "g4dn.xlarge"]     # 1 GPU each\n'
                '  instance_type = ["g6e.12xlarge", "g6.12xlarge", "g5.12xlarge"]     # 4\n'
                '  instance_type = "p5.48xlarge"     # 8'
            )


KINDS: dict[str, type[ClusterKind[Any]]] = {"local": Local, "hosts": Hosts, "ec2": Ec2}
"""The kinds, by what `cluster.provider` says, and `setup.json` in a run's folder."""


def check_source(spec: Spec, home: Home, say: Say) -> None:
    """Check the links of a spec's source, and report doubts. Raises `UsageError`."""
    terms = CopyTerms(say, elsewhere=of(spec).elsewhere, follow=spec.train.follow)
    links_out(spec.train.source, home.path, terms)


def of(spec: Spec) -> ClusterKind[Any]:
    """Return the kind of the spec's cluster, with its behaviour."""
    return KINDS[spec.cluster.provider](spec.cluster)


def to_rent(spec: Spec, what: str) -> Ec2:
    """Return the spec's cluster, of which instances are rented. Raises `UsageError` for another.

    what  what is for rented instances, with its verb
    """
    kind = of(spec)
    if not isinstance(kind, Ec2):
        raise UsageError(
            f'{what} for rented instances, and the spec says provider = "{spec.cluster.provider}"; '
            'to rent: provider = "ec2" in [cluster]'
        )
    return kind


def simulated(spec: Spec | None) -> ClusterKind[Any]:
    """Return the kind of the cluster that is simulated: the spec's; the papers' instances where
    none are named.
    """
    cluster: Cluster = spec.cluster if spec else Ec2Cluster()
    if isinstance(cluster, Ec2Cluster) and not cluster.types:
        cluster = replace(cluster, instance_type=(PAPERS_TYPE,))
    return KINDS[cluster.provider](cluster)


def site_of(setup: Setup, folder: RunFolder) -> Site:
    """Connect the daemon with the instances of a run, new or resumed."""
    return KINDS[setup.kind].site(setup, folder)


def place_of(spec: Spec, home: Home, *, unbounded: bool = False) -> Place:
    """Return where a plan is made, without asking a cloud.

    unbounded  as if this machine had as many GPUs as the plan likes
    """
    kind, machine = of(spec), this_machine()
    quote = kind.unasked_quote(None if unbounded else machine)
    return Place(home.path, kind.machine_types(machine), quote)


def quoted(spec: Spec, home: Home) -> Place:
    """Return where a run may begin, after asking its cloud.

    Raises `UsageError` for what cannot be run, `CloudError` for what the cloud refuses.
    """
    kind, machine = of(spec), this_machine()
    kind.check(spec)
    return Place(home.path, kind.machine_types(machine), kind.quote(machine, home))


def quote_of(
    cluster: Ec2Cluster,
    gpus: int,
    usd_per_h: float,
    source: str,
    *,
    threads: int = 0,
    owner: str = "",
) -> Quote:
    """Make the quote for instances of these types.

    gpus       GPUs of one instance
    usd_per_h  USD for an hour of the dearest type
    source     where that price comes from, for people
    threads    CPU threads for each GPU; 0: not known
    owner      who rents them
    """
    facts = ClusterFacts(
        billing="rented",
        gpus_per_instance=gpus,
        usd_per_gpu_h=usd_per_h / gpus,
        terminate_s=RENTED_TERMINATE_S,
        orphan_s=cluster.boot_s + ORPHAN_SPARE_S,
        hints_move=cluster.on_rebalance == "move",
    )
    most = "at most" if len(cluster.types) > 1 or cluster.market == "spot" else "at"
    note = f"{' or '.join(cluster.types)} {most} ${usd_per_h:.4g} an hour ({source})"
    return Quote(facts, threads, usd_per_h=usd_per_h, owner=owner, notes=(note,))


def bundled(cluster: Ec2Cluster) -> tuple[int, float, str]:
    """Return the bundled facts: GPUs of an instance, USD for an hour of the dearest type, its
    source.

    Raises `UsageError` for types that are not known or have no price, or that do not have the same
    number of GPUs.
    """
    known = {name: kind.gpus for name, kind in INSTANCE_TYPES.items()} | dict(UNPRICED_GPUS)
    for name in cluster.types:
        if name not in known:
            raise UsageError(
                f"cluster.instance_type = {name!r} is not known here; known are "
                f"{', '.join(sorted(known))}. `seerd doctor` and `seerd run` ask AWS about others"
            )
    gpus = one_size({name: known[name] for name in cluster.types})
    if cluster.price:
        return gpus, cluster.price, THE_SPEC
    unpriced = [name for name in cluster.types if name not in INSTANCE_TYPES]
    if unpriced:
        raise UsageError(
            f"seerd brought no price of {', '.join(unpriced)} along. Say what an hour costs: "
            'price = "$4" in [cluster]; `seerd doctor` asks AWS for it'
        )
    source = f"on-demand prices of us-east-1 that seerd brought along, as of {PRICES_AS_OF}"
    return gpus, max(INSTANCE_TYPES[name].usd_per_h for name in cluster.types), source


def one_size(gpus: Mapping[str, int]) -> int:
    """Return how many GPUs all types have. Raises `UsageError` if they do not have the same
    number.
    """
    if len(set(gpus.values())) > 1:
        sizes = ", ".join(f"{name} {count}" for name, count in gpus.items())
        raise UsageError(
            "the types in cluster.instance_type must have the same number of GPUs, and have: "
            f"{sizes}"
        )
    return next(iter(gpus.values()))


def settings_of(
    cluster: Ec2Cluster, *, run: str, name: str, owner: str, gpus: int, keys: Path, hard_end: float
) -> Ec2Settings:
    """Collect what the instances of a run are asked for, without a bid. What has the same name in
    the spec is taken from there.

    gpus      GPUs of one instance
    keys      the folder of the run's key pairs
    hard_end  when they end by themselves, wall clock, seconds since 1970
    """
    from seerd.backends.ec2.request import Ec2Settings

    names = {field.name for field in fields(Ec2Settings)}
    return Ec2Settings(
        run=run,
        name=name,
        owner=owner,
        instance_types=cluster.types,
        gpus=gpus,
        hard_end=hard_end,
        boot_s=cluster.boot_s,
        keys=keys,
        **{key.name: getattr(cluster, key.name) for key in fields(cluster) if key.name in names},
    )


def hosts_of(cluster: HostsCluster) -> tuple[SshHost, ...]:
    """Turn the spec's hosts into those of the provider."""
    from seerd.backends.hosts.provider import SshHost

    weight = cluster.weight
    return tuple(SshHost(h.address, h.user, h.port, h.gpus, h.cuda, weight) for h in cluster.hosts)
