"""A folder as one file, a plain tar that begins with a list of all files, with sizes and checksums,
and of links, which stay inside. Nothing is unpacked that is not exactly as the list says.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Optional

from seerd.agent import plainfile
from seerd.agent.manifest import SHA256, CheckpointError

LISTING = "seerd-files.json"
LONGEST_LISTING = 16 << 20
MOST_NAMED = 5
IN_THE_WAY = (FileExistsError, NotADirectoryError, IsADirectoryError)
"""Raised where a list has one path twice, or a path below a file."""


class FolderContents(NamedTuple):
    """What is in a folder and below it, by relative paths."""

    files: list[str]  # sorted; a link that leads out of the folder to a file counts as that file
    links: dict[str, str]  # links that stay inside, with their relative targets
    out: list[str]  # links that lead out of the folder, or nowhere


def contents(folder: Path) -> FolderContents:
    """List the files, folders and links of a folder."""
    result, top = FolderContents([], {}, []), os.path.realpath(folder)
    for above, folders, names in os.walk(folder):
        for path in (os.path.join(above, name) for name in [*folders, *names]):
            name = os.path.relpath(path, folder)
            if os.path.islink(path):
                to = _inside_target(path, name, top)
                if to is not None:
                    result.links[name] = to
                    continue
                result.out.append(name)
            if os.path.isfile(path):
                result.files.append(name)
    result.files.sort()
    return result


def pack(folder: Path, out: BinaryIO) -> FolderContents:
    """Write the folder into this file; return what is in it. Raises `OSError`."""
    inside = contents(folder)
    body: dict[str, Any] = {"version": 1, "files": []}
    for name in inside.files:
        with open(folder / name, "rb") as file:
            size, digest = plainfile.copied(file)
        body["files"].append({"path": name, "size": size, "sha256": digest})
    if inside.links:
        body["links"] = inside.links
    listing = json.dumps(body).encode()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        about = tarfile.TarInfo(LISTING)
        about.size = len(listing)
        tar.addfile(about, io.BytesIO(listing))
        for name in inside.files:
            with open(folder / name, "rb") as file:
                status = os.fstat(file.fileno())
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = status.st_size, status.st_mtime
                tar.addfile(entry, file)
        for name, to in inside.links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)
    return inside


def links_out(folder: Path) -> str:
    """Describe what `pack` makes of links that lead out of a folder; empty: there are none."""
    links = contents(folder).out
    taken = [name for name in links if (folder / name).is_file()]
    lost = [name for name in links if name not in taken]
    parts = [f"{', '.join(lost[:MOST_NAMED])}: nothing of it is saved"] if lost else []
    parts += [f"{', '.join(taken[:MOST_NAMED])}: saved as a file of its own"] if taken else []
    return f"links in {folder.name} lead out of the checkpoint: {'; '.join(parts)}" if links else ""


def is_packed(path: Path) -> bool:
    """Return whether this file is a folder that `pack` has written."""
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
            return first is not None and first.name == LISTING
    except (OSError, tarfile.TarError, ValueError):
        return False


def unpack(packed: Path, to: Path) -> None:
    """Replace the folder `to` by what was packed. Raises `CheckpointError`, `OSError`."""
    part = to.with_name(f".{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        with tarfile.open(packed, "r:") as tar:
            _unpack_all(tar, part)
    except (tarfile.TarError, ValueError, KeyError, TypeError, *IN_THE_WAY) as error:
        raise CheckpointError(f"{packed.name} is no folder as it was packed: {error}") from None
    shutil.rmtree(to, ignore_errors=True)
    os.replace(part, to)


def _unpack_all(tar: tarfile.TarFile, part: Path) -> None:
    members = iter(tar)
    expected, links = _listed(tar, next(members))
    missing = dict(links)
    for member in members:
        path = part / _inside(member.name)
        if member.issym() and missing.pop(member.name, None) == member.linkname:
            continue
        size, digest = expected.pop(member.name)
        source = tar.extractfile(member) if member.isreg() else None
        if source is None:
            raise CheckpointError(f"{member.name} is no file")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as out:
            measured = plainfile.copied(source, out)
        os.utime(path, (member.mtime, member.mtime))
        if measured != (size, digest):
            raise CheckpointError(f"{member.name} does not have the checksum of the list")
    for lacks in (*expected, *missing):
        raise CheckpointError(f"{lacks} is missing")
    for name in links:  # the last, so that nothing is written through one
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (part / name).symlink_to(links[name])


def _listed(
    tar: tarfile.TarFile, first: tarfile.TarInfo
) -> tuple[dict[str, tuple[int, str]], dict[str, str]]:
    source = tar.extractfile(first)
    if first.name != LISTING or source is None or first.size > LONGEST_LISTING:
        raise CheckpointError("it has no list of its files")
    listing: dict[str, Any] = json.loads(source.read())
    if not all(SHA256.fullmatch(file["sha256"]) for file in listing["files"]):
        raise CheckpointError("its list has no checksums")
    links: dict[str, str] = dict(listing.get("links", {}))
    for name, to in links.items():
        above = {str(parent) for parent in _inside(name).parents}
        if above & links.keys() or not _stays_inside(name, to):
            raise CheckpointError(f"the link {name!r:.80} leads out of the folder")
    return {file["path"]: (file["size"], file["sha256"]) for file in listing["files"]}, links


def _inside_target(path: str, name: str, top: str) -> Optional[str]:
    """Return the relative target of a link `name` in the folder `top`; None if it leads out."""
    to = os.readlink(path)
    if os.path.isabs(to):
        to = os.path.relpath(to, os.path.join(top, os.path.dirname(name)))
    to = os.path.normpath(to)
    real = os.path.realpath(path)
    return to if _stays_inside(name, to) and real.startswith(top + os.sep) else None


def _stays_inside(name: str, to: str) -> bool:
    """Return whether a link `name` to `to` leads to something in its folder that does not contain
    it. It goes up first and then down, so that no other link on the way leads it out.
    """
    way, above = Path(to).parts, Path(name).parent.parts
    ups = len(list(takewhile("..".__eq__, way)))
    target = (*above[: len(above) - ups], *way[ups:])
    return (
        not os.path.isabs(to)
        and ups <= len(above)
        and os.path.normpath(to) == to
        and Path(name).parts[: len(target)] != target
    )


def _inside(name: str) -> Path:
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or str(path) != name:
        raise CheckpointError(f"{name!r:.80} is no path inside a folder")
    return path
