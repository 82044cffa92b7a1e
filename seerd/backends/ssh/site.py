"""The site of machines that are reached over SSH."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from seerd.agent.protocol import Expected
from seerd.backends.backend import FREE_BYTES, GRACE_S, PYTHON, RunFiles, Site
from seerd.backends.base import Printed, Provider
from seerd.backends.bundle import agent_for
from seerd.backends.ssh.remote import AgentOptions, Bundle, Remote, RemoteMachine


class OverSsh(Provider, Protocol):
    """A provider whose instances are reached over SSH."""

    def machine(self, instance: str) -> RemoteMachine:
        """Return how to log in to the instance. Raises `ProviderError` if it has ended."""


@dataclass(frozen=True, slots=True)
class SentSources:
    """See `backend.JobSources`."""

    provider: OverSsh
    remote: Remote

    async def send(self, instance: str) -> None:
        await self.remote.send(self.provider.machine(instance))

    def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
        sender = self.remote.with_one_more(job)

        async def send(instance: str) -> None:
            await sender(self.provider.machine(instance))

        return send

    def of_jobs(self, jobs: Callable[[], list[str]]) -> None:
        self.remote.jobs = jobs

    def uploads(self) -> str:
        return self.remote.uploads()


def remote_of(
    files: RunFiles,
    gpus: int,
    lease_s: float,
    *,
    cuda: bool,
    rented: bool = False,
    spot: bool = False,
    weight: float | None = None,
) -> Remote:
    """Make the connection to a run's machines; `AgentOptions` explains the options."""
    options = AgentOptions(
        run=files.run,
        gpus=gpus,
        cuda=cuda,
        lease_s=lease_s,
        grace_s=GRACE_S,
        power_off=rented,
        spot=spot,
        python=PYTHON,
        weight=weight,
    )
    return Remote(Bundle(agent_for(files.agent), files.source), options)


def site_of(
    provider: OverSsh,
    remote: Remote,
    region: str | None = None,
    prolong: Callable[[float], None] | None = None,
) -> Site:
    """Return the site of machines that are reached over SSH."""

    async def printed(instance: str, after: float) -> Printed | None:
        machine = provider.machine(instance)
        logs = await remote.printed(machine, after)
        return None if logs is None else Printed(machine.name, *logs)

    expected = Expected(gpus=0, free_bytes=FREE_BYTES, torch=True)
    return Site(provider, printed, SentSources(provider, remote), expected, region, prolong)
