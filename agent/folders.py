"""A folder as one file, so that a checkpoint that is a folder is stored, checked and moved like any
other.

The one rule: the file begins with a list of all files, each with its size and checksum, and nothing
is unpacked that is not exactly as the list says. It is a plain tar, which people can unpack
themselves.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple

from seerd.agent.manifest import SHA256, CheckpointError

LISTING = "seerd-files.json"
LONGEST_LISTING = 16 << 20
BLOCK = 1 << 20


def files_of(folder: Path) -> List[str]:
    """List the files in this folder and below it, by their paths relative to it, sorted.

    A link to a file counts as that file; links to folders, and whatever is neither file nor folder,
    are left out.
    """
    found = []
    for top, _, names in os.walk(folder):
        paths = (os.path.join(top, name) for name in names)
        found += [os.path.relpath(path, folder) for path in paths if os.path.isfile(path)]
    return sorted(found)


def pack(folder: Path, out: BinaryIO) -> None:
    """Write the folder into this file. Raises `OSError` if one of its files cannot be read, or
    changes meanwhile.
    """
    names = files_of(folder)
    listing = json.dumps(
        {
            "version": 1,
            "files": [
                {"path": name, "size": size, "sha256": digest}
                for name in names
                for size, digest in [_measured(folder / name)]
            ],
        }
    ).encode()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        about = tarfile.TarInfo(LISTING)
        about.size = len(listing)
        tar.addfile(about, io.BytesIO(listing))
        for name in names:
            with open(folder / name, "rb") as file:
                there = os.fstat(file.fileno())
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = there.st_size, there.st_mtime
                tar.addfile(entry, file)


def is_packed(path: Path) -> bool:
    """Tell whether this file is a folder that `pack` has written."""
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
            return first is not None and first.name == LISTING
    except (OSError, tarfile.TarError, ValueError):
        return False


def unpack(packed: Path, to: Path) -> None:
    """Make the folder `to` anew out of what `pack` has written. It appears when it is whole.

    Raises `CheckpointError` if anything in the file is not as its list says, `OSError` if the
    folder cannot be written.
    """
    part = to.with_name(f".{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        with tarfile.open(packed, "r:") as tar:
            _unpack_all(tar, part)
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{packed.name} is no folder as it was packed: {error}") from None
    shutil.rmtree(to, ignore_errors=True)
    os.replace(part, to)


def _unpack_all(tar: tarfile.TarFile, part: Path) -> None:
    members = iter(tar)
    expected = _listed(tar, next(members))
    for member in members:
        size, digest = expected.pop(member.name)
        path = part / _inside(member.name)
        source = tar.extractfile(member) if member.isreg() else None
        if source is None:
            raise CheckpointError(f"{member.name} is no file")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as out:
            found = _copied(source, out)
        os.utime(path, (member.mtime, member.mtime))
        if found != (size, digest):
            raise CheckpointError(f"{member.name} does not have the checksum of the list")
    if expected:
        raise CheckpointError(f"{next(iter(expected))} is missing")


def _listed(tar: tarfile.TarFile, first: tarfile.TarInfo) -> Dict[str, Tuple[int, str]]:
    source = tar.extractfile(first)
    if first.name != LISTING or source is None or first.size > LONGEST_LISTING:
        raise CheckpointError("it has no list of its files")
    told: List[Dict[str, Any]] = json.loads(source.read())["files"]
    if not all(SHA256.fullmatch(one["sha256"]) for one in told):
        raise CheckpointError("its list has no checksums")
    return {one["path"]: (one["size"], one["sha256"]) for one in told}


def _inside(name: str) -> Path:
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise CheckpointError(f"{name!r:.80} is no path inside a folder")
    return path


def _measured(path: Path) -> Tuple[int, str]:
    with open(path, "rb") as file:
        digest, size = hashlib.sha256(), 0
        for block in _blocks(file):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _copied(source: Any, out: BinaryIO) -> Tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for block in _blocks(source):
        digest.update(block)
        out.write(block)
        size += len(block)
    return size, digest.hexdigest()


def _blocks(file: Any) -> Iterator[bytes]:
    return iter(lambda: file.read(BLOCK), b"")
