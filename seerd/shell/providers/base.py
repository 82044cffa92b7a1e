"""What the shell needs of any source of instances.

The one rule: every call may be repeated. Launching under the same token again gives the same instance, connecting starts an agent only if
none answers, and terminating what is gone is a success. Failures are `errors.ProviderError`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Provider(Protocol):
    """Instances with an agent on each."""

    async def launch(self, token: str) -> str:
        """One instance for this token; its id, once it runs."""

    async def connect(self, instance: str) -> Connection:
        """A byte stream to the instance's agent, which is started if it does not run."""

    async def terminate(self, instance: str) -> None:
        """End the instance and everything on it; returns when nothing of it is left."""

    async def gone(self, instance: str) -> bool:
        """Whether the instance does not exist any more and cannot come back."""
