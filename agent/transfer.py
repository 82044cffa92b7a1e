"""Checkpoints between the attempt's folder and the store; here, a directory that this instance can write.

The one rule: in the store a checkpoint exists when its manifest does, and the manifest comes last, after the bytes are there whole, with
the checksum that the manifest names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Protocol, Tuple

from seerd.agent import plainfile
from seerd.agent.protocol import MOST_REPORTS, NAME
from seerd.agent.record import record

KEPT = 2
AGAIN_S = 0.5
"""A directory that could not be written is tried again after so long."""
LARGEST_MANIFEST = 1 << 16
LARGEST_CHECKPOINT = 5 << 40
"""S3 has no larger objects (docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html)."""
log = logging.getLogger("agent")


class TransferError(Exception):
    """A checkpoint could not be stored or fetched; the text says why."""


class NotNowError(TransferError):
    """The store has no place for it; that may change."""


@record
class Manifest:
    """What `NAME.json` says of `NAME.pt`."""

    name: str
    epoch: int
    metrics: Dict[str, Any]
    sha256: str
    size: int

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Raises `TransferError` for anything that is not exactly a manifest of that name."""
        return cls.parse(small_file(path), path.stem)

    @classmethod
    def parse(cls, raw: bytes, name: Optional[str] = None) -> "Manifest":
        """Of this name, or of any that may be part of a path. Raises `TransferError`."""
        try:
            told = json.loads(raw)
            made = cls(told["name"], told["epoch"], told["metrics"], told["sha256"], told["size"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransferError(f"this is no manifest: {error}") from None
        whole = type(made.epoch) is int and type(made.size) is int and isinstance(made.metrics, dict)
        named = made.name == name if name is not None else is_safe(made.name)
        possible = whole and 0 <= made.size <= LARGEST_CHECKPOINT and 0 <= made.epoch <= MOST_REPORTS
        if not named or not possible or not isinstance(made.sha256, str):
            raise TransferError(f"this is no manifest of {name or 'a checkpoint'}")
        return made


class Shelf(Protocol):
    """The store as one attempt sees it. What takes long blocks, and is done in a thread of its own."""

    def ready(self) -> bool:
        """Whether there is a place for the next checkpoint."""

    def put(self, local: Path, name: str) -> Tuple[str, Manifest]:
        """Put a checkpoint of the folder `local` into the store; its name there. Raises `TransferError`."""

    def fetch(self, local: Path, names: List[str]) -> Optional[str]:
        """Have the newest good one of these (newest first) in the folder `local`, and no others; its name there, None if there is none.
        Raises `OSError`.
        """

    def last_call(self) -> None:
        """What is put from now on is the last."""

    def cut(self) -> None:
        """End what is under way, where that may take long."""


@dataclass
class Directory:
    """A shelf in a directory: quick, and ready unless the directory could not be written just now (full, not mounted, write-protected)."""

    folder: Path
    again_at: float = 0.0

    def ready(self) -> bool:
        """Whether it has not just failed."""
        return time.monotonic() >= self.again_at

    def put(self, local: Path, name: str) -> Tuple[str, Manifest]:
        """Under its own name. `NotNowError` where the directory cannot be written: it is tried again."""
        try:
            return name, store(local, self.folder, name)
        except NotNowError:
            self.again_at = time.monotonic() + AGAIN_S
            raise

    def fetch(self, local: Path, names: List[str]) -> Optional[str]:
        """See `Shelf`."""
        return fetch(self.folder, local, names)

    def last_call(self) -> None:
        """There is always room for one more."""

    def cut(self) -> None:
        """What has begun is soon done."""


def is_safe(name: Any) -> bool:
    """Whether a name from outside may become part of a path."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def store(local: Path, to: Path, name: str) -> Manifest:
    """Put a checkpoint of the folder `local` into the folder `to`; there, older ones than the newest two are dropped.

    Raises `TransferError`, which is a `NotNowError` where a folder cannot be written.
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
    """Have the newest readable of these (newest first) in the folder `local`, and no others; which one it is, None if there is none.

    Raises `OSError` if the folder itself cannot be written.
    """
    local.mkdir(parents=True, exist_ok=True)
    keep_only(local, *names)
    for name in names:
        try:
            if not _good(local, name):
                _transfer(store_folder, local, name)
        except TransferError as error:
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
        raise NotNowError(f"{name} cannot be copied from {source} to {to}: {error.strerror}") from None
    return manifest


def keep_only(folder: Path, *names: str) -> None:
    """Remove all other checkpoints of this folder."""
    for stale in set(_names(folder)) - set(names):
        _remove(folder, stale)


def small_file(path: Path) -> bytes:
    """The file's content; a manifest is small, and nothing that could block on reading. Raises `TransferError`."""
    try:
        content = plainfile.read(path, 0, LARGEST_MANIFEST + 1)
    except OSError as error:
        raise TransferError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_MANIFEST:
        raise TransferError(f"{path} is too large")
    return content


def _names(folder: Path) -> List[str]:
    """Checkpoints that are there, oldest first; a name with a dot in front is still being written."""
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
    except (TransferError, OSError):
        return False


def _copy(source: Path, to: Path, manifest: Manifest) -> None:
    """A hard link where that is possible (the files are never written again), else a copy; its checksum is that of the manifest."""
    if not source.is_file():
        raise TransferError(f"{source} is not a file")
    part = to.with_name(f".{to.name}")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    if part.stat().st_size != manifest.size or checksum(part) != manifest.sha256:
        part.unlink()
        raise TransferError(f"{source} does not have the checksum of its manifest")
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
