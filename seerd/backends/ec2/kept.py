"""Instances that wait for the next run of this home. No process of seerd is theirs meanwhile: the
run before has paid them until they end themselves, and each has a token here, a folder with what is
needed to log in. Whoever renames the token has the instance; there is no other claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import msgspec

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.instances import COMMAND, HARD_END, KEPT, RUN, SINCE, tag_time
from seerd.backends.ec2.request import Candidate, Ec2Settings, tags
from seerd.backends.ssh.connecting import RemoteMachine
from seerd.clock import wall
from seerd.errors import ProviderError

OFF_S = 30.0
"""So many seconds before its time is over an instance powers itself off: it is billed until that is
done, and its timer may have been set a little late.
"""
LATE_S = 10.0  # how much later than asked the timer may run out, seconds: shutting down takes 20
LEAST_S = 20.0  # before it powers itself off nobody takes it any more, seconds
TAKING_S = 20.0  # how long an instance may take until it has the next run's agent, seconds
ALIKE = (
    *("owner", "region", "capacity", "security_groups", "key", "address", "tags"),
    *("volume_gb", "throughput", "iops", "load_rate", "keep_s", "max_usd_per_h"),
    *("scratch", "containers"),
)
"""What the settings of both runs must have in common, beside image, type, subnet and market."""


class KeptInstance(msgspec.Struct, frozen=True):
    """An instance that waits."""

    instance: str  # its id
    alike: str  # what another run's settings must be like, as a checksum
    place: tuple[str, str, bool]  # its type, its subnet, and whether it is a spot instance
    off_at: float  # when it powers itself off, wall clock, seconds since 1970
    host_key: str  # its public host key, as OpenSSH writes it


class Leaving(Protocol):
    """The way into machines that are left and taken: a `Remote`, which documents the methods."""

    async def let_go(self, machine: RemoteMachine, until: float) -> float: ...
    async def end_in(self, machine: RemoteMachine, left_s: float) -> None: ...
    async def forget(self, name: str) -> None: ...


class KeptInstances:
    """Those of one home, in `folder`, as one run lets go of and takes them. `keys`: the run's
    folder of keys, which gets the tokens that it has taken.
    """

    def __init__(self, folder: Path, keys: Path, remote: Leaving) -> None:
        self._folder = folder
        self._keys = keys
        self._remote = remote

    @property
    def let_go(self) -> set[str]:
        """The instances that are not the run's any more."""
        return {path.name.removeprefix("let-go-") for path in self._keys.glob("let-go-*")}

    async def leave(self, machine: RemoteMachine, until: float, within_s: float) -> None:
        """Leave nothing of this run, within so many seconds, on an instance that ends itself, so
        that it costs nothing more from `until` on (wall clock, seconds since 1970). Raises
        `ProviderError`.
        """
        off_at = until - OFF_S
        try:
            async with asyncio.timeout(within_s):
                left_s = await self._remote.let_go(machine, off_at)
        except TimeoutError:
            raise ProviderError(f"it was not left within {within_s:.0f}s") from None
        if wall() + left_s > off_at + LATE_S:
            raise ProviderError("it would end too late")
        await self._remote.forget(machine.name)

    async def offer(
        self, cloud: Cloud, machine: RemoteMachine, run: str, kept: KeptInstance
    ) -> None:
        """Let the next run have an instance that was left. Raises `ProviderError`; this run has to
        end it then.
        """
        assert machine.key is not None
        mark = self._keys / f"let-go-{kept.instance}"
        try:
            mark.touch()
            until = tag_time(kept.off_at + OFF_S)
            shown = {RUN: f"{run}{KEPT}", COMMAND: "", HARD_END: until, SINCE: ""}
            await instances.tag(cloud, kept.instance, shown)
            await asyncio.to_thread(self._write, kept, machine.key.read_bytes())
        except (OSError, ProviderError) as error:
            mark.unlink(missing_ok=True)
            raise ProviderError(f"no other run can be let to have it: {error}") from error

    def claim(self, token: str, alike: str, places: Collection[tuple[str, str, bool]]) -> bool:
        """Take an instance for this launch that is like this, in one of these places; return
        whether there was one. No two runs take the same.
        """
        for path in sorted(self._folder.glob("i-*")):
            kept = _read(path)
            if kept is None or kept.off_at < wall():
                shutil.rmtree(path, ignore_errors=True)
            elif kept.off_at - LEAST_S > wall() and kept.alike == alike and kept.place in places:
                with contextlib.suppress(OSError):  # another run was faster
                    path.rename(self._taken(token))
                    return True
        return False

    def taken(self, token: str) -> KeptInstance | None:
        """Return the instance that this launch has taken; None: none."""
        return _read(self._taken(token))

    def access(self, token: str) -> tuple[tuple[str, ...], Path] | None:
        """Return the host keys and the key that open the instance that this launch has taken."""
        kept = self.taken(token)
        if kept is None:
            return None
        return (kept.host_key,), self._taken(token) / "id_ed25519"

    def drop(self, token: str) -> None:
        """Forget what this launch has taken: that instance has ended."""
        shutil.rmtree(self._taken(token), ignore_errors=True)

    async def mark(self, cloud: Cloud, instance: str, settings: Ec2Settings, token: str) -> None:
        """Give an instance the tags of this launch. Raises `AwsError`."""
        own = tags(settings, token) | {SINCE: f"{wall():.3f}"}
        await instances.tag(cloud, instance, own)

    async def end_in(self, machine: RemoteMachine, hard_end: float) -> None:
        """Have an instance end itself at this run's hard end. Raises `ProviderError`."""
        await self._remote.end_in(machine, hard_end - wall())

    def _taken(self, token: str) -> Path:
        return self._keys / f"taken-{hashlib.sha256(token.encode()).hexdigest()[:32]}"

    def _write(self, kept: KeptInstance, key: bytes) -> None:
        draft = self._folder / f".{kept.instance}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700, parents=True)
        (draft / "about.json").write_bytes(msgspec.json.encode(kept))
        private = os.open(draft / "id_ed25519", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(private, "wb") as file:
            file.write(key)
        draft.rename(self._folder / kept.instance)


def alike(settings: Ec2Settings, image: str) -> str:
    """Return what runs must have in common to use each other's instances, as a checksum."""
    common = {name: getattr(settings, name) for name in ALIKE} | {"image": image}
    return hashlib.sha256(json.dumps(common, sort_keys=True, default=str).encode()).hexdigest()


def place_of(settings: Ec2Settings, candidate: Candidate) -> tuple[str, str, bool]:
    """Return the place of an instance that is asked for here."""
    spot = settings.market == "spot" and not candidate.fallback
    return candidate.type, candidate.subnet, spot


def _read(path: Path) -> KeptInstance | None:
    try:
        return msgspec.json.decode((path / "about.json").read_bytes(), type=KeptInstance)
    except (OSError, msgspec.MsgspecError):
        return None
