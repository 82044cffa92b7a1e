"""Checkpoints between the attempt's folder and a store, here a directory. In it a checkpoint exists
when its manifest does, which comes last, when the bytes have the checksum that it names.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from seerd.agent.copying import copy_file
from seerd.agent.manifest import (
    CheckpointError,
    Comparison,
    Manifest,
    by_number,
    is_safe,
    needed,
    small_file,
)

AGAIN_S = 0.5
"""Seconds after which a directory that could not be written is tried again."""
Piece = Callable[[int], bool]
log = logging.getLogger("agent")


class NotNowError(CheckpointError):
    """The store has no place for a checkpoint now, but may have one later."""

    what = ""  # what is wrong with the whole store, as in `Complained`; empty: perhaps nothing


@dataclass
class Directory:
    """A trial's store in a directory; not ready while that cannot be written (full, not mounted).
    It blocks, so it is called in a thread.
    """

    folder: Path
    goal: Comparison
    again_at: float = 0.0  # when it is tried again after a failure, by the monotonic clock
    cut_at: float = math.inf  # when a put is given up, by the monotonic clock
    cut_s: float = 1.0  # that storing may still take when its trial has no time left

    def ready(self) -> bool:
        """Return whether it has not just failed."""
        return time.monotonic() >= self.again_at

    def put(self, local: Path, name: str) -> tuple[str, Manifest]:
        """Put a checkpoint of the folder `local` into the directory, where only those that are
        `needed` stay; return its name there. Raises `CheckpointError`, which is a `NotNowError` if
        the directory cannot be written or no time is left.
        """
        try:
            manifest = _transfer(local, self.folder, name, self._go_on)
        except NotNowError:
            self.again_at = time.monotonic() + AGAIN_S
            raise
        try:
            names = _names(self.folder)
            worths = {stored: self.goal.worth_at(self.folder, stored) for stored in names}
            for old in set(worths) - needed(worths) - {name}:
                _remove(self.folder, old)
        except OSError as error:
            why = "older checkpoints in %s cannot be removed: %s"
            log.warning(why, self.folder, error.strerror)
        return name, manifest

    def fetch(self, local: Path, names: list[str]) -> Optional[str]:
        """Fetch the newest good one of these checkpoints (newest first) into the folder `local`,
        and remove all others there; return its name, None if there is none. Raises `OSError`.
        """
        local.mkdir(parents=True, exist_ok=True)
        keep_only(local, *names)
        for name in names:
            try:
                if not good(local, name):
                    _transfer(self.folder, local, name)
            except CheckpointError as error:
                log.warning("checkpoint %s cannot be restored: %s", name, error)
            else:
                return name
        return None

    def free(self) -> Optional[int]:
        """Return the free bytes of the directory's disk; None: unknown."""
        try:
            return shutil.disk_usage(self.folder).free
        except OSError:
            return None

    def last_call(self) -> None:
        """Do nothing: there is always room for one more."""

    def cut(self) -> None:
        """Give up what takes longer than `cut_s` from the first call on."""
        self.cut_at = min(self.cut_at, time.monotonic() + self.cut_s)

    def _go_on(self, _: int) -> bool:
        """Return that each piece is to be flushed. Raises `NotNowError` when it is too late."""
        if time.monotonic() >= self.cut_at:
            raise NotNowError("there is no time left to store it")
        return True


def _transfer(source: Path, to: Path, name: str, go_on: Piece = lambda size: True) -> Manifest:
    manifest = Manifest.read(source / f"{name}.json")
    try:
        to.mkdir(parents=True, exist_ok=True)
        _copy(source / f"{name}.pt", to / f"{name}.pt", manifest, go_on)
        write_named(to / f"{name}.json", small_file(source / f"{name}.json"))
    except OSError as error:
        why = f"{name} cannot be copied from {source} to {to}: {error.strerror}"
        raise NotNowError(why) from None
    return manifest


def keep_only(folder: Path, *names: str) -> None:
    """Remove all other checkpoints of this folder."""
    for stale in set(_names(folder)) - set(names):
        _remove(folder, stale)


def _names(folder: Path) -> list[str]:
    names = (path.stem for path in folder.glob("*.json") if is_safe(path.stem))
    return sorted(names, key=by_number)


def _remove(folder: Path, name: str) -> None:
    """Remove a checkpoint, first its manifest: without one it is no checkpoint."""
    for suffix in (".json", ".pt"):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{name}{suffix}").unlink()


def good(folder: Path, name: str, sha256: str = "") -> bool:
    """Return whether the checkpoint is there whole, and has this checksum, if one is given."""
    try:
        manifest = Manifest.read(folder / f"{name}.json")
        if sha256 not in ("", manifest.sha256):
            return False
        return checksum(folder / f"{name}.pt") == manifest.sha256
    except (CheckpointError, OSError):
        return False


def _copy(source: Path, to: Path, manifest: Manifest, go_on: Piece) -> None:
    """Link a checkpoint's bytes, which are never written again, or copy them. Raises
    `CheckpointError` for a wrong checksum.
    """
    if not source.is_file():
        raise CheckpointError(f"{source} is not a file")
    part = to.with_name(f".{to.name}")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        os.link(source, part)
    except OSError:
        try:
            copy_file(source, part, go_on)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()  # what is not whole must not take the room of others
            raise
    if part.stat().st_size != manifest.size or checksum(part, go_on) != manifest.sha256:
        part.unlink()
        raise CheckpointError(f"{source} does not have the checksum of its manifest")
    flush(part)
    os.replace(part, to)


def write_named(to: Path, data: bytes) -> None:
    """Write a file that appears whole."""
    part = to.with_name(f".{to.name}")
    part.write_bytes(data)
    name_file(part, to)


def name_file(part: Path, to: Path) -> None:
    """Flush a file with a temporary name to the disk, then give it its own name."""
    flush(part)
    os.replace(part, to)
    flush(to.parent)


def flush(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path, go_on: Piece = lambda size: True) -> str:
    """Return the SHA-256 of a file, in hex. `go_on` is called after each piece."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            go_on(len(block))
    return digest.hexdigest()
