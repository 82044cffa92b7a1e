"""What the shell needs of any source of instances.

The one rule: every call may be repeated. Launching under the same token again gives the same
instance, connecting starts an agent only if none answers, and terminating what is gone is a
success. Failures are `errors.ProviderError`.

An instance is known by the token of its launch and, once it is there, by its id; both name it.
Times are wall clock, seconds since 1970.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol


class LineReader(Protocol):
    """What comes from an agent: `asyncio.StreamReader`, or a channel over SSH."""

    def readline(self) -> Awaitable[bytes]:
        """The next line with its end, or what there was before the stream ended."""


class Writer(Protocol):
    """What goes to an agent: `asyncio.StreamWriter`, or a channel over SSH."""

    def write(self, data: bytes) -> None:
        """Send it."""

    def close(self) -> None:
        """End the connection."""


Connection = tuple[LineReader, Writer]


@dataclass(frozen=True, slots=True)
class Span:
    """When an instance ran. `since`: None if it never did; `until`: None while it runs."""

    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Launched:
    """An instance whose agent takes connections, with so many GPUs, running `since` then."""

    instance: str
    gpus: int
    since: float


@dataclass(frozen=True, slots=True)
class Loss:
    """An instance that is gone and that nobody gave back: why, for people, and when it ran."""

    instance: str
    why: str
    span: Span


class Provider(Protocol):
    """Instances with an agent on each."""

    async def open(self) -> None:
        """Before anything else; raises `ProviderError` if nothing can be had at all (credentials,
        network).
        """

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> list[str]:
        """After a restart: which of these instances are still there. What the run has beyond them
        and what these launches, which are under way, may have brought, is given back.
        """

    async def launch(self, token: str, orphan_timeout_s: float | None = None) -> Launched:
        """One instance for this token, once its agent takes connections. `orphan_timeout_s`: how
        long it may cost without ever having had one, before it ends itself; None if nobody counts.

        Raises `errors.LaunchError`, after whatever it had brought was given back: what went wrong,
        whether to ask again, when it ran.
        """

    async def connect(self, instance: str) -> Connection:
        """A byte stream to the instance's agent, which is started if it does not run."""

    async def end_agent(self, instance: str, grace_s: float) -> None:
        """End an agent that will not talk to us, but not the instance: its trials may save for at
        most `grace_s` seconds. `connect` then starts one that does, which takes up its journal.
        """

    def address(self, instance: str) -> str:
        """Where other instances reach this one."""

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        """End the instance and everything on it, or whatever the launch of this token has brought
        or would still bring.

        Returns when nothing of it costs any more. A machine that costs nothing by itself and cannot
        be reached is waited for no longer than `spare_s` seconds: what is there ends with its
        agent's lease.
        """

    async def loss(self) -> Loss:
        """Wait for the next instance that is found to be gone. May wait for ever."""

    async def leftovers(self) -> list[str]:
        """What of the run still costs something, asked afresh: instances and volumes, one line
        each.
        """

    async def close(self) -> None:
        """Let go of connections; ends nothing."""


async def never() -> Loss:
    """The `loss` of a provider whose instances cannot vanish."""
    forever: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
    return await forever
