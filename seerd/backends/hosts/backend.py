"""Machines that people have. All count as if they had only the GPUs of the smallest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seerd.backends.backend import Backend, GpuUse, RunFiles, Site
from seerd.backends.base import Machine, Quote
from seerd.backends.hosts.keys import HostsKeys
from seerd.errors import UsageError
from seerd.planner.model import ClusterFacts
from seerd.registry import WRITTEN
from seerd.spec.spec import Spec

if TYPE_CHECKING:
    from seerd.backends.examining import Case, Finding
    from seerd.backends.hosts.provider import SshHost


END_S = 2.0  # most seconds to end, over SSH, an agent that is stopped, with its trials


class HostsBackend(Backend[HostsKeys]):
    """Machines that people have. All count as if they had only the GPUs of the smallest."""

    def check(self, spec: Spec) -> None:
        if self.keys.store is None:
            raise UsageError(
                "hosts need a place for checkpoints that all of them reach: "
                f"add store = {WRITTEN} to [cluster], or a directory that all "
                "of them and this machine have mounted under the same path"
            )

    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        return (self.keys.provider,)

    def unasked_quote(self, machine: Machine | None) -> Quote:
        sizes = [host.gpus for host in self.keys.hosts]
        if not sizes:
            raise UsageError(
                'provider = "hosts" needs machines: hosts = [{ address = "10.0.0.5", user = '
                '"ubuntu", gpus = 8 }]'
            )
        return Quote(
            ClusterFacts(
                billing="held",
                gpus_per_instance=min(sizes),
                max_instances=len(sizes),
                terminate_s=END_S,
            ),
            cuda=all(host.cuda for host in self.keys.hosts),
        )

    def kept(self, spec: Spec, files: RunFiles, quote: Quote, until: float) -> tuple[SshHost, ...]:
        from seerd.backends.hosts.provider import hosts_of

        return hosts_of(self.keys)

    async def examine(self, case: Case) -> list[Finding]:
        from seerd.backends.hosts.doctor import examined

        return await examined(case, self.keys)

    async def gpu_use(self) -> list[GpuUse]:
        from seerd.backends.hosts.doctor import gpu_use_of
        from seerd.backends.hosts.provider import hosts_of

        return await gpu_use_of(hosts_of(self.keys))

    @staticmethod
    def kept_type() -> Any:
        from seerd.backends.hosts.provider import SshHost

        return tuple[SshHost, ...]

    @staticmethod
    def site(kept: tuple[SshHost, ...], files: RunFiles, _until: float, lease_s: float) -> Site:
        from seerd.backends.bundle import agent_for
        from seerd.backends.hosts.provider import HostsProvider
        from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote

        gpus, cuda = min(host.gpus for host in kept), all(host.cuda for host in kept)
        options = AgentOptions(files.run, gpus, cuda, lease_s, weight=kept[0].weight)
        remote = Remote(Bundle(agent_for(files.agent), files.source), options)
        provider = HostsProvider(kept, remote)
        return remote.site(provider, provider.machine)


BACKEND = HostsBackend
