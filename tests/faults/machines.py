"""Instances as machines: they boot, have one agent at a time, and go; and the way to them.

The one rule: a machine acts on what EC2 and its agent do to it, and on its own luck; it knows no
daemon.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from seerd.aws.userdata import LOOK_S, ORPHAN_TIMEOUT_S
from seerd.backends.base import Connection
from seerd.backends.ssh.connecting import OnFailure, UnreachableError
from seerd.backends.ssh.connecting import RemoteMachine as Address
from seerd.clock import unlimited, wall
from seerd.errors import ProviderError
from tests.faults import ec2
from tests.faults.agents import Agent, Machine
from tests.faults.timeline import EPOCH, Loop
from tests.faults.training import Run, Shared
from tests.faults.wires import Wire

HARD_END = re.compile(r"this instance ends at (\d+)")
FIRST = re.compile(r"^most=(\d+)$", re.MULTILINE)
REBOOTS_S = 20.0
SILENCE_S = 16.0
"""A silent connection is given up after so long, by keepalives."""


class Host:
    """One instance's machine. `up`: it takes logins; `cut`: nobody reaches it."""

    def __init__(
        self,
        instance: ec2.Instance,
        run: str,
        gpus: int,
        folder: Path,
        shared: Shared,
        end: Callable[[str], None],
    ) -> None:
        self.instance = instance
        self.up = False
        self.cut = False
        self.agent: Agent | None = None
        self.wires: list[Wire] = []
        self.boots = 0
        self.sources: set[str] = set()
        self.orphaned_at: float | None = None
        self.worked_since: float | None = None
        self.hung: list[tuple[float, float]] = []
        self.cuts: list[tuple[float, float]] = []
        self._alone: list[tuple[float, float]] = []
        self.vanished_at: float | None = None
        self._run = run
        self._gpus = gpus
        self._folder = folder / instance.id
        self._shared = shared
        self._end = end
        self._ahead_s = shared.chance.dice("clock skew").uniform(-3.0, 3.0)
        if shared.chance.hits("wrong clock"):
            self._ahead_s = 400.0
        self.full_until = 0.0
        self._end_at = math.inf
        self._left: list[Run] = []

    def wall(self) -> float:
        """What its wall clock shows."""
        return EPOCH + self._shared.timeline.now + self._ahead_s

    def set_clock(self, by_s: float) -> None:
        """Its wall clock is set, by so much."""
        self._ahead_s += by_s

    def is_full(self) -> bool:
        """Whether there is no room in its table of processes."""
        return self._shared.timeline.now < self.full_until

    @property
    def gone(self) -> bool:
        """Whether EC2 has ended it."""
        return self.instance.ended is not None

    @property
    def alone(self) -> list[tuple[float, float]]:
        """When it ran and its agent, which it once had, did not."""
        if self.worked_since is None:
            return []
        end = self.instance.ended if self.instance.ended is not None else self._shared.timeline.now
        return [*self._alone, *([(self.orphaned_at, end)] if self.orphaned_at is not None else [])]

    def boot(self) -> None:
        """From power to logins. The hard end is scheduled before anything else."""
        now = self.orphaned_at = self._shared.timeline.now
        match = HARD_END.search(self.instance.user_data)
        if match:
            hard_end = max(int(match[1]) - EPOCH, now + 60.0)
            self._ends_at(hard_end)
        self._wait_for_the_first()
        if not self._shared.chance.hits("never boots"):
            self._shared.timeline.after(
                self._shared.chance.lasts("boot", 8.0, 60.0), self._takes_logins
            )

    def let_go(self, left_s: float) -> None:
        """It is left to another run, and ends itself in so many seconds."""
        self._ends_at(self._shared.timeline.now + left_s)
        self.lose_agent()
        self._clear_processes()
        self.lose_wires(0.0)
        self.sources.clear()

    def _ends_at(self, at: float) -> None:
        """Its timer is set, and counts instead of the one before."""
        self._end_at = at
        self._shared.timeline.at(at, lambda: self._off("timer") if self._end_at == at else None)

    def _takes_logins(self) -> None:
        self.up = not self.gone
        self.boots += 1

    def agent_here(self, lease_s: float) -> Agent:
        """Its agent, started if none runs, with a lease that is not longer than this."""
        if self.agent is None or not self.agent.alive:
            self._clear_processes()
            boot = f"{self.instance.id} boot {self.boots}"
            machine = Machine(
                self.instance.id,
                self._run,
                self._gpus,
                self._folder,
                boot,
                self.wall,
                self._off,
                self.sources,
                self.is_full,
            )
            self.agent = Agent(machine, self._shared, lease_s)
            now = self._shared.timeline.now
            if self.orphaned_at is not None and self.worked_since is not None:
                self._alone.append((self.orphaned_at, now))
            self.worked_since = now if self.worked_since is None else self.worked_since
            self.orphaned_at = None
        return self.agent

    def lose_agent(self) -> None:
        """Its agent's process dies."""
        if self.agent is not None and self.agent.alive:
            self._left += [attempt.run for attempt in self.agent.die()]
            self.orphaned_at = self._shared.timeline.now
            self._watch_alone()

    def _wait_for_the_first(self) -> None:
        """Until it has had an agent it waits for no longer than the launch could pay."""
        since = self.orphaned_at
        first = FIRST.search(self.instance.user_data)
        if first:
            self._shared.timeline.after(int(first[1]), lambda: self._off_if_alone(since))

    def _watch_alone(self) -> None:
        """Without an agent it does not wait for its hard end."""
        since = self.orphaned_at
        if "seerd-deserted" in self.instance.user_data:
            self._shared.timeline.after(
                ORPHAN_TIMEOUT_S + LOOK_S, lambda: self._off_if_alone(since)
            )

    def _off_if_alone(self, since: float | None) -> None:
        if self.orphaned_at == since and self.vanished_at is None:
            self._off("deserted")

    def reboot(self) -> None:
        """The machine restarts: nothing of what ran is left."""
        if self.gone or self.vanished_at is not None:
            return
        self.lose_agent()
        self._clear_processes()
        self.lose_wires(1.0)
        self.up = False
        now = self._shared.timeline.now
        self.hung.append((now, now + REBOOTS_S))
        if self.worked_since is not None and now > self.worked_since + LOOK_S:
            self._shared.timeline.after(REBOOTS_S, lambda: self._off("rebooted"))
        else:
            self._shared.timeline.after(REBOOTS_S, self._takes_logins)
            self._shared.timeline.after(REBOOTS_S, self._wait_for_the_first)

    def power_cut(self) -> None:
        """Everything on it ends at once."""
        self.up = False
        self.lose_agent()
        self._clear_processes()
        self.lose_wires(self._shared.chance.lasts("silence", 0.1, SILENCE_S))

    def lose_wires(self, noticed_s: float) -> None:
        """All connections to it break."""
        for wire in self.wires:
            wire.lose(noticed_s)
        self.wires.clear()

    def _clear_processes(self) -> None:
        for run in self._left:
            run.vanish()
        self._left.clear()

    def _off(self, why: str) -> None:
        if not self.gone:
            self._end(why)


class Door:
    """The way of one daemon process into machines: `seerd.backends.ec2.flight.InstanceAccess`."""

    machine: Callable[[str], Address]

    def __init__(self, hosts: dict[str, Host], shared: Shared, loop: Loop) -> None:
        self.lease_s: Callable[[], float] = unlimited
        self.jobs: Callable[[], Sequence[str]] = tuple
        self._hosts = hosts
        self._shared = shared
        self._loop = loop
        self._wires: dict[str, list[Wire]] = {}

    async def ready(self, machine: Address, patience_s: float, *, on_failure: OnFailure) -> None:
        """Wait until its agent runs. Raises `ProviderError`."""
        end = self._loop.time() + patience_s
        while not self._answers(machine.name):
            on_failure(UnreachableError("no answer on port 22", no_way=True))
            if self._loop.time() > end:
                raise ProviderError(
                    f"{machine.name} could not be reached over SSH within {patience_s:.0f}s"
                )
            await asyncio.sleep(self._shared.chance.lasts("tries again", 0.5, 3.0))
        await self._push(machine, self.jobs())
        self._hosts[machine.name].agent_here(self.lease_s())

    async def let_go(self, machine: Address, until: float) -> float:
        """Have it left to another run; how long it then still runs. It may be done although nobody
        hears of it. Raises `ProviderError`.
        """
        left_s = until - wall()
        await asyncio.sleep(self._shared.chance.lasts("let go", 0.3, 9.0))
        if not self._answers(machine.name) or self._hosts[machine.name].is_full():
            raise ProviderError(f"{machine.name} does not answer")
        host = self._hosts[machine.name]
        left_s = min(left_s, until - host.wall())
        if left_s < 1:
            raise ProviderError("it would have to end at once")
        host.let_go(left_s)
        await asyncio.sleep(self._shared.chance.lasts("latency", 0.005, 0.4))
        if not self._answers(machine.name):
            raise ProviderError(f"the connection to {machine.name} was lost")
        return left_s

    async def end_in(self, machine: Address, left_s: float) -> None:
        """No run takes an instance over here: its own would be the next one."""
        raise ProviderError(f"{machine.name} is nobody else's to take")

    async def send(self, instance: str) -> None:
        """Send it the sources of the jobs that share the run now. Raises `ProviderError`."""
        await self._push(self.machine(instance), self.jobs())

    def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
        """The same with one more."""
        jobs = [*self.jobs(), job]

        async def send(instance: str) -> None:
            await self._push(self.machine(instance), jobs)

        return send

    async def _push(self, machine: Address, jobs: Sequence[str]) -> None:
        if machine.name in self._hosts and set(jobs) <= self._hosts[machine.name].sources:
            return
        await asyncio.sleep(self._shared.chance.lasts("push", 0.3, 4.0))
        if not self._answers(machine.name):
            raise ProviderError(f"the connection to {machine.name} was lost")
        self._hosts[machine.name].sources.update(jobs)

    async def connect(self, machine: Address) -> Connection:
        """A connection to its agent, which is started if it does not run. Raises
        `ProviderError`.
        """
        await asyncio.sleep(self._shared.chance.lasts("log in", 0.05, 2.0))
        if not self._answers(machine.name):
            await asyncio.sleep(self._shared.chance.lasts("timeout", 1.0, 15.0))
            raise ProviderError(f"{machine.name} does not answer")
        host = self._hosts[machine.name]
        if host.is_full():  # the shell that the login wants
            raise ProviderError(f"{machine.name}: fork: Resource temporarily unavailable")
        if machine.name not in self._wires:
            host.sources.update(self.jobs())
        latency_s = self._shared.chance.lasts("latency", 0.005, 0.4)
        wire = Wire(self._shared.timeline, self._loop, latency_s)
        host.agent_here(self.lease_s()).take(wire)
        host.wires.append(wire)
        self._wires.setdefault(machine.name, []).append(wire)
        return wire.reader, wire

    async def forget(self, name: str) -> None:
        """It is gone."""
        for wire in self._wires.pop(name, []):
            wire.hang_up()

    async def close(self) -> None:
        """Let go of all."""
        self.hang_up()

    def hang_up(self) -> None:
        """All connections of this process end, as when it dies."""
        for wires in self._wires.values():
            for wire in wires:
                wire.hang_up()

    def _answers(self, name: str) -> bool:
        host = self._hosts.get(name)
        if host is None or host.gone or not host.up or host.cut:
            return False
        return not self._shared.chance.hits("login fails")
