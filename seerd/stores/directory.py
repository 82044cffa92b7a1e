"""A directory as the checkpoint store. A file gets its name only when its bytes are on the disk and
have the expected checksum, now or when their manifest was written and nobody has written to them
since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from seerd.agent.copying import copy_file
from seerd.agent.manifest import LARGEST_MANIFEST, Manifest, by_number, is_safe
from seerd.agent.protocol import Ask, Grant, Parts
from seerd.errors import StoreError
from seerd.stores.base import Trouble, stored


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """Checkpoints under `folder`: see `base.Store` and `by_address.StorePlace`."""

    folder: Path

    by_urls: ClassVar[bool] = False

    @property
    def address(self) -> str:
        return str(self.folder.resolve())

    def of_run(self, run: str) -> str:
        return str((self.folder / run).resolve())

    def store(self, run: str, expires: float, region: str | None) -> DirectoryStore:
        return self

    async def troubles(self, region: str | None) -> list[Trouble]:
        """Return none: the machines that use it are asked."""
        return []

    async def data_troubles(self, region: str | None) -> list[Trouble]:
        return [Trouble(f"{self.folder} is no address of data")]

    def what_stays(self) -> str:
        """Return nothing: it is removed with the run."""
        return ""

    def prolong(self, expires: float) -> None:
        """Do nothing: nothing expires."""

    async def open(self) -> None:
        """Do nothing: agents make the directory."""

    async def time(self) -> float | None:
        """Return the time of a file that is made now: the directory may be another machine's."""

        def made_now() -> float:
            nearest = next(path for path in (self.folder, *self.folder.parents) if path.is_dir())
            with tempfile.TemporaryFile(dir=nearest) as file:
                return os.fstat(file.fileno()).st_mtime

        try:
            return await asyncio.to_thread(made_now)
        except OSError:
            return None

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant | None:
        return None

    async def parts(self, ask: Ask) -> Parts:
        return Parts(ask.trial, ask.attempt, ask.name, 0, [], "", "")

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        """Do nothing: agents delete checkpoints that are no longer needed."""

    async def newer(self, trial: str, attempt: int, newest: str) -> list[Manifest]:
        """Return the manifests of any attempt: in a directory, names sort by age."""
        try:
            return await asyncio.to_thread(_newer, self.folder / trial, newest)
        except OSError as error:
            raise StoreError(
                f"newer checkpoints of {trial} cannot be listed: {error.strerror}"
            ) from error

    async def set_aside(self, known: Container[str]) -> dict[str, float]:
        """Rename the folders of other trials from `TRIAL` to `.TRIAL-lost-SECONDS`."""
        try:
            return await asyncio.to_thread(_set_aside, self.folder, known)
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be renamed: {error.strerror}") from error

    async def manifest(self, trial: str, name: str) -> Manifest:
        path = self.folder / trial / f"{name}.json"
        try:
            manifest = stored(name, await asyncio.to_thread(_manifest, path))
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        if manifest is None:
            raise StoreError(f"{path} is not there, or damaged", damaged=True)
        return manifest

    def place(self, trial: str, name: str) -> str:
        return str(self.folder / trial / f"{name}.pt")

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        """Link or copy `TRIAL/NAME.pt` to `to`."""
        await asyncio.to_thread(_copy_checked, self.folder / trial / f"{name}.pt", sha256, to)


def at(address: str) -> DirectoryStore:
    """Return the directory of this path."""
    return DirectoryStore(Path(address))


def _newer(folder: Path, newest: str) -> list[Manifest]:
    every = sorted(folder.glob("[!.]*.json"), key=lambda path: by_number(path.stem))
    later = (
        stored(path.stem, _manifest(path))
        for path in every
        if by_number(path.stem) > by_number(newest) and is_safe(path.stem)
    )
    return [manifest for manifest in later if manifest is not None]


def _set_aside(folder: Path, known: Container[str]) -> dict[str, float]:
    made: dict[str, float] = {}
    for path in folder.glob("[!.]*/[!.]*.json"):
        if (trial := path.parent.name) not in known:
            made[trial] = max(made.get(trial, 0.0), path.stat().st_mtime)
    for trial, at in made.items():
        (folder / trial).rename(folder / f".{trial}-lost-{at:.0f}")
    return made


def _manifest(path: Path) -> bytes:
    """Return the file's bytes; none if it is not a regular file, since trials can write here."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(LARGEST_MANIFEST + 1)


def _copy_checked(source: Path, sha256: str, to: Path) -> None:
    part = to.with_name(f".{to.name}.part")
    to.parent.mkdir(parents=True, exist_ok=True)
    part.unlink(missing_ok=True)
    if not source.is_file():
        raise StoreError(f"{source} is not there, or no file", damaged=True)
    if not _linked(source, part):
        try:
            copy_file(source, part)
        except OSError as error:
            raise StoreError(
                f"{source} cannot be copied: {error.strerror}", damaged=not source.is_file()
            ) from error
        with part.open("rb") as copy:
            found = hashlib.file_digest(copy, "sha256").hexdigest()
            os.fsync(copy.fileno())
        if found != sha256:
            part.unlink()
            raise StoreError(
                f"{source} is damaged: its SHA-256 is {found}, {sha256} was confirmed", damaged=True
            )
    part.rename(to)


def _linked(source: Path, part: Path) -> bool:
    """Link a checkpoint, if possible, that is unchanged since its manifest, for which its agent
    compared its checksum and flushed it. Return whether that was so.
    """
    with contextlib.suppress(OSError):
        about, confirmed = source.lstat(), source.with_suffix(".json").stat()
        if stat.S_ISREG(about.st_mode) and about.st_mtime_ns < confirmed.st_mtime_ns:
            os.link(source, part)
            return True
    return False
