"""What the shell needs of any source of instances: `Provider`. Failures are
`errors.ProviderError`. Every call may be repeated: launching again under a token gives the same
instance, connecting starts an agent only if none answers, and ending an instance that is gone
succeeds.

An instance has the token of its launch and, once it exists, an id; either names it. Times are wall
clock, seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from seerd.clock import unlimited
from seerd.errors import ProviderError
from seerd.planner.model import ClusterFacts


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine."""

    cuda_devices: int
    cores: int  # how many CPU cores it has
    device: str = ""  # the name of the first CUDA device; empty if there is none


@dataclass(frozen=True, slots=True)
class MachineType:
    """A type of machine that may be rented."""

    name: str
    gpus: int  # how many GPUs it has
    usd_per_h: float  # USD for an hour of it
    most_usd_per_h: float = 0.0  # USD that an hour may come to cost; 0: its price does not change


@dataclass(frozen=True, slots=True)
class Quote:
    """What a backend offers, before anything is planned."""

    facts: ClusterFacts  # the machines as the core sees them
    threads: int = 0  # CPU threads for each GPU; 0: unknown
    cuda: bool = True  # whether its GPUs are CUDA devices, not CPU slots
    usd_per_h: float = 0.0  # USD, the most that one instance costs for an hour
    # USD for an hour of an instance of each type; none: all cost the same
    prices: Mapping[str, float] = field(default_factory=dict)
    bid: float | None = None  # USD, the most that is bid for an hour of spot; None: AWS's default
    owner: str = ""  # who rents it, for the owner's tag; empty: it is not rented, or unknown
    notes: tuple[str, ...] = ()  # what the user should know of it, one sentence each
    # the kinds of machines that trials run on, as in profiles, preferred first
    machine_types: tuple[str, ...] = ()
    # where its instances may be; if none of this home was ever ready in any of these places, the
    # first is tried alone. Empty: all are launched at once
    places: tuple[str, ...] = ()
    types: tuple[MachineType, ...] = ()  # what may be rented, preferred first; empty: no types

    def of_types(self, types: Sequence[MachineType]) -> Quote:
        """Return the quote for these types, preferred first. Of different sizes the first counts,
        and a GPU as the dearest.
        """
        size = types[0].gpus
        facts = replace(
            self.facts,
            gpus_per_instance=size,
            other_sizes=tuple(sorted({kind.gpus for kind in types} - {size})),
            usd_per_gpu_h=max(kind.usd_per_h / kind.gpus for kind in types),
            most_usd_per_gpu_h=max(kind.most_usd_per_h / kind.gpus for kind in types),
        )
        dearest = max(max(kind.usd_per_h, kind.most_usd_per_h) for kind in types)
        return replace(self, facts=facts, usd_per_h=dearest, types=tuple(types))


class LineReader(Protocol):
    """Reads from an agent: an `asyncio.StreamReader`, or a channel over SSH."""

    def readline(self) -> Awaitable[bytes]:
        """Return the next line with its end, or what was left when the stream ended."""


class Writer(Protocol):
    """Writes to an agent: an `asyncio.StreamWriter`, or a channel over SSH."""

    def write(self, data: bytes) -> None:
        """Send these bytes."""

    def close(self) -> None:
        """Close the connection."""


Connection = tuple[LineReader, Writer]


@dataclass(frozen=True, slots=True)
class Span:
    """When an instance ran."""

    since: float | None = None  # when it began to run; None if it never did
    until: float | None = None  # when it ended; None while it runs, or if that is unknown


@dataclass(frozen=True, slots=True)
class Launched:
    """An instance whose agent takes connections."""

    instance: str
    gpus: int
    since: float  # when it began to run, or was taken over from an earlier run
    paid_until: float | None = None  # until when an earlier run has paid it; None: none has


LaunchStage = Literal["launched", "running", "unreached", "reached", "priced"]
"""How far a launch is, see `core.events.Awaited`; `priced`: its instance, which may be ready
already, costs more or less than before.
"""


@dataclass(frozen=True, slots=True)
class LaunchProgress:
    """News of a launch or its instance."""

    launch: str  # its token
    instance: str  # the instance that it has brought
    what: LaunchStage
    where: str = ""  # of `launched`: type and zone, for people
    why: str = ""  # of `unreached`: why nobody can log in, and what to do, for people
    # of `launched` and `priced`: USD for an hour of it; None: the most of the quote
    usd_per_h: float | None = None
    since: float = 0.0  # of `priced`: from when on, wall clock, seconds since 1970
    gpus: int | None = None  # of `launched`: its GPUs; None: as many as were asked for


@dataclass(frozen=True, slots=True)
class Loss:
    """An instance that is gone without having been given back."""

    instance: str
    why: str  # the cause, for people
    span: Span  # when it ran
    launch: str = ""  # token of its launch, if the caller does not know it


@dataclass(frozen=True, slots=True)
class Printed:
    """What trials have printed on a machine."""

    place: str  # the machine's name
    logs: Mapping[str, bytes]  # the last bytes of each log that has changed, by its name
    until: float  # the moment from which to ask the next time, by the machine's clock
    more: bool = False  # whether more logs have changed, so that the next time is now


Printer = Callable[[str, float], Awaitable[Printed | None]]
"""Asks an instance's machine for what was printed after a moment of its clock, seconds since 1970;
None: not now. Raises `ProviderError`.
"""

Adopted = tuple[list[str], list[Loss]]
"""Instances that still exist after a restart, and rented ones that the run did not know."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What remains of a run that is over, one line each."""

    costing: list[str] = field(default_factory=list)  # what may cost money
    ending: list[str] = field(default_factory=list)  # what is ending by itself and not billed


class Provider(Protocol):
    """A source of instances with an agent on each."""

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None:
        """Check that instances can be had; the first call of all. Raises `ProviderError` if none
        can be. `lease_s`: for how many seconds an agent that starts now may go on without the
        daemon.
        """

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        """Return which of the instances `known` still exist after a restart. Give all others of the
        run back, except those of the launches `tokens`; return when the rented ones among them ran.
        """

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        """Launch one instance for this token, and return once its agent takes connections. Raises
        `errors.LaunchError` after giving back everything that the launch had brought.

        orphan_timeout_s  after how many seconds without its first agent the instance ends itself;
                          None: never
        most_gpus         the most GPUs that it may have, where they come in several sizes; None:
                          any number
        """

    async def connect(self, instance: str) -> Connection:
        """Return a byte stream to the instance's agent, which is started if it does not run."""

    async def end_agent(self, instance: str, grace_s: float) -> None:
        """End an agent of another protocol version after at most `grace_s` seconds for its trials
        to save. The next `connect` starts a new agent, which reads its journal.
        """

    def journal(self, instance: str) -> Path | None:
        """Return the agent's journal if it is a file of this machine, by its clock; else None."""
        return None

    def address(self, instance: str) -> str:
        """Return the address at which other instances reach this one."""

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        """End the instance and everything on it; for a token: everything that this launch has
        brought or would bring. Return when nothing of it costs any more. `spare_s`: how long to
        wait at most for an unreachable machine that costs nothing; its agent's lease ends what runs
        there.
        """

    async def let_go(self, instance: str, until: float, within_s: float) -> None:
        """Leave the instance for another run, without anything of this one, after it has confirmed,
        within so many seconds, that it ends itself by `until`. Raises `ProviderError`; it is this
        run's then, and has to be terminated.
        """
        raise ProviderError("instances are not kept here")

    async def loss(self) -> Loss:
        """Wait for the next instance that is gone: for ever if instances cannot vanish unnoticed by
        the conversation with their agents.
        """
        import asyncio  # only a daemon waits; commands that read a run do not need it

        forever: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        return await forever

    async def leftovers(self) -> Leftovers:
        """Return what remains of the run: instances and volumes."""

    async def close(self) -> None:
        """Close all connections; ends nothing."""


@dataclass(frozen=True, slots=True)
class Left:
    """Something that a run has left and that still costs."""

    kind: Literal["instance", "volume"]
    id: str
    run: str  # its run, from its tags
    name: str  # its name, from its tags
    hard_end: str  # when it ends by itself, from its tags
    state: str
    what: str  # its type, or its size
    age_s: float  # seconds since it was made
    usd_per_h: float | None = None  # about how many USD it costs for an hour; None: unknown
    waits: bool = False  # whether it waits for another run, until its hard end; its run has paid

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.id} ({self.what}, {self.state}) of run {self.run}, "
            f"{self.age_s / 3600.0:.1f}h old"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What runs of an owner have left behind."""

    left: list[Left]  # what still costs, the oldest first
    ending: list[str]  # ids of what is ending already, with its disks; not billed


class Sweeper(Protocol):
    """Finds what runs have left in one account and region, and touches only what has seerd's tags
    and this owner's name. Raises `CloudError`.
    """

    @property
    def region(self) -> str:
        """Where it looks."""

    async def owner(self, patience_s: float = 60.0) -> str:
        """Return the owner of these credentials."""

    async def find(self, owner: str) -> Found:
        """Find everything that the owner's runs have left."""

    async def find_instances(self, owner: str, patience_s: float) -> list[Left]:
        """Find only the instances that have not ended, with one call."""

    async def remove(self, left: Left) -> None:
        """End this instance or delete this volume; one that is already gone is a success."""
