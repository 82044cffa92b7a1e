"""Copies the user's source into a run's folder, where it stays as it is, links too. A copy that
would take too long, and a link out of the source that `follow` does not list, ends the command
before anything is started.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from seerd.agent.copying import copy_file
from seerd.agent.workplace import SMALL
from seerd.errors import LimitsError, UsageError
from seerd.spec.ignored import holds_secrets, ignoring, is_left_out
from seerd.units import SLOW_S, format_duration, format_size

FILE_COST = 1 << 16  # bytes that take about as long to copy as making one more file takes
OUTPUT_BYTES = 64 << 20
WRITTEN = {".log", ".db", ".sqlite", ".sqlite3"}  # suffixes of files that are written into
UNFLUSHED = 512 << 20  # most unflushed bytes when the run begins: its journal waits for the rest
SHOWN = 3  # most names in a message
LOOK_S = 5.0  # seconds for which a source is looked at that is not copied
LINKS_SHOWN, ALIKE = 40, 3  # most links in a message; more than `ALIKE` in a folder: a pattern
MOST = 1 / 10  # a file this much smaller than the largest is not named with it

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """Under what terms a source is copied."""

    say: Say = lambda line: None  # prints one line for the user
    most_s: float = math.inf  # seconds that the copy may take; infinite: as long as it takes
    deadline_s: float = math.inf  # the run's deadline, which messages name
    # whether it is sent to other machines, where links lead nowhere: they are followed
    elsewhere: bool = False
    follow: Collection[str] = ()  # links that may lead out of the source; `*`: a part of a name


class SourceFile(NamedTuple):
    """A file that is to be copied."""

    name: str  # its path, relative to the source
    path: str  # where it is
    size: int  # in bytes


def copy_source(
    source: Path, to: Path, without: Collection[Path], terms: CopyTerms = CopyTerms()
) -> None:
    """Copy the user's source without what `.seerdignore` (written like a .gitignore) names, the
    home folder, and these absolute paths. Raises `UsageError` if it cannot be copied, a link leads
    out of it, or the disk is too small, and `LimitsError` if it takes longer than the terms allow.
    """
    try:
        copy = _SourceCopy(source, to, without, terms)
        copy.look("", copy.root, ())
        copy.check_links()
        copy.check_size()
        copy.write()
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise UsageError(f"the source {source} cannot be copied: {what}") from error


def links_out(source: Path, home: Path, terms: CopyTerms, *, refuse: bool = True) -> list[str]:
    """Look at a source for `LOOK_S` without copying it: report doubts, and raise `UsageError` for
    links that lead out of it, or return what lists them in `train.follow`. `home` is never copied.
    """
    copy = _SourceCopy(source, home / "run" / "source", (), replace(terms, most_s=LOOK_S))
    with suppress(OSError, LimitsError):
        copy.look("", copy.root, ())
    if refuse:
        copy.check_links()
    return _patterns(copy.outside)


def outputs(copy: Path, script: str) -> list[str]:
    """Return the large files of a run's source, relative to it, that its script probably writes to:
    its `.gitignore` names them, they are newer than the script, or logs or databases. Each attempt
    gets a copy of them, at most `OUTPUT_BYTES` in all, the smallest first.
    """
    paths = (Path(top, name) for top, _, names in os.walk(copy) for name in names)
    files = ((path.lstat(), path) for path in paths)
    large = [(at.st_size, at.st_mtime_ns, path) for at, path in files if at.st_size > SMALL]
    if not large:
        return []
    ignored, program = ignoring(copy / ".gitignore"), copy / script
    since = program.stat().st_mtime_ns if program.is_file() else math.inf
    written, left = [], OUTPUT_BYTES
    for size, changed_ns, path in sorted(large):
        name = path.relative_to(copy).as_posix()
        if size <= left and (changed_ns > since or path.suffix in WRITTEN or ignored(name)):
            written.append(name)
            left -= size
    return written


class _SourceCopy:
    """A copy that is being made. `root`: where the source really is; `outside`: links out of it."""

    def __init__(self, source: Path, to: Path, without: Collection[Path], terms: CopyTerms) -> None:
        self.root = os.path.realpath(source)
        self.outside: dict[str, str] = {}
        self._source = source
        self._to = to
        self._terms = terms
        self._out = {*map(str, without), os.path.realpath(to.parent.parent)}
        self._ignored = ignoring(source / ".seerdignore")
        self._files: list[SourceFile] = []
        self._folders: list[tuple[str, str]] = []
        self._links: list[tuple[str, str]] = []
        self._inside: list[str] = []
        self._circles: list[str] = []
        self._began = time.monotonic()
        self._size = self._copied = self._cost = 0
        self._is_slow = False

    def look(self, name: str, folder: str, above: tuple[tuple[int, int], ...]) -> None:
        """Note what is in and below this folder; `above`: (device, inode) of outer folders."""
        about = Path(folder).stat()
        above = (*above, (about.st_dev, about.st_ino))
        self._folders.append((name, folder))
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                self._keep_time()
                self._look_at(entry, f"{name}/{entry.name}" if name else entry.name, above)

    def _look_at(
        self, entry: os.DirEntry[str], name: str, above: tuple[tuple[int, int], ...]
    ) -> None:
        is_link = entry.is_symlink()
        at = os.path.realpath(entry.path) if is_link else entry.path
        try:
            about = Path(at).stat() if is_link else entry.stat()
        except OSError as error:  # a link to nothing or in a circle, or removed meanwhile
            if error.errno == errno.ELOOP:
                self._circles.append(name)
            if is_link or isinstance(error, FileNotFoundError):
                return
            raise
        is_folder = stat.S_ISDIR(about.st_mode)
        if not is_folder and not stat.S_ISREG(about.st_mode):
            return
        if at in self._out or self._ignored(f"{name}/" if is_folder else name):
            return
        is_out = is_link and self._leads_out(at)
        if is_out and not self._is_followed(name, entry.path):
            self.outside[name] = at
        elif is_link and not self._terms.elsewhere:
            here = os.path.dirname(os.path.join(self.root, name))  # noqa: PTH118, PTH120
            self._links.append((name, at if is_out else os.path.relpath(at, here)))
        elif not is_folder:
            size = min(about.st_size, about.st_blocks * 512)  # holes take no room
            self._files.append(SourceFile(name, at, size))
            self._size += size
        elif (about.st_dev, about.st_ino) in above:
            self._circles.append(name)
        else:
            self._inside.append(at)
            self.look(name, at, above)
            self._inside.pop()

    def _leads_out(self, target: str) -> bool:
        """Return whether a link's target is neither copied nor below a folder of this link."""
        if _is_within(target, self.root):
            return is_left_out(os.path.relpath(target, self.root), self._ignored)
        return not any(_is_within(target, folder) for folder in self._inside)

    def _is_followed(self, name: str, path: str) -> bool:
        """Return whether the terms list this link, or it is a virtual environment's Python."""
        listed = any(
            name == pattern
            or (name.count("/") == pattern.count("/") and fnmatchcase(name, pattern))
            for pattern in self._terms.follow
        )
        link = Path(path)
        is_python = link.name.startswith("python")
        return listed or (is_python and (link.parent.parent / "pyvenv.cfg").is_file())

    def check_links(self) -> None:
        """Raise `UsageError` for links out of the source; report circles and secrets."""
        if self.outside:
            patterns = _patterns(self.outside)
            leads = [f"{name} -> {target}" for name, target in self.outside.items()]
            more = [f"{len(leads) - LINKS_SHOWN} more"] if len(leads) > LINKS_SHOWN else []
            lead, them = ("links lead", "them") if leads[1:] else ("a link leads", "it")
            raise UsageError(
                f"{lead} out of the source {self._source}: "
                f"{', '.join([*leads[:LINKS_SHOWN], *more])}. Nothing was started. If trials are "
                f"to read what is there, list {them} in the spec:\n"
                f"  [train]\n  follow = {json.dumps(patterns, ensure_ascii=False)}\n"
                f"To leave {them} out: {self._leaving_out(patterns)}"
            )
        if self._circles:
            self._terms.say(
                f"links lead in a circle and are left out of the copy: {_some(self._circles)}"
            )
        names = [file.name for file in self._files if holds_secrets(file.name, file.path)]
        if names and self._terms.elsewhere:
            self._terms.say(
                f"{_some(names)} of the source may hold secrets, and every machine of the run "
                f"gets the source; to leave them out: {self._leaving_out(names[:LINKS_SHOWN])}"
            )

    def check_size(self) -> None:
        """Raise `UsageError` if what is to be copied is larger than what is free where it goes."""
        free = shutil.disk_usage(self._to.parent).free
        if self._size > free:
            raise UsageError(
                f"the source {self._source} has more than the {format_size(free)} that are free in "
                f"{self._to.parent}, where each run keeps a copy. {self._largest()}"
            )

    def write(self) -> None:
        """Copy everything."""
        self._writing_since = time.monotonic()
        self._cost = self._size + FILE_COST * len(self._files)
        for name, _ in self._folders:
            (self._to / name).mkdir()
        for file in self._files:
            copy_file(Path(file.path), self._to / file.name, self._note)
            shutil.copystat(file.path, self._to / file.name)
            self._note(FILE_COST)
        for name, target in self._links:
            (self._to / name).symlink_to(target)
        for name, folder in reversed(self._folders):
            shutil.copystat(folder, self._to / name)
        if self._is_slow:
            took_s = time.monotonic() - self._began
            self._terms.say(f"the source was copied in {format_duration(round(took_s, 1))}")

    def _note(self, size: int) -> bool:
        """Note so many bytes more; return whether they must be on the disk before the next."""
        self._copied += size
        self._keep_time()
        return size > FILE_COST and self._copied > UNFLUSHED

    def _keep_time(self) -> None:
        """Report once that the copy takes long. Raises `LimitsError` if it takes too long."""
        now = time.monotonic()
        spent_s, most_s = now - self._began, self._terms.most_s
        needs_s = spent_s
        if self._copied and spent_s >= SLOW_S:
            needs_s += (now - self._writing_since) * (self._cost / self._copied - 1)
        is_too_slow = spent_s > most_s or needs_s > 1.5 * most_s
        is_slow = spent_s >= min(SLOW_S, most_s / 2)
        if not is_too_slow and (self._is_slow or not is_slow):
            return
        so_far = f"{len(self._files):,} files were looked at"
        if self._cost:
            whole = _extent(self._size, len(self._files))
            so_far = f"{self._copied / self._cost:.0%} of {whole}"
        so_far = f"{so_far} in {format_duration(round(spent_s, 1))}"
        if is_too_slow:
            raise LimitsError(
                f"copying the source {self._source} takes too long: {so_far}, and of a deadline "
                f"of {format_duration(self._terms.deadline_s)} it may take "
                f"{format_duration(round(most_s, 1))}",
                *(0.0, 0.0, self._largest()),
            )
        self._is_slow = True
        self._terms.say(f"copying the source: {so_far}. {self._largest()}")

    def _largest(self) -> str:
        """Describe which files and folders are the largest, and how to leave them out."""
        sizes, counts = Counter[str](), Counter[str]()
        for file in self._files:
            parts = file.name.split("/")
            for depth in range(len(parts)):
                name = "/".join(parts[: depth + 1]) + "/" * (depth + 1 < len(parts))
                sizes[name] += file.size
                counts[name] += 1
        costs = {name: sizes[name] + FILE_COST * counts[name] for name in sizes}
        tops = [name for name in costs if "/" not in name[:-1]]
        tops = sorted(tops, key=costs.__getitem__, reverse=True)[:SHOWN]
        tops = [name for name in tops if costs[name] >= MOST * costs[tops[0]]]
        # Of a folder, the file or folder below it that is nearly all of it.
        below = {
            top: [
                name
                for name in costs
                if (name.startswith(top) if top.endswith("/") else name == top)
                and costs[name] >= (1 - MOST) * costs[top]
            ]
            for top in tops
        }
        shown = [max(below[top], key=len) for top in tops]
        read = (
            "fetch it with train.data"
            if self._terms.elsewhere
            else "move it elsewhere and leave a link in its place, which train.follow lists: it is "
            "not copied"
        )
        largest = ", ".join(f"{name} ({_extent(sizes[name], counts[name])})" for name in shown)
        return (
            f"The largest: {largest}. To leave out what trials do not read: "
            f"{self._leaving_out(shown)}; what they read: {read}"
        )

    def _leaving_out(self, names: Sequence[str]) -> str:
        """Write the command that has these names left out."""
        lines = " ".join(shlex.quote(f"/{name}") for name in names)
        return f"printf '%s\\n' {lines} >> {shlex.quote(str(self._source / '.seerdignore'))}"


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _patterns(names: Collection[str]) -> list[str]:
    """Return these names, with a pattern for many in one folder."""
    of = Counter(name.rpartition("/")[0] for name in names)
    several = {folder for folder, links in of.items() if folder and links > ALIKE}
    parts = ((folder, name) for name in names for folder in [name.rpartition("/")[0]])
    return [*dict.fromkeys(f"{top}/*" if top in several else name for top, name in parts)]


def _extent(size: int, files: int) -> str:
    return format_size(size) if files == 1 else f"{format_size(size)} in {files:,} files"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
