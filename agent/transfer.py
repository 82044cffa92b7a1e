"""Checkpoints between the attempt's folder and the store: a directory that this instance can write.

The one rule: in the store a checkpoint exists when its manifest does, and the manifest comes last, after the bytes are there whole, with
the checksum that the manifest names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
KEPT = 2


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
            told = json.loads(path.read_bytes())
            made = cls(told["name"], told["epoch"], told["metrics"], told["sha256"], told["size"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TransferError(f"{path} is no manifest: {error}") from None
        whole = isinstance(made.epoch, int) and isinstance(made.size, int) and isinstance(made.metrics, dict)
        if made.name != path.stem or not whole or not isinstance(made.sha256, str):
            raise TransferError(f"{path} is no manifest of {path.stem}")
        return made


def is_safe(name: Any) -> bool:
    """Whether a name from outside may become part of a path."""
    return isinstance(name, str) and SAFE.fullmatch(name) is not None


def store(local: Path, to: Path, name: str) -> Manifest:
    """Put a checkpoint of the folder `local` into the folder `to`; there, older ones than the newest two are dropped."""
    manifest = Manifest.read(local / f"{name}.json")
    _copy(local / f"{name}.pt", to / f"{name}.pt", manifest)
    _rename_into(to / f"{name}.json", (local / f"{name}.json").read_bytes())
    for old in sorted(to.glob("[0-9]*.json"))[:-KEPT]:
        old.unlink()
        with contextlib.suppress(FileNotFoundError):
            old.with_suffix(".pt").unlink()
    return manifest


def fetch(store_folder: Path, local: Path, names: List[str]) -> Optional[str]:
    """Have the newest readable of these (newest first) in the folder `local`; which one it is, None if there is none."""
    for name in names:
        with contextlib.suppress(TransferError):
            if not _good(local, name):
                manifest = Manifest.read(store_folder / f"{name}.json")
                _copy(store_folder / f"{name}.pt", local / f"{name}.pt", manifest)
                _rename_into(local / f"{name}.json", (store_folder / f"{name}.json").read_bytes())
            return name
    return None


def _good(folder: Path, name: str) -> bool:
    try:
        manifest = Manifest.read(folder / f"{name}.json")
        return _checksum(folder / f"{name}.pt") == manifest.sha256
    except (TransferError, OSError):
        return False


def _copy(source: Path, to: Path, manifest: Manifest) -> None:
    """A hard link where that is possible (the files are never written again), else a copy; its checksum is that of the manifest."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
            _flush(part)
        if part.stat().st_size != manifest.size or _checksum(part) != manifest.sha256:
            part.unlink()
            raise TransferError(f"{source} does not have the checksum of its manifest")
        os.replace(part, to)
    except OSError as error:
        raise TransferError(f"{source} cannot be copied to {to}: {error.strerror}") from None


def _rename_into(to: Path, data: bytes) -> None:
    part = to.with_name(f".{to.name}")
    part.write_bytes(data)
    _flush(part)
    os.replace(part, to)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
