"""Checkpoints between the attempt's folder and the store: a directory that this instance can write.

The one rule: in the store a checkpoint exists when its manifest does, and the manifest comes last, after the bytes are there whole, with
the checksum that the manifest names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
KEPT = 2
LARGEST_MANIFEST = 1 << 16
log = logging.getLogger("agent")


class TransferError(Exception):
    """A checkpoint could not be stored or fetched; the text says why."""


@dataclass(frozen=True)
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
        try:
            told = json.loads(_small(path))
            made = cls(told["name"], told["epoch"], told["metrics"], told["sha256"], told["size"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransferError(f"{path} is no manifest: {error}") from None
        whole = type(made.epoch) is int and type(made.size) is int and isinstance(made.metrics, dict)
        if made.name != path.stem or not whole or not isinstance(made.sha256, str):
            raise TransferError(f"{path} is no manifest of {path.stem}")
        return made


def is_safe(name: Any) -> bool:
    """Whether a name from outside may become part of a path."""
    return isinstance(name, str) and SAFE.fullmatch(name) is not None


def store(local: Path, to: Path, name: str) -> Manifest:
    """Put a checkpoint of the folder `local` into the folder `to`; there, older ones than the newest two are dropped.

    Raises `TransferError`.
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
    for stale in set(_names(local)) - set(names):
        _remove(local, stale)
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
        _rename_into(to / f"{name}.json", _small(source / f"{name}.json"))
        _flush(to)
    except OSError as error:
        raise TransferError(f"{name} cannot be copied from {source} to {to}: {error.strerror}") from None
    return manifest


def _small(path: Path) -> bytes:
    """The file's content; a manifest is small, and nothing that could block on reading."""
    if not path.is_file() or path.stat().st_size > LARGEST_MANIFEST:
        raise TransferError(f"{path} is missing, no file, or too large")
    return path.read_bytes()


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
        return _checksum(folder / f"{name}.pt") == manifest.sha256
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
    if part.stat().st_size != manifest.size or _checksum(part) != manifest.sha256:
        part.unlink()
        raise TransferError(f"{source} does not have the checksum of its manifest")
    _flush(part)
    os.replace(part, to)


def _rename_into(to: Path, data: bytes) -> None:
    part = to.with_name(f".{to.name}")
    part.write_bytes(data)
    _flush(part)
    os.replace(part, to)


def _flush(path: Path) -> None:
    """A file's bytes, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
