"""Machines that the user has already, over plain SSH: each is an instance for as long as its agent
runs, named after its host and launch: `ubuntu@10.0.0.5-17`. A host is used by one instance at a
time, and once that is given back, nothing of the run runs there; only logs stay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from seerd.backends.base import Adopted, Connection, Launched, Leftovers, Provider, Span
from seerd.backends.hosts.keys import Host, HostsKeys
from seerd.backends.ssh.remote import Remote, RemoteMachine
from seerd.clock import unlimited, wall
from seerd.errors import CloudError, LaunchError, ProviderError

REST_S = 60.0  # how long a host that failed is left alone, seconds


@dataclass(frozen=True, slots=True)
class SshHost(Host):
    """One machine."""

    weight: float = 1.0  # the run's share of them beside other runs there

    @property
    def name(self) -> str:
        """User, address and port, which no other host of the run shares."""
        return self.machine.place

    @property
    def machine(self) -> RemoteMachine:
        machine = RemoteMachine("", self.address, self.user or "", self.port)
        return replace(machine, name=machine.place)


@dataclass(frozen=True, slots=True)
class _Use:
    instance: str  # the instance on it
    token: str  # of the launch that took the host; empty if an earlier daemon launched it
    since: float | None  # when it was taken, seconds since 1970; None if that is unknown
    began: bool  # whether something of the instance may run there


class HostsProvider(Provider):
    """The hosts of a run, with the user's known_hosts and keys: see `base.Provider`. What is begun
    or ended is tried for `patience_s` seconds.
    """

    def __init__(
        self, hosts: tuple[SshHost, ...], remote: Remote, patience_s: float = 15.0
    ) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._remote = remote
        self._patience_s = patience_s
        self._uses: dict[str, _Use] = {}
        self._resting: dict[str, tuple[float, str]] = {}
        self._ended: dict[str, Span] = {}
        self._looks: set[asyncio.Future[str]] = set()

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None:
        """Check that at least one host can be used, without waiting for the others."""
        self._remote.lease_s = lease_s

        async def look(name: str) -> str:
            cause = await self._cause(name)
            if cause and name not in self._uses:
                self._rest(name, cause)
            return cause

        self._looks = {asyncio.ensure_future(look(name)) for name in self._hosts}
        causes: list[str] = []
        for answer in asyncio.as_completed(self._looks):
            cause = await answer
            if not cause:
                return
            causes.append(cause)
        raise CloudError(
            "none of the hosts can be used:\n" + "\n".join(f"  {cause}" for cause in causes)
        )

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        wanted = {instance.rpartition("-")[0]: instance for instance in known}
        adopted = await asyncio.gather(
            *(self._take_up(name, wanted.get(name)) for name in self._hosts)
        )
        return [instance for instance in adopted if instance is not None], []

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        """Take the first host that is free and can be made ready."""
        self._refuse_if_ended(token)
        causes: list[str] = []
        for name in self._candidates(token):
            try:
                return await self._begin(name, token)
            except LaunchError:
                raise
            except ProviderError as error:
                causes.append(str(error))
                self._rest(name, str(error))
                await self._vacate(name)
        causes += [
            why
            for name, (_, why) in self._resting.items()
            if self._rests(name) and why not in causes
        ]
        if causes:
            raise LaunchError(
                "no host could be had:\n" + "\n".join(f"  {cause}" for cause in causes), retry=True
            )
        raise LaunchError(f"all {len(self._hosts)} hosts are in use", retry=False)

    async def connect(self, instance: str) -> Connection:
        return await self._remote.connect(self.machine(instance))

    async def end_agent(self, instance: str, grace_s: float) -> None:
        await self._remote.end_agent(self.machine(instance), grace_s)

    def machine(self, instance: str) -> RemoteMachine:
        """Return how to log in to the host. Raises `ProviderError` if it was given back."""
        return self._host(instance).machine

    def address(self, instance: str) -> str:
        """Return the address in the spec, by which hosts should reach each other too."""
        return self._host(instance).address

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        """End the agent and everything that it started, and delete what trials have made, but for
        their logs. Raises `ProviderError` for a host that cannot be reached in time.
        """
        host = next(
            (host for host, use in self._uses.items() if name in (use.instance, use.token)), None
        )
        if host is None:
            return self._ended.setdefault(name, Span())
        use = self._uses[host]
        span = Span(use.since, wall())
        self._ended.update({own: span for own in (use.instance, use.token) if own})
        if use.began:
            await self._remote.end(self._hosts[host].machine, min(self._patience_s, spare_s))
        self._uses.pop(host, None)
        return span

    async def leftovers(self) -> Leftovers:
        async def left_on(name: str) -> list[str]:
            try:
                return await self._remote.left(self._hosts[name].machine, patience_s=0.0)
            except ProviderError as error:
                began = name in self._uses and self._uses[name].began
                return [f"{name}: cannot be asked what runs there: {error}"] if began else []

        left = await asyncio.gather(*map(left_on, self._hosts))
        return Leftovers([line for lines in left for line in lines])

    async def close(self) -> None:
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)
        await self._remote.close()

    async def _take_up(self, name: str, instance: str | None) -> str | None:
        """Return the host's instance if the host can be reached; without one, vacate the host."""
        if instance is None:
            await self._vacate(name)
            return None
        self._uses[name] = _Use(instance, "", None, began=True)
        cause = await self._cause(name)
        if cause:
            self._rest(name, cause)
        return None if cause else instance

    def _candidates(self, token: str) -> Iterator[str]:
        """Yield the host that this launch has already; if it has none, the free hosts."""
        for name, use in self._uses.items():
            if use.token == token:
                yield name
                return
        for name in self._hosts:
            if name not in self._uses and not self._rests(name):
                yield name

    async def _begin(self, name: str, token: str) -> Launched:
        """Start an agent on the host, after ending what an earlier instance may have left there."""
        host = self._hosts[name]
        if name not in self._uses:
            instance = f"{name}-{token.partition('.')[0]}"
            self._uses[name] = _Use(instance, token, wall(), began=False)
            await self._remote.end(host.machine, self._patience_s)
        self._refuse_if_ended(token)
        use = self._uses[name] = replace(self._uses[name], began=True)
        await self._remote.ready(host.machine, self._patience_s, host.gpus, host.cuda)
        if token in self._ended:
            await self._vacate(name)
        self._refuse_if_ended(token)
        return Launched(use.instance, host.gpus, use.since or wall())

    def _refuse_if_ended(self, token: str) -> None:
        if token in self._ended:
            raise LaunchError("it was given back before it was ready", retry=False)

    async def _cause(self, name: str) -> str:
        """Return why the host cannot be used; empty if it can."""
        try:
            await self._remote.left(self._hosts[name].machine)
        except ProviderError as error:
            return str(error)
        return ""

    async def _vacate(self, name: str) -> None:
        """End what may be left on an unused host; if that fails, the agent's lease ends it."""
        try:
            await self._remote.end(self._hosts[name].machine, patience_s=0.0)
        except ProviderError as error:
            self._rest(name, str(error))
        self._uses.pop(name, None)

    def _host(self, instance: str) -> SshHost:
        for name, use in self._uses.items():
            if use.instance == instance:
                return self._hosts[name]
        raise ProviderError(f"{instance} was given back, or never was one of this run's hosts")

    def _rest(self, name: str, why: str) -> None:
        self._resting[name] = (asyncio.get_running_loop().time() + REST_S, why)

    def _rests(self, name: str) -> bool:
        return name in self._resting and asyncio.get_running_loop().time() < self._resting[name][0]


def hosts_of(keys: HostsKeys) -> tuple[SshHost, ...]:
    """Return the provider's hosts for those of the spec."""
    return tuple(SshHost(**asdict(host), weight=keys.weight) for host in keys.hosts)
