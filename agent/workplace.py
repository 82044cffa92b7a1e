"""The folder in which an attempt's script runs: one for each attempt, so that trials never write
into each other's files.

The one rule: what a script may write is the attempt's own. Folders are its own, and so are files up
to `SMALL`, and larger ones that the job names; other large files, and folders of many files without
code, are links to the source, which is never written to.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from seerd.agent import folders
from seerd.agent.arguments import is_inside
from seerd.agent.copying import copy_file
from seerd.agent.manifest import CheckpointError, small_file

SMALL = 1 << 20
"""Bytes of a file that is copied whatever it is."""
COPIED = 64 << 20
"""Bytes of such files in all; from there on they are links, too."""
MOST = 2000
"""Entries of folders with code that are laid out, each in about 50 us, and of others; folders with
more than are left are links.
"""
WIDE = 500
"""Entries of a folder that is a link, unless it has code: so many files are data."""
Signature = Tuple[int, int]


class Laid(NamedTuple):
    """What was laid out in the folder of an attempt, by paths relative to it.

    folders  its own folders, each before those in it
    copies   size and time of each file that is a copy
    links    what each link leads to
    shared   size and time of what those lead to that are in place of a file or folder
    """

    folders: List[str]
    copies: Dict[str, Signature]
    links: Dict[str, str]
    shared: Dict[str, Signature]


def lay_out(source: Path, work: Path, checkpoint: str = "", own: Sequence[str] = ()) -> Laid:
    """Make the folder `work` anew, and return what is in it.

    checkpoint  the path or pattern of what the script saves, which is not taken from the source
    own         files that are copied whatever their size, the script among them

    Raises `OSError`.
    """
    shutil.rmtree(work, ignore_errors=True)
    layout = _Layout(source, work, own)
    parts = PurePosixPath(checkpoint).parts
    level = [_Folder("", parts)]
    while level:
        listed = sorted(map(layout.listed, level), key=lambda one: layout.rank(*one))
        level = [inner for one in listed for inner in layout.make(*one)]
    fixed = list(takewhile(lambda part: not set("*?[") & set(part), parts[:-1]))
    work.joinpath(*fixed).mkdir(parents=True, exist_ok=True)
    return layout.laid


def tidy(source: Path, work: Path, laid: Laid) -> List[str]:
    """Remove from `work` all that is still as it was laid out, so that what the script has written
    stays, except for what Python has compiled. Return what of the source has changed although
    trials share it.
    """
    changed = [path for path, was in laid.shared.items() if _signature(source / path) != was]
    for path, to in laid.links.items():
        with contextlib.suppress(OSError):  # it is no link any more
            if os.readlink(work / path) == to:
                (work / path).unlink()
    for path, was in laid.copies.items():
        with contextlib.suppress(OSError):
            if _signature(work / path) == was:
                (work / path).unlink()
    for folder in reversed(laid.folders):
        shutil.rmtree(work / folder / "__pycache__", ignore_errors=True)
        with contextlib.suppress(OSError):  # what the script has written is in it
            (work / folder).rmdir()
    return changed


def put_back(checkpoints: Path, name: Optional[str], work: Path) -> str:
    """Put the checkpoint of this name to where the script has saved it, below `work`.

    Returns that path, relative to `work`; empty if there is no checkpoint. Raises `OSError` if it
    cannot be put there, `ValueError` if it was not saved by such a script, or is damaged.
    """
    if name is None:
        return ""
    try:
        at = json.loads(small_file(checkpoints / f"{name}.json")).get("at")
        if not isinstance(at, str) or not is_inside(at):
            raise ValueError(
                f"checkpoint {name} was saved by a script that imports seerd, so it cannot be "
                "given to one that does not"
            )
        (work / at).parent.mkdir(parents=True, exist_ok=True)
        _restore(checkpoints / f"{name}.pt", work / at)
    except CheckpointError as error:
        raise ValueError(f"checkpoint {name} cannot be restored: {error}") from None
    return at


def remove_saved(work: Path, checkpoint: str) -> None:
    """Remove what the script has saved: what was whole is kept elsewhere."""
    for path in work.glob(checkpoint) if checkpoint else ():
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _restore(packed: Path, to: Path) -> None:
    if folders.is_packed(packed):
        folders.unpack(packed, to)
        return
    part = to.with_name(f".{to.name}.part")
    shutil.copyfile(packed, part)
    os.replace(part, to)


class _Folder(NamedTuple):
    """A folder of the source.

    path   relative to the source
    saved  the parts of the path, or pattern, of what the script saves in it
    """

    path: str
    saved: Sequence[str]


class _Layout:
    """Lays out folders, one after the other."""

    def __init__(self, source: Path, work: Path, own: Sequence[str]) -> None:
        self._source = source
        self._work = work
        self._own = {str(PurePosixPath(path)) for path in own}
        self._ways = {str(above) for path in own for above in PurePosixPath(path).parents}
        self._left = {True: MOST, False: MOST}  # entries of folders with code, and of others
        self._bytes = COPIED
        self.laid = Laid([], {}, {}, {})

    def listed(self, folder: _Folder) -> Tuple[_Folder, "List[os.DirEntry[str]]"]:
        """Return a folder and its entries, or so many that there are too many."""
        most = None if self._is_way(folder) else MOST + 1
        with os.scandir(self._source / folder.path) as entries:
            return folder, list(islice(entries, most))

    def rank(self, folder: _Folder, entries: "List[os.DirEntry[str]]") -> Tuple[bool, bool, int]:
        """Say which of several folders comes first: one that must be the attempt's own, one that
        has code, a small one.
        """
        return not self._is_way(folder), not _has_code(entries), len(entries)

    def make(self, folder: _Folder, entries: "List[os.DirEntry[str]]") -> List[_Folder]:
        """Make a folder, or a link to it; return the folders in it that are still to be made."""
        has_code = _has_code(entries)
        if not self._is_way(folder):
            if len(entries) > (self._left[True] if has_code else min(WIDE, self._left[False])):
                self._share(folder.path)
                return []
            self._left[has_code] -= len(entries)
        self.laid.folders.append(folder.path)
        (self._work / folder.path).mkdir(parents=True, exist_ok=True)
        return [inner for entry in entries for inner in self._place(folder, entry)]

    def _is_way(self, folder: _Folder) -> bool:
        return bool(folder.saved) or (folder.path or ".") in self._ways | {"."}

    def _place(self, folder: _Folder, entry: "os.DirEntry[str]") -> List[_Folder]:
        path, saved = os.path.join(folder.path, entry.name), folder.saved
        is_way = bool(saved) and fnmatchcase(entry.name, saved[0])
        if is_way and len(saved) == 1:
            return []
        if entry.is_dir(follow_symlinks=False):
            return [_Folder(path, saved[1:] if is_way else ())]
        if entry.is_symlink():
            self._link_again(path)
        elif entry.is_file():
            self._copy_or_link(path, entry.stat())
        return []

    def _copy_or_link(self, path: str, found: os.stat_result) -> None:
        is_small = found.st_size <= min(SMALL, self._bytes)
        if path not in self._own and not is_small:
            if found.st_mode & 0o222:
                with contextlib.suppress(OSError):  # it is somebody else's
                    os.chmod(self._source / path, stat.S_IMODE(found.st_mode) & ~0o222)
            self._share(path)
            return
        self._bytes -= found.st_size if is_small else 0
        to = self._work / path
        copy_file(self._source / path, to)
        os.chmod(to, stat.S_IMODE(found.st_mode) | stat.S_IWUSR)
        os.utime(to, ns=(found.st_atime_ns, found.st_mtime_ns))
        self.laid.copies[path] = (found.st_size, found.st_mtime_ns)

    def _share(self, path: str) -> None:
        self._link(path, str(self._source / path))
        self.laid.shared[path] = _signature(self._source / path)

    def _link_again(self, path: str) -> None:
        """Link to what a link leads to: if that is in the source, to the attempt's own."""
        to = os.readlink(self._source / path)
        inside = is_inside(os.path.normpath(os.path.join(os.path.dirname(path), to)))
        self._link(path, to if inside else os.path.realpath(self._source / path))

    def _link(self, path: str, to: str) -> None:
        (self._work / path).symlink_to(to)
        self.laid.links[path] = to


def _has_code(entries: "List[os.DirEntry[str]]") -> bool:
    return any(entry.name.endswith(".py") for entry in entries)


def _signature(path: Path) -> Signature:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
