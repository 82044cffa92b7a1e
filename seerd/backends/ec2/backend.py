"""Instances of EC2, as a spec asks for them and before anything is rented."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from seerd.backends.backend import MARGIN_S, Backend, RunFiles, Site, Uncounted
from seerd.backends.base import Machine, Quote
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import bundled, check_filled_in, quote_of, settings_of
from seerd.errors import CloudError, UsageError
from seerd.planner.clouds import PAPERS_TYPE
from seerd.registry import WRITTEN
from seerd.spec.spec import Spec
from seerd.stores.by_address import by_address

if TYPE_CHECKING:
    from seerd.backends.ec2.request import Ec2Settings
    from seerd.backends.ec2.sweeping import Ec2Sweeper
    from seerd.backends.examining import Case, Finding


class Ec2Backend(Backend[Ec2Keys]):
    """Instances of EC2. All types have the same number of GPUs, and count as the dearest."""

    commands = frozenset({"canary", "image build"})

    def check(self, spec: Spec) -> None:
        if not (self.keys.store and by_address(self.keys.store).by_urls):
            raise UsageError(
                f"instances keep checkpoints in S3: add store = {WRITTEN} to [cluster]"
            )
        if not self.keys.image:
            raise UsageError(
                'which image do the instances boot? Add to [cluster] image = "ami-...", '
                "or a public one with driver and torch, for example\n"
                '  image = "ssm:/aws/service/deeplearning/ami/x86_64/'
                'oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/ami-id"\n'
                "`seerd image build` makes one of your own that boots faster."
            )
        self._check_types()
        check_filled_in(spec, self.keys)

    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        return self.keys.instance_type or (self.keys.provider,)

    def unasked_quote(self, machine: Machine | None) -> Quote:
        self._check_types()
        if not self.keys.types:
            raise UsageError(
                "cluster.capacity: AWS alone knows the type of what was bought; `seerd doctor` and "
                "`seerd run` ask it"
            )
        return quote_of(self.keys, *bundled(self.keys))

    def for_simulation(self) -> Self:
        """Take the papers' instances if the spec names no type."""
        if self.keys.types:
            return self
        return type(self)(replace(self.keys, instance_type=(PAPERS_TYPE,)))

    def quote(self, machine: Machine) -> Quote:
        self._check_types()
        import asyncio

        from seerd.backends.ec2 import asking

        return asyncio.run(asking.quote(self.keys))

    def uncounted(self, instances: int, instance_h: float) -> Uncounted:
        from seerd.backends.ec2 import uncounted

        return uncounted.uncounted(self.keys, instances, instance_h)

    def doubts(self, deadline_s: float) -> list[str]:
        import asyncio

        from seerd.backends.ec2 import asking

        return asyncio.run(asking.doubts(self.keys, deadline_s + MARGIN_S))

    def check_quota(self, instances: int, gpus: int) -> None:
        if self.keys.capacity:  # it has room for its own instances, whatever the quota
            return
        import asyncio

        from seerd.backends.ec2 import asking

        quota = asyncio.run(asking.quota(self.keys, instances))
        if quota.enough is False:
            allowed = (quota.instances or 0) * gpus
            fits = f", or run with what it allows: --max-gpus {allowed}" if allowed else ""
            raise CloudError(f"nothing was started: {quota.text}{fits}")

    def kept(self, spec: Spec, files: RunFiles, quote: Quote, until: float) -> Ec2Settings:
        return settings_of(
            self.keys,
            run=files.run,
            name=spec.name,
            owner=quote.owner,
            gpus=quote.facts.gpus_per_instance,
            keys=files.path / "keys",
            hard_end=until,
            max_usd_per_h=quote.bid,
            prices=dict(quote.prices),
            python=spec.train.python or self.python,
        )

    async def examine(self, case: Case) -> list[Finding]:
        from seerd.backends.ec2.doctor import examined

        return await examined(case, self.keys)

    async def policy(self, spec: Spec) -> dict[str, Any]:
        from seerd.aws.policy import policy
        from seerd.backends.ec2.doctor import needs_of

        return policy(await needs_of(spec, self.keys))

    @classmethod
    def sweeper(cls, region: str | None) -> Ec2Sweeper:
        from seerd.backends.ec2.sweeping import Ec2Sweeper

        return Ec2Sweeper(region)

    @staticmethod
    def kept_type() -> Any:
        from seerd.backends.ec2.request import Ec2Settings

        return Ec2Settings

    @staticmethod
    def site(kept: Ec2Settings, files: RunFiles, until: float, lease_s: float) -> Site:
        from seerd.backends.bundle import agent_for
        from seerd.backends.ec2.kept import KeptInstances
        from seerd.backends.ec2.provider import Ec2Provider
        from seerd.backends.ec2.rests import Rests
        from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote

        settings = replace(kept, hard_end=until)
        options = AgentOptions(files.run, settings.gpus, True, lease_s, power_off=True, spot=True)
        remote = Remote(Bundle(agent_for(files.agent), files.source), options)
        home, waiting = files.path.parent, None
        if settings.keep_s:
            waiting = KeptInstances(home / "kept", settings.keys, remote)
        provider = Ec2Provider(settings, remote, rests=Rests(home / "rests"), kept=waiting)
        own = (settings.region, provider.prolong, provider.progress)
        site = remote.site(provider, provider.machine, *own)
        site = replace(site, place=provider.place, without_store=provider.without_store)
        return replace(site, note_taken=provider.note_taken)

    def _check_types(self) -> None:
        if not self.keys.types and not self.keys.capacity:
            raise UsageError(
                "which instances are to be rented? Add their type to [cluster], or several in "
                "order of preference, for example\n"
                '  instance_type = ["g6.xlarge", "g5.xlarge", "g4dn.xlarge"]     # 1 GPU each\n'
                '  instance_type = ["g6e.12xlarge", "g6.12xlarge", "g5.12xlarge"]     # 4\n'
                '  instance_type = "p5.48xlarge"     # 8'
            )


BACKEND = Ec2Backend
