"""What tests of the EC2 provider share: its settings against the front, and the far side of SSH as
a counter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from seerd.backends.base import Connection
from seerd.backends.ec2.provider import Ec2Settings
from seerd.backends.ssh.connecting import OnFailure, UnreachableError
from seerd.backends.ssh.remote import RemoteMachine
from seerd.clock import unlimited
from seerd.errors import ProviderError
from tests.aws.front import REGION, Front

TRY_S = 4.0


@dataclass(slots=True)
class Door:
    """In the place of SSH: who was waited for, and with which keys; `trouble` says what goes wrong
    with a machine, "" for nothing.
    """

    trouble: Callable[[RemoteMachine], str] = lambda machine: ""
    waited: list[RemoteMachine] = field(default_factory=list)
    patience_s: list[float] = field(default_factory=list)
    # attempts to log in that fail first, one every `TRY_S` seconds
    refusals: list[UnreachableError] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None
    lease_s: Callable[[], float] = unlimited

    async def ready(
        self, machine: RemoteMachine, patience_s: float, *, on_failure: OnFailure
    ) -> None:
        self.waited.append(machine)
        for refusal in self.refusals:
            on_failure(refusal)
            await asyncio.sleep(TRY_S)
        self.patience_s.append(patience_s)
        if self.gate is not None:
            async with asyncio.timeout(patience_s):
                await self.gate.wait()
        if trouble := self.trouble(machine):
            raise ProviderError(f"{machine.name} ({machine.address}): {trouble}")

    async def connect(self, machine: RemoteMachine) -> Connection:
        raise ProviderError(f"nobody listens at {machine.address}")

    async def forget(self, name: str) -> None:
        self.forgotten.append(name)

    async def close(self) -> None:
        pass


def settings(front: Front, folder: Path, **changes: object) -> Ec2Settings:
    """Two types in all zones of the default network."""
    plain: dict[str, object] = {
        "run": "2026-11-20-a",
        "name": "digits",
        "owner": "arn:aws:iam::123456789012:user/me",
        "region": REGION,
        "instance_types": ("g4dn.12xlarge", "p3.8xlarge"),
        "gpus": 4,
        "image": changes.get("image") or linux(front),
        "volume_gb": 100,
        "tags": {"team": "vision"},
        "hard_end": float(int(time.time()) + 3600),
        "boot_s": 30.0,
        "keys": folder / "keys",
    }
    return Ec2Settings(**(plain | changes))  # type: ignore[arg-type]


def linux(front: Front) -> str:
    """An image that moto comes with."""
    filters = [{"Name": "name", "Values": ["ubuntu/images/hvm-ssd/ubuntu-trusty*"]}]
    return str(front.client("ec2").describe_images(Filters=filters)["Images"][0]["ImageId"])


async def holds(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], for_s: float = 30.0
) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + for_s
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.02)
