"""Copies the user's source into a run's folder, where it stays as it is while the run goes on.

The one rule: a copy costs no more than it must, and no more time than the run can spare. Holes stay
holes and links stay links. What would take too long ends the command before anything is started.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seerd.agent.copying import copy_file
from seerd.agent.workplace import SMALL
from seerd.errors import LimitsError, UsageError
from seerd.spec.ignored import ignoring, is_left_out
from seerd.units import SLOW_S, format_duration, format_size

FILE_COST = 1 << 16
"""Bytes that take about as long to copy as making one more file takes."""
OUTPUT_BYTES = 64 << 20
WRITTEN = {".log", ".db", ".sqlite", ".sqlite3"}
"""How names of files end that programs write into rather than replace."""
UNFLUSHED = 512 << 20
"""Bytes of a source that may still be on their way to the disk when the run begins: for more of
them its journal would have to wait.
"""
SHOWN = 3
"""Most names in a message."""
MOST = 1 / 10
"""What is this much smaller than the largest is not named with it."""

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """Under what terms a source is copied.

    say         prints one line for the person
    most_s      seconds that the copy may take; infinite: as long as it takes
    deadline_s  the run's deadline, which messages name
    elsewhere   whether it is sent to other machines, where links lead nowhere: they are followed
    """

    say: Say = lambda line: None
    most_s: float = math.inf
    deadline_s: float = math.inf
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is to be copied.

    name     its path, relative to the source
    path     where it is
    size     bytes that it takes on the disk, holes excepted
    link_to  another copy that can be linked instead; None: there is none
    """

    name: str
    path: str
    size: int
    link_to: Path | None


def copy_source(
    source: Path, to: Path, without: Collection[Path], terms: CopyTerms = CopyTerms()
) -> None:
    """Copy the user's source, but not what `.seerdignore` (written like a .gitignore) names, not
    the home folder, and not these absolute paths.

    Raises `UsageError` if a file cannot be copied, or if all of them would not fit on the disk, and
    `LimitsError` if it takes longer than the terms allow.
    """
    try:
        copy = _SourceCopy(source, to, without, terms)
        copy.look("", copy.root, ())
        copy.check_size()
        copy.write()
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise UsageError(f"the source {source} cannot be copied: {what}") from error


def outputs(copy: Path, script: str) -> list[str]:
    """Return the large files of a run's source, relative to it, that its script probably writes to:
    its `.gitignore` names them, they are newer than the script, or logs or databases. Each attempt
    gets a copy of them, so they are at most `OUTPUT_BYTES` in all, the smallest first.
    """
    paths = (Path(top, name) for top, _, names in os.walk(copy) for name in names)
    files = ((path.lstat(), path) for path in paths)
    large = [(at.st_size, at.st_mtime_ns, path) for at, path in files if at.st_size > SMALL]
    if not large:
        return []
    ignored, program = ignoring(copy / ".gitignore"), copy / script
    since = program.stat().st_mtime_ns if program.is_file() else math.inf
    found, left = [], OUTPUT_BYTES
    for size, changed_ns, path in sorted(large):
        name = path.relative_to(copy).as_posix()
        if size <= left and (changed_ns > since or path.suffix in WRITTEN or ignored(name)):
            found.append(name)
            left -= size
    return found


class _SourceCopy:
    """A copy that is being made. `root`: where the source really is."""

    def __init__(self, source: Path, to: Path, without: Collection[Path], terms: CopyTerms) -> None:
        self.root = os.path.realpath(source)
        self._source = source
        self._to = to
        self._terms = terms
        self._out = {*map(str, without), os.path.realpath(to.parent.parent)}
        self._ignored = ignoring(source / ".seerdignore")
        self._files: list[SourceFile] = []
        self._folders: list[tuple[str, str]] = []
        self._links: list[tuple[str, str]] = []
        self._outside: list[str] = []
        self._first: dict[tuple[int, int], str] = {}
        self._began = time.monotonic()
        self._size = self._copied = self._cost = 0
        self._writing_since = math.inf
        self._is_slow = False

    # ------------------------------------------------------------ what is to be copied

    def look(self, name: str, folder: str, above: tuple[tuple[int, int], ...]) -> None:
        """Note what is in this folder of the source, and below it.

        above  device and inode of the folders that this one is in
        """
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
        at, is_link = entry.path, entry.is_symlink()
        if is_link:
            at = os.path.realpath(entry.path)
        try:
            about = Path(at).stat() if is_link else entry.stat()
        except OSError as error:  # a link to nothing or in a circle, or removed meanwhile
            if is_link or isinstance(error, FileNotFoundError):
                return
            raise
        is_folder = stat.S_ISDIR(about.st_mode)
        if not is_folder and not stat.S_ISREG(about.st_mode):
            return
        if at in self._out or self._ignored(f"{name}/" if is_folder else name):
            return
        if is_link and not self._terms.elsewhere:
            self._note_link(name, at)
        elif not is_folder:
            self._note_file(name, at, about)
        elif (about.st_dev, about.st_ino) not in above:
            self.look(name, at, above)

    def _note_link(self, name: str, target: str) -> None:
        inside = os.path.relpath(target, self.root)
        if inside.split(os.sep, 1)[0] == os.pardir or is_left_out(inside, self._ignored):
            self._outside.append(name)
        else:
            target = os.path.relpath(inside, PurePosixPath(name).parent)
        self._links.append((name, target))

    def _note_file(self, name: str, path: str, about: os.stat_result) -> None:
        size, link_to = min(about.st_size, about.st_blocks * 512), None
        if about.st_nlink > 1:
            first = self._first.setdefault((about.st_dev, about.st_ino), name)
            link_to = None if first == name else self._to / first
        self._files.append(SourceFile(name, path, size, link_to))
        self._size += 0 if link_to else size

    def check_size(self) -> None:
        """Raise `UsageError` if what is to be copied is larger than what is free where it goes."""
        free = shutil.disk_usage(self._to.parent).free
        if self._size > free:
            raise UsageError(
                f"the source {self._source} has more than the {format_size(free)} that are free in "
                f"{self._to.parent}, where each run keeps a copy. {self._largest()}"
            )

    # ------------------------------------------------------------ copying

    def write(self) -> None:
        """Copy everything, and report what a script will read outside of the copy."""
        self._writing_since = time.monotonic()
        self._cost = self._size + FILE_COST * len(self._files)
        for name, _ in self._folders:
            (self._to / name).mkdir()
        for file in self._files:
            self._write(file)
        for name, target in self._links:
            (self._to / name).symlink_to(target)
        for name, folder in reversed(self._folders):
            shutil.copystat(folder, self._to / name)
        if self._is_slow:
            took_s = time.monotonic() - self._began
            self._terms.say(f"the source was copied in {format_duration(round(took_s, 1))}")
        if self._outside:
            self._terms.say(
                f"links lead out of the source and are not copied: {_some(self._outside)}; trials "
                "read what is there while they run, and what is changed there meanwhile"
            )

    def _write(self, file: SourceFile) -> None:
        to = self._to / file.name
        if file.link_to is not None:
            try:
                os.link(file.link_to, to)
            except OSError:  # another filesystem, or too many links
                pass
            else:
                self._note(FILE_COST)
                return
        copy_file(Path(file.path), to, self._note)
        shutil.copystat(file.path, to)
        self._note(FILE_COST)

    def _note(self, size: int) -> bool:
        """Note so many bytes more; return whether they must be on the disk before the next."""
        self._copied += size
        self._keep_time()
        return size > FILE_COST and self._copied > UNFLUSHED

    # ------------------------------------------------------------ how long it takes

    def _keep_time(self) -> None:
        """Report once that the copy takes long, or most of what it may. Raises `LimitsError` if it
        takes too long, or will at the pace so far.
        """
        now = time.monotonic()
        spent_s, most_s = now - self._began, self._terms.most_s
        needs_s = spent_s
        if self._copied and spent_s >= SLOW_S:
            needs_s += (now - self._writing_since) * (self._cost / self._copied - 1)
        if spent_s > most_s or needs_s > 1.5 * most_s:
            raise LimitsError(
                f"copying the source {self._source} takes too long: {self._so_far(spent_s)}, and "
                f"of a deadline of {format_duration(self._terms.deadline_s)} it may take "
                f"{format_duration(round(most_s, 1))}",
                *(0.0, 0.0, self._largest()),
            )
        if spent_s >= min(SLOW_S, most_s / 2) and not self._is_slow:
            self._is_slow = True
            self._terms.say(f"copying the source: {self._so_far(spent_s)}. {self._largest()}")

    def _so_far(self, spent_s: float) -> str:
        took = f"in {format_duration(round(spent_s, 1))}"
        if not self._cost:
            return f"{len(self._files):,} files were looked at {took}"
        whole = _extent(self._size, len(self._files))
        return f"{self._copied / self._cost:.0%} of {whole} {took}"

    def _largest(self) -> str:
        """Return which files and folders are the largest, and how to leave them out."""
        sizes, counts, costs = Counter[str](), Counter[str](), Counter[str]()
        below: dict[str, set[str]] = defaultdict(set)
        for file in self._files:
            name, size = file.name, 0 if file.link_to else file.size
            while name:
                sizes[name] += size
                counts[name] += 1
                costs[name] += size + FILE_COST
                above = name.rpartition("/")[0]
                below[above].add(name)
                name = above
        tops = sorted(below[""], key=costs.__getitem__, reverse=True)[:SHOWN]
        tops = [name for name in tops if costs[name] >= MOST * costs[tops[0]]]
        paths = [_narrowed(name, costs, below) for name in tops]
        named = [f"{path}/" if below.get(path) else path for path in paths]
        shown = ", ".join(
            f"{name} ({_extent(sizes[path], counts[path])})"
            for name, path in zip(named, paths, strict=True)
        )
        lines = " ".join(shlex.quote(f"/{name}") for name in named)
        ignore = shlex.quote(str(self._source / ".seerdignore"))
        read = (
            "fetch it with train.data"
            if self._terms.elsewhere
            else "move it elsewhere and leave a link in its place, which is not copied"
        )
        return (
            f"The largest: {shown}. To leave out what trials do not read: "
            f"printf '%s\\n' {lines} >> {ignore}; what they read: {read}"
        )


def _extent(size: int, files: int) -> str:
    return format_size(size) if files == 1 else f"{format_size(size)} in {files:,} files"


def _narrowed(name: str, costs: Mapping[str, int], below: Mapping[str, set[str]]) -> str:
    """Return the file or folder below this one that is nearly all of it."""
    while below.get(name):
        largest = max(below[name], key=costs.__getitem__)
        if costs[largest] < (1 - MOST) * costs[name]:
            break
        name = largest
    return name


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
