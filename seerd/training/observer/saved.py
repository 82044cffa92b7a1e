"""What a script saves: which is newest, and whether it is whole.

The one rule: when in doubt it is not whole. One that was missed costs some work, a half one the
trial.
"""

import contextlib
import os
import sys
import time
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional, Set, Tuple

from seerd.agent import folders

FILE_QUIET_S = 0.25
"""Seconds for which a file has not changed when it is taken."""
FOLDER_QUIET_S = 5.0
"""The same for a folder. Between two of its files a script may compute for a while."""
KNOWN_QUIET_S = 1.0
"""The same for a folder that has the file that is written last."""
LAST_FILES = ("trainer_state.json", ".metadata")
"""Files that are written last: by transformers' Trainer, and by torch.distributed.checkpoint."""
BESIDE_PRINT_S = 0.1
"""Seconds after which a save and the report of the same model have both been seen, whichever came
first.
"""
ZIP = b"PK\x03\x04"
PROC = Path("/proc")
WRITES = os.O_WRONLY | os.O_RDWR

Signature = Tuple[Tuple[str, int, int, int], ...]


@dataclass
class Saved:
    """One state of what the script saves.

    path       file or folder, relative to the folder in which the script runs
    signature  name, inode, size and time of each of its files
    since      when it was first seen like this, seconds of the monotonic clock
    """

    path: str
    signature: Signature = field(repr=False)
    since: float

    def age_s(self) -> float:
        """Return for how many seconds it has not changed."""
        return time.monotonic() - self.since


class Watch:
    """Watches what matches `pattern` in the folder `work`."""

    def __init__(self, work: Path, pattern: str) -> None:
        self._work = work
        self._pattern = pattern
        self._last: Optional[Saved] = None

    def look(self) -> Optional[Saved]:
        """Return what the script has saved last; None if there is nothing."""
        found = max(map(self._measured, self._matching()), key=_changed, default=None)
        if found is None or not found[1]:
            self._last = None
            return None
        if self._last is None or (self._last.path, self._last.signature) != found:
            self._last = Saved(*found, since=time.monotonic())
        return self._last

    def may_be_whole(self, saved: Saved) -> bool:
        """Tell whether it is worth copying: it has not changed for long enough, and nobody has it
        open for writing; or its copy will show.
        """
        if self.shows(saved):
            return True
        return saved.age_s() >= self.quiet_s(saved) and self.is_closed(saved)

    def shows(self, saved: Saved) -> bool:
        """Tell whether a copy of it shows by itself whether it is whole (`is_sound`)."""
        path = self._work / saved.path
        return path.is_file() and _is_zip(path)

    def is_as_it_was(self, saved: Saved) -> bool:
        """Tell whether it is still as it was seen, and nobody has it open for writing."""
        path = self._work / saved.path
        same = (saved.path, saved.signature) == self._measured(path)
        return same and (self.shows(saved) or self.is_closed(saved))

    def is_closed(self, saved: Saved) -> bool:
        """Tell whether nobody has it open for writing, and no zip in it is a part of one."""
        paths = [self._work / name for name, *_ in saved.signature]
        files = [path for path in paths if path.is_file()]
        try:
            return all(not _is_zip(file) or zipfile.is_zipfile(file) for file in files) and (
                not _is_being_written(files)
            )
        except OSError:  # it is being replaced
            return False

    def quiet_s(self, saved: Saved) -> float:
        """Return for how many seconds it must not have changed."""
        if not (self._work / saved.path).is_dir():
            return FILE_QUIET_S
        names = {os.path.basename(name) for name, *_ in saved.signature}
        return KNOWN_QUIET_S if names.intersection(LAST_FILES) else FOLDER_QUIET_S

    def is_more_of(self, before: Saved, saved: Saved, is_young: bool) -> bool:
        """Tell whether a change from the one to the other belongs to the same save: a file that is
        still growing, or another one at once (`last.pt`, `best.pt`); a folder until it is quiet.

        is_young: whether the one before had not stood still yet
        """
        if before.path != saved.path:
            return before.age_s() < FILE_QUIET_S
        if (self._work / saved.path).is_dir():
            return before.age_s() < self.quiet_s(saved)
        (_, old, shorter, _), (_, new, longer, _) = before.signature[0], saved.signature[0]
        return is_young and old == new and shorter < longer

    def _matching(self) -> List[Path]:
        return list(self._work.glob(self._pattern)) if self._pattern else []

    def _measured(self, path: Path) -> Tuple[str, Signature]:
        paths: Dict[Path, Callable[[Path], os.stat_result]] = {path: os.stat}
        if path.is_dir():
            found = folders.contents(path)
            paths = {path / name: os.stat for name in found.files}
            paths.update({path / name: os.lstat for name in found.links})
        parts = []
        for one, look in paths.items():
            with contextlib.suppress(OSError):
                there = look(one)
                name = os.path.relpath(one, self._work)
                parts.append((name, there.st_ino, there.st_size, there.st_mtime_ns))
        return os.path.relpath(path, self._work), tuple(parts)


def _changed(found: Tuple[str, Signature]) -> Tuple[int, str]:
    return max((time_ns for *_, time_ns in found[1]), default=0), found[0]


def is_sound(copy: Path) -> bool:
    """Tell whether a copy of a zip, as `torch.save` writes it, is whole: it has a checksum of each
    of its parts.
    """
    try:
        with zipfile.ZipFile(copy) as parts:
            return parts.testzip() is None
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return False


def _is_zip(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(ZIP)) == ZIP
    except OSError:
        return False


def _is_being_written(files: List[Path]) -> bool:
    """Tell whether a process has one of these files open for writing (Linux; elsewhere that cannot
    be seen).
    """
    if sys.platform != "linux":
        return False
    wanted = set(map(_identity, files))
    return any(_writes(process, wanted) for process in PROC.iterdir() if process.name.isdecimal())


def _writes(process: Path, wanted: Set[Tuple[int, int]]) -> bool:
    """Tell whether this process has one of these open for writing, as far as we may see."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(process / "fd"):
            with contextlib.suppress(OSError, ValueError, StopIteration):
                if _identity(process / "fd" / descriptor) in wanted:
                    lines = (process / "fdinfo" / descriptor).read_text().splitlines()
                    flags = next(line.split()[1] for line in lines if line.startswith("flags:"))
                    if int(flags, 8) & WRITES:
                        return True
    return False


def _identity(path: Path) -> Tuple[int, int]:
    there = os.stat(path)
    return there.st_dev, there.st_ino
