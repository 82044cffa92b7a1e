"""Checkpoints between the attempt's folder and the store; here, a directory that this instance can
write.

The one rule: in the store a checkpoint exists when its manifest does, and the manifest comes last,
after the bytes are there whole, with the checksum that the manifest names.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Protocol, Tuple

from seerd.agent.manifest import KEPT, CheckpointError, Manifest, is_safe, small_file

AGAIN_S = 0.5
"""A directory that could not be written is tried again after so long."""
log = logging.getLogger("agent")


class NotNowError(CheckpointError):
    """The store has no place for it; that may change."""


class CheckpointStore(Protocol):
    """The store as one attempt sees it. What takes long blocks, and is done in a thread of its
    own.
    """

    def ready(self) -> bool:
        """Whether there is a place for the next checkpoint."""

    def put(self, local: Path, name: str) -> Tuple[str, Manifest]:
        """Put a checkpoint of the folder `local` into the store; its name there. Raises
        `CheckpointError`.
        """

    def fetch(self, local: Path, names: List[str]) -> Optional[str]:
        """Have the newest good one of these (newest first) in the folder `local`, and no others;
        its name there, None if there is none. Raises `OSError`.
        """

    def last_call(self) -> None:
        """What is put from now on is the last."""

    def cut(self) -> None:
        """End what is under way, where that may take long."""


@dataclass
class Directory:
    """A checkpoint store in a directory: quick, and ready unless the directory could not be written
    just now (full, not mounted, write-protected).
    """

    folder: Path
    again_at: float = 0.0

    def ready(self) -> bool:
        """Whether it has not just failed."""
        return time.monotonic() >= self.again_at

    def put(self, local: Path, name: str) -> Tuple[str, Manifest]:
        """Under its own name. `NotNowError` where the directory cannot be written: it is tried
        again.
        """
        try:
            return name, store(local, self.folder, name)
        except NotNowError:
            self.again_at = time.monotonic() + AGAIN_S
            raise

    def fetch(self, local: Path, names: List[str]) -> Optional[str]:
        """See `CheckpointStore`."""
        return fetch(self.folder, local, names)

    def last_call(self) -> None:
        """There is always room for one more."""

    def cut(self) -> None:
        """What has begun is soon done."""


def store(local: Path, to: Path, name: str) -> Manifest:
    """Put a checkpoint of the folder `local` into the folder `to`; there, only the newest `KEPT`
    stay.

    Raises `CheckpointError`, which is a `NotNowError` where a folder cannot be written.
    """
    manifest = _transfer(local, to, name)
    try:
        for old in _names(to)[:-KEPT]:
            if old != name:
                _remove(to, old)
    except OSError as error:
        log.warning("older checkpoints in %s cannot be removed: %s", to, error.strerror)
    return manifest


def fetch(store_folder: Path, local: Path, names: List[str]) -> Optional[str]:
    """Have the newest readable of these (newest first) in the folder `local`, and no others; which
    one it is, None if there is none.

    Raises `OSError` if the folder itself cannot be written.
    """
    local.mkdir(parents=True, exist_ok=True)
    keep_only(local, *names)
    for name in names:
        try:
            if not _good(local, name):
                _transfer(store_folder, local, name)
        except CheckpointError as error:
            log.warning("checkpoint %s cannot be restored: %s", name, error)
        else:
            return name
    return None


def _transfer(source: Path, to: Path, name: str) -> Manifest:
    manifest = Manifest.read(source / f"{name}.json")
    try:
        to.mkdir(parents=True, exist_ok=True)
        _copy(source / f"{name}.pt", to / f"{name}.pt", manifest)
        write_named(to / f"{name}.json", small_file(source / f"{name}.json"))
    except OSError as error:
        raise NotNowError(
            f"{name} cannot be copied from {source} to {to}: {error.strerror}"
        ) from None
    return manifest


def keep_only(folder: Path, *names: str) -> None:
    """Remove all other checkpoints of this folder."""
    for stale in set(_names(folder)) - set(names):
        _remove(folder, stale)


def _names(folder: Path) -> List[str]:
    """Checkpoints that are there, oldest first; a name with a dot in front is still being
    written.
    """
    return sorted(path.stem for path in folder.glob("*.json") if is_safe(path.stem))


def _remove(folder: Path, name: str) -> None:
    """The manifest first, so that what is left half removed is no checkpoint."""
    for suffix in (".json", ".pt"):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{name}{suffix}").unlink()


def _good(folder: Path, name: str) -> bool:
    try:
        manifest = Manifest.read(folder / f"{name}.json")
        return checksum(folder / f"{name}.pt") == manifest.sha256
    except (CheckpointError, OSError):
        return False


def _copy(source: Path, to: Path, manifest: Manifest) -> None:
    """A hard link where that is possible (the files are never written again), else a copy; its
    checksum is that of the manifest.
    """
    if not source.is_file():
        raise CheckpointError(f"{source} is not a file")
    part = to.with_name(f".{to.name}")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    if part.stat().st_size != manifest.size or checksum(part) != manifest.sha256:
        part.unlink()
        raise CheckpointError(f"{source} does not have the checksum of its manifest")
    _flush(part)
    os.replace(part, to)


def write_named(to: Path, data: bytes) -> None:
    """A file that appears whole."""
    part = to.with_name(f".{to.name}")
    part.write_bytes(data)
    name_file(part, to)


def name_file(part: Path, to: Path) -> None:
    """Give what was written under a temporary name its own, once it is on the disk."""
    _flush(part)
    os.replace(part, to)
    _flush(to.parent)


def _flush(path: Path) -> None:
    """A file's bytes, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    """SHA-256, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
