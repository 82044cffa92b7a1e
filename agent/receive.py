"""The receiving side of a push: a folder of files, of which only those travel that this machine
lacks. A file is kept under its checksum, and used only after that was verified. Nothing is
half-written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Iterable, NamedTuple

from seerd.agent import plainfile

KEEP_S = 30 * 86400.0
PRIVATE = 0o700


class PushError(Exception):
    """What was sent cannot be used."""


class FileEntry(NamedTuple):
    """One file of the folder."""

    path: str  # below the folder
    sha256: str
    size: int  # bytes
    executable: bool


def checked(entries: list[FileEntry]) -> list[FileEntry]:
    """Return the entries if each lies inside the folder, in no other's way. Raises `PushError`."""
    files: set[str] = {entry.path for entry in entries}
    folders: set[str] = set()
    for entry in entries:
        parts = entry.path.split("/")
        if "\0" in entry.path or any(part in ("", ".", "..") for part in parts):
            raise PushError(f"the path {entry.path!r} leads out of the folder")
        if len(entry.sha256) != 64 or not set(entry.sha256) <= set("0123456789abcdef"):
            raise PushError(f"{entry.path!r} has the checksum {entry.sha256!r}")
        folders.update(str(parent) for parent in PurePosixPath(entry.path).parents)
    if len(files) != len(entries) or files & folders:
        raise PushError("a path stands twice")
    return entries


class Cache:
    """Files by their checksum, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def missing(self, entries: Iterable[FileEntry]) -> list[str]:
        """Return the checksums of files that are not here, each once, in the entries' order."""
        wanted = dict.fromkeys(entry.sha256 for entry in entries)
        return [sha256 for sha256 in wanted if not self._has(sha256)]

    def take(self, stream: BinaryIO, sha256: str, size: int) -> None:
        """Keep the next `size` bytes of the stream. Raises `PushError` for another checksum."""
        path = self._path(sha256)
        path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                _, arrived = plainfile.copied(stream, file, size)
            if arrived != sha256:
                why = (
                    f"a file did not arrive as it was sent: its checksum is {arrived}, not {sha256}"
                )
                raise PushError(why)
            os.replace(part, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()

    def copy(self, entry: FileEntry, to: Path) -> None:
        """Copy a file to `to`; a trial may write to it. Raises `PushError` if it has changed."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with self._path(entry.sha256).open("rb") as source, to.open("wb") as target:
            if plainfile.copied(source, target, entry.size)[1] != entry.sha256:
                raise PushError(f"{entry.path} changed in the cache here while it was copied")
        to.chmod(0o700 if entry.executable else 0o600)

    def prune(self) -> None:
        """Remove files that no run has used for a month."""
        for path in self._folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_mtime < time.time() - KEEP_S:
                    path.unlink()

    def _path(self, sha256: str) -> Path:
        return self._folder / "files" / sha256[:2] / sha256

    def _has(self, sha256: str) -> bool:
        path = self._path(sha256)
        try:
            with path.open("rb") as file:
                _, present = plainfile.copied(file)
            os.utime(path)
        except OSError:
            return False
        return present == sha256


def build(cache: Cache, entries: list[FileEntry], to: Path) -> None:
    """Replace the folder `to` by one with exactly these files. Raises `PushError`."""
    new, old = to.with_name(f".{to.name}.new"), to.with_name(f".{to.name}.old")
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(mode=PRIVATE, parents=True)
    for entry in entries:
        cache.copy(entry, new / entry.path)
    with contextlib.suppress(FileNotFoundError):
        to.rename(old)
    new.rename(to)
    shutil.rmtree(old, ignore_errors=True)


class Contents(NamedTuple):
    """What a folder that was received has."""

    tree: str  # checksum of all of it, as its sender computes it; empty: something is lacking
    parts: dict[str, str]  # checksum of the files in each of its folders; "": of those in none


class Received:
    """The folder `to`, which trials may use while it gets more; a .json file says what it has."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._mark = to.with_name(f"{to.name}.json")

    def made(self) -> Contents:
        """Return what is there; nothing, if that is unknown."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            if self._to.is_dir():
                return Contents(**json.loads(self._mark.read_text()))
        return Contents("", {})

    def become(self, tree: str, entries: list[FileEntry], cache: Cache) -> None:
        """Get exactly these files, if the folder is new; else replace only those of its folders
        whose files differ, and remove none: trials may run in them.

        Raises `PushError` if a file has changed in the cache.
        """
        wanted: dict[str, list[FileEntry]] = {}
        for entry in entries:
            part = entry.path.rpartition("/")[0].partition("/")[0]
            wanted.setdefault(part, []).append(entry)
        present = self.made().parts
        sums = {
            part: hashlib.sha256(json.dumps(sorted(its)).encode()).hexdigest()
            for part, its in wanted.items()
        }
        others = [part for part, its in sums.items() if present.get(part) != its]
        if not present or "" in others:
            self._note(Contents("", {}))
            build(cache, entries, self._to)
            self._note(Contents(tree, sums))
            return
        kept = {part: its for part, its in present.items() if part not in others}
        self._note(Contents("", kept))
        for part in others:
            inside = [entry._replace(path=entry.path.partition("/")[2]) for entry in wanted[part]]
            build(cache, inside, self._to / part)
        self._note(Contents(tree, {**kept, **sums}))

    def _note(self, made: Contents) -> None:
        part = self._mark.with_name(f"{self._mark.name}.part")
        part.write_text(json.dumps(made._asdict()))
        os.replace(part, self._mark)
