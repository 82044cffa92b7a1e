"""The folder in which an attempt's script runs. What the script makes, replaces or removes in it is
its own; so are copies of files up to `SMALL`, and of those that the job names. Other files are hard
links to the source, to which only root can write.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Callable, Iterator, NamedTuple, Optional, Sequence

from seerd.agent import folders
from seerd.agent.arguments import is_inside
from seerd.agent.copying import copy_file
from seerd.agent.manifest import CheckpointError, small_file

SMALL = 1 << 20
"""Size in bytes up to which a file is copied."""
COPIED = 64 << 20
"""Bytes of such files in all; the others are links."""
MOST = 2000
"""Number of such files: a copy takes about 60 us, a link 15."""
WIDE = 500
"""A folder with more entries holds data, so its files are links."""
Signature = tuple[int, int]
Folder = tuple[str, Sequence[str]]
"""A path in the source, and the parts of the path, or pattern, of what the script saves in it."""


class Laid(NamedTuple):
    """What was laid out in the folder of an attempt."""

    began: int  # when, by the clock of the filesystem, ns
    known: dict[str, Signature]  # of each file that is a copy, or not older than `began`


def lay_out(
    source: Path,
    work: Path,
    checkpoint: str = "",
    own: Sequence[str] = (),
    is_stopped: Callable[[], bool] = lambda: False,
) -> Laid:
    """Replace the folder `work`, and return what is in it. Raises `OSError`.

    checkpoint  the path or pattern of what the script saves, which is not taken from the source
    own         files that are copied whatever their size, the script among them
    is_stopped  returns whether the attempt is over, so that the rest is left out
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    layout = _Layout(source, work, own)
    parts = PurePosixPath(checkpoint).parts
    level: list[Folder] = [("", parts)]
    while level:
        level = [inner for folder in level for inner in layout.make(*folder, is_stopped)]
    fixed = list(takewhile(lambda part: not set("*?[") & set(part), parts[:-1]))
    work.joinpath(*fixed).mkdir(parents=True, exist_ok=True)
    return layout.laid


def tidy(source: Path, work: Path, laid: Laid, checkpoint: str = "") -> str:
    """Remove from `work` what the script has saved, as what was whole is kept elsewhere; all that
    is still as it was laid out; and what Python has compiled. What the script has written stays.

    Returns which files of the source have changed although trials share them; empty: none.
    """
    for path in work.glob(checkpoint) if checkpoint else ():
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    changed = list(_remove_laid(source, work, laid, ""))
    if not changed:
        return ""
    return (
        f"while it ran, {', '.join(changed[:3])} in the source changed, which all trials share, so "
        "others may have read what it wrote: have the script write elsewhere"
    )


def _remove_laid(source: Path, work: Path, laid: Laid, folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(source / folder) as entries:
        for entry in entries:
            path = os.path.join(folder, entry.name)
            here = os.path.join(work, path)
            if entry.is_dir(follow_symlinks=False):
                if os.path.isdir(here) and not os.path.islink(here):
                    yield from _remove_laid(source, work, laid, path)
                continue
            was = os.lstat(entry.path)
            is_new = stat.S_ISREG(was.st_mode) and was.st_mtime_ns >= laid.began
            if is_new and laid.known.get(path) != _signature(was):
                yield path
            with contextlib.suppress(OSError):  # the script has removed it
                now = os.lstat(here)
                if stat.S_ISLNK(now.st_mode):
                    to = _target(source, path) if entry.is_symlink() else entry.path
                    untouched = os.readlink(here) == to
                else:
                    same = os.path.samestat(now, was)
                    untouched = same or laid.known.get(path) == _signature(now)
                if untouched:
                    os.unlink(here)
    shutil.rmtree(work / folder / "__pycache__", ignore_errors=True)
    with contextlib.suppress(OSError):  # what the script has written is in it
        (work / folder).rmdir()


def put_back(checkpoints: Path, name: Optional[str], work: Path) -> str:
    """Put this checkpoint to where the script has saved it, below `work`; return that path,
    relative to `work`, empty if there is no checkpoint.

    Raises `OSError` if it cannot be put there, `ValueError` if it was not saved by such a script,
    or is damaged.
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
        packed, to = checkpoints / f"{name}.pt", work / at
        if folders.is_packed(packed):
            folders.unpack(packed, to)
        else:
            part = to.with_name(f".{to.name}.part")
            shutil.copyfile(packed, part)
            os.replace(part, to)
    except CheckpointError as error:
        raise ValueError(f"checkpoint {name} cannot be restored: {error}") from None
    return at


class _Layout:
    """Lays out folders, one after the other."""

    def __init__(self, source: Path, work: Path, own: Sequence[str]) -> None:
        self._source = source
        self._work = work
        self._own = {str(PurePosixPath(path)) for path in own}
        self._files, self._bytes = MOST, COPIED
        self.laid = Laid(os.stat(work).st_mtime_ns, {})

    def make(
        self, folder: str, saved: Sequence[str], is_stopped: Callable[[], bool]
    ) -> list[Folder]:
        (self._work / folder).mkdir(parents=True, exist_ok=True)
        with os.scandir(self._source / folder) as scanned:
            entries = list(scanned)
        most = SMALL if len(entries) <= WIDE else -1
        return [
            inner
            for entry in entries
            if not is_stopped()
            for inner in self._place(os.path.join(folder, entry.name), saved, entry, most)
        ]

    def _place(
        self, path: str, saved: Sequence[str], entry: "os.DirEntry[str]", most: int
    ) -> list[Folder]:
        is_way = bool(saved) and fnmatchcase(entry.name, saved[0])
        if is_way and len(saved) == 1:
            return []
        if entry.is_dir(follow_symlinks=False):
            return [(path, saved[1:] if is_way else ())]
        to = os.path.join(self._work, path)
        if entry.is_symlink():
            os.symlink(_target(self._source, path), to)
        elif entry.is_file():
            status = entry.stat()
            is_small = status.st_size <= min(most, self._bytes) and self._files > 0
            is_copy = is_small or path in self._own
            self._files -= is_small
            self._bytes -= status.st_size * is_small
            if is_copy:
                copy_file(Path(entry.path), Path(to))
                os.chmod(to, stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
                os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))
            else:
                _link(entry.path, to, status)
            if is_copy or status.st_mtime_ns >= self.laid.began:
                self.laid.known[path] = _signature(status)
        return []


def _link(original: str, to: str, status: os.stat_result) -> None:
    if status.st_mode & 0o222:
        with contextlib.suppress(OSError):  # another user's file
            os.chmod(original, stat.S_IMODE(status.st_mode) & ~0o222)
    try:
        os.link(original, to)
    except OSError:  # another user's file, or on another filesystem
        os.symlink(original, to)


def _target(source: Path, path: str) -> str:
    """Return the target in `work` of a link of the source: the attempt's own file if possible."""
    to = os.readlink(source / path)
    inside = is_inside(os.path.normpath(os.path.join(os.path.dirname(path), to)))
    return to if inside else os.path.realpath(source / path)


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns
