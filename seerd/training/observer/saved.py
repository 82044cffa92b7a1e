"""What a script saves: which is newest, whether it is whole, and the checkpoints made of it.

The one rule: when in doubt it is not whole. One that was missed costs some work, a half one the
trial.
"""

import contextlib
import fcntl
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
import zipfile
import zlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple, cast

from seerd.agent import folders
from seerd.training import checkpoints
from seerd.training.attempt import Attempt

FILE_QUIET_S = 0.25  # a file is taken when it has not changed for so many seconds
# the same for a folder: a script may compute for a while between two of its files
FOLDER_QUIET_S = 5.0
KNOWN_QUIET_S = 1.0  # the same for a folder that has the file that is written last
# written last by transformers' Trainer and by torch.distributed.checkpoint
LAST_FILES = ("trainer_state.json", ".metadata")
# seconds after which a save and the report of the same model have both been seen
BESIDE_PRINT_S = 0.1
FEW = 4  # saves after which it is known for how long they stand
HELD_S = 1.0  # seconds that a script may be made to wait until its last save is copied
MOST_HELD = 256
BLOCK = 1 << 20
ZIP = b"PK\x03\x04"
# name, inode, size and time of each file and link
Signature = Tuple[Tuple[str, int, int, int], ...]
# a file or folder, and its content, relative to the folder in which the script runs
State = Tuple[str, Signature]
NOTHING: State = ("", ())
# saves that must have the same files; and at most so many others make this forgotten
SEEN, MOST_SEEN = 2, 4
DIGITS = re.compile("[0-9]+")
NUMBERED = re.compile("[^/]*[0-9][^/]*/")


@dataclass
class Saved:
    """One state of what the script saves."""

    path: str  # file or folder, relative to the folder in which the script runs
    signature: Signature = field(repr=False)  # name, inode, size and time of each of its files
    since: float  # when it was first seen like this, seconds of the monotonic clock
    is_closed: bool = False  # whether no process has had it open for writing since then

    def age_s(self) -> float:
        """Return the seconds since it changed."""
        return time.monotonic() - self.since


class Watch:
    """Watches what matches `pattern` in the folder `work`, since `began_ns` (a file's time)."""

    def __init__(self, work: Path, pattern: str, began_ns: int) -> None:
        self._work = work
        self._pattern = pattern
        self._began_ns = began_ns
        self._last: Optional[Saved] = None
        self._order = SaveOrder()
        # for how many seconds the last saves stood until the next began
        self._stood: Deque[float] = deque(maxlen=FEW)
        self._sees = True  # whether files that are open for writing can be seen
        # whether nothing was saved before the first look; None: there was no look
        self._sees_first: Optional[bool] = None

    def look(self) -> Optional[Saved]:
        """Return the script's last save; None if there is none."""
        paths = self._work.glob(self._pattern) if self._pattern else ()
        state = max(map(self._measured, paths), key=_changed, default=None)
        if self._sees_first is None:
            self._sees_first = state is None or _changed(state)[0] < self._began_ns
        if state is None or not state[1]:
            return None
        if self._last is None or (self._last.path, self._last.signature) != state:
            self._learn(self._last, state)
            self._last = Saved(*state, since=time.monotonic())
        if not self._last.is_closed:
            self._last.is_closed = self.is_closed(self._last)
        return self._last

    def _learn(self, before: Optional[Saved], state: State) -> None:
        is_folder = (self._work / state[0]).is_dir()
        left = NOTHING if before is None else (before.path, before.signature)
        if before is not None and (self.is_complete(before) if is_folder else before.is_closed):
            self._stood.append(before.age_s())
        if left[0] and left[0] != state[0]:  # more may have been written of it since it was seen
            left = self._measured(self._work / left[0])
        if is_folder and (left[1] or (before is None and self._sees_first)):
            self._order.note(left, state)

    @property
    def stands_s(self) -> float:
        """Seconds for which a save stands until the next begins; infinite: unknown."""
        return max(self._stood) if len(self._stood) == FEW else math.inf

    @property
    def is_busy(self) -> bool:
        """Whether the script saves every moment, or may do so."""
        may = len(self._stood) < FEW and self._last and self._last.age_s() < FOLDER_QUIET_S
        return self.stands_s < FILE_QUIET_S or bool(may)

    @property
    def settles_s(self) -> float:
        """Seconds after which both a save and the report of the same model have been seen."""
        return min(BESIDE_PRINT_S, self.stands_s / 3)

    def may_be_whole(self, saved: Saved) -> bool:
        """Return whether it is worth copying: quiet and closed, or its copy will show."""
        if self.shows(saved):
            return True
        return saved.age_s() >= self.quiet_s(saved) and saved.is_closed

    def shows(self, saved: Saved) -> bool:
        """Return whether a copy of it shows by itself whether it is whole (`is_sound`)."""
        path = self._work / saved.path
        return path.is_file() and _is_zip(path)

    def is_as_it_was(self, saved: Saved) -> bool:
        """Return whether it is still as it was seen."""
        return (saved.path, saved.signature) == self._measured(self._work / saved.path)

    def is_closed(self, saved: Saved) -> bool:
        """Return whether nobody has it open for writing, and each zip in it is complete."""
        try:
            for path in self._files_of(saved):
                with open(path, "rb") as file:
                    self._sees = _hold(file)
                if _is_zip(path) and not zipfile.is_zipfile(path):
                    return False
        except OSError:  # it is being written, or replaced
            return False
        return True

    @contextlib.contextmanager
    def held(self, saved: Saved) -> Iterator[None]:
        """Have processes that open its files for writing wait, for at most `HELD_S`. Raises
        `BlockingIOError` if a file is open for writing, unless its copy will show whether it is
        whole.
        """
        with contextlib.ExitStack() as stack:
            held = []
            for path in self._files_of(saved)[:MOST_HELD]:
                file = stack.enter_context(open(path, "rb"))
                try:
                    held += [file] if _hold(file) else []
                except BlockingIOError:
                    if not self.shows(saved):
                        raise
            timer = threading.Timer(HELD_S, _let_go, [held])
            timer.start()
            try:
                yield
            finally:
                timer.cancel()
                timer.join()

    def _files_of(self, saved: Saved) -> List[Path]:
        paths = [self._work / name for name, *_ in saved.signature]
        return [path for path in paths if path.is_file()]

    def is_complete(self, saved: Saved) -> bool:
        """Return whether it is a folder whose files have all been written in their usual order."""
        return saved.is_closed and self._order.is_complete((saved.path, saved.signature))

    def quiet_s(self, saved: Saved) -> float:
        """Return for how many seconds it must be unchanged, at most half the time it stands."""
        if not (self._work / saved.path).is_dir():
            return min(FILE_QUIET_S, self.stands_s / 2) if self._sees else KNOWN_QUIET_S
        if self.is_complete(saved):
            return self.settles_s
        newest = max(time_ns for *_, time_ns in saved.signature)
        last = {os.path.basename(name) for name, *_, at in saved.signature if at == newest}
        return KNOWN_QUIET_S if last.intersection(LAST_FILES) else FOLDER_QUIET_S

    def is_more_of(self, before: Saved, saved: Saved, is_young: bool) -> bool:
        """Return whether a change belongs to the same save: a file that still grows, or another one
        at once (`last.pt`, `best.pt`); a folder until it is quiet. `is_young`: `before` had not
        stood still yet.
        """
        if self.is_complete(before) or follows(before, saved):
            return False
        if before.path != saved.path:
            return before.age_s() < FILE_QUIET_S
        if (self._work / saved.path).is_dir():
            return before.age_s() < self.quiet_s(before)
        (_, old, shorter, _), (_, new, longer, _) = before.signature[0], saved.signature[0]
        return is_young and old == new and shorter < longer

    def _measured(self, path: Path) -> Tuple[str, Signature]:
        paths: Dict[Path, Callable[[Path], os.stat_result]] = {path: os.stat}
        if path.is_dir():
            inside = folders.contents(path)
            paths = {path / name: os.stat for name in inside.files}
            paths.update({path / name: os.lstat for name in inside.links})
        parts = []
        for entry, look in paths.items():
            with contextlib.suppress(OSError):
                parts.append((os.path.relpath(entry, self._work), *identity(look(entry))))
        return os.path.relpath(path, self._work), tuple(parts)


def _changed(state: Tuple[str, Signature]) -> Tuple[int, str]:
    return max((time_ns for *_, time_ns in state[1]), default=0), state[0]


def is_sound(copy: Path) -> bool:
    """Return whether a copy of a zip, as `torch.save` writes it, is whole by its checksums."""
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


def identity(status: os.stat_result) -> Tuple[int, int, int]:
    """Return the inode, size and time of a file."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def follows(before: Saved, saved: Saved) -> bool:
    """Return whether these are two of a kind: `step_4` after `step_3`."""
    kinds = [DIGITS.sub("", state.path) for state in (before, saved)]
    return before.path != saved.path and kinds[0] == kinds[1]


def _hold(file: BinaryIO) -> bool:
    """Have processes that open this file for writing wait until it is closed here; return whether
    that works (a lease of fcntl(2): on Linux, not on network file systems). Raises
    `BlockingIOError` if a process has it open for writing.
    """
    if sys.platform != "linux":
        return False
    try:
        # The kernel tells when a process waits, by a signal that ends us if it is not another one.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _let_go(files: List[BinaryIO]) -> None:
    if sys.platform == "linux":
        for file in files:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)


class SaveOrder:
    """The order in which a script writes the files of a folder, learned from its saves.

    The one rule: a save ends with the file that comes last before the first one is written again.
    """

    def __init__(self) -> None:
        self._oldest: Set[str] = set()  # files that were written first when all had gone
        self._first = ""  # the file that each save begins with; empty: that is not known
        self._order: List[str] = []  # all files in their order, as the last `_times` saves had them
        self._times = 0
        # whether files go away, as those of `step_3/` do: then numbers of the upper folders do not
        # count, and the newest file counts of those that have the same name
        self._is_numbered = False

    def note(self, before: State, now: State) -> None:
        """Learn from a folder that changed, came after another one, or after `NOTHING`."""
        old, new = self._written(before), self._written(now)
        gone = old.keys() - new.keys()
        is_other = before[0] != now[0]
        if (gone or is_other) and min(new.values()) > max(old.values(), default=0):
            self._oldest = {name for name in new if new[name] == min(new.values())}
        if not self._is_numbered and not is_other and any(map(NUMBERED.match, gone)):
            self._is_numbered, self._first, self._times = True, "", 0
            return
        rewritten = [name for name in old if new.get(name, 0) > old[name]]
        if not self._first and rewritten:
            first = min(rewritten, key=new.__getitem__)
            self._first = first if first in map(self._key, self._oldest) else ""
        if self._first in rewritten:
            names = sorted(old, key=lambda name: (old[name], name))
            at = names.index(self._first)
            is_same = set(names) == set(self._order)
            self._times = min(MOST_SEEN, self._times + (1 if is_same else -1))
            if is_same or self._times < 1:
                self._order, self._times = names[at:] + names[:at], max(1, self._times)

    def is_complete(self, state: State) -> bool:
        """Return whether all files have been written in their order since the first one was."""
        written = self._written(state)
        if self._times < SEEN or written.keys() != set(self._order):
            return False
        times = [written[name] for name in self._order]
        return times == sorted(times)

    def _written(self, state: State) -> Dict[str, int]:
        path, signature = state
        times: Dict[str, int] = {}
        for name, _, _, time_ns in signature:
            key = self._key(name[len(path) + 1 :])
            times[key] = max(time_ns, times.get(key, 0))
        return times

    def _key(self, name: str) -> str:
        upper, slash, rest = name.partition("/")
        return f"{DIGITS.sub('', upper)}/{rest}" if slash and self._is_numbered else name


@dataclass(frozen=True)
class SoFar:
    """How far the trial has come, for a checkpoint's manifest."""

    epoch: int  # reports so far
    metrics: Dict[str, Optional[float]]  # metrics of the last report, as a checkpoint has them
    recent: List[Optional[float]]  # the values of the metric that counts, of the last reports


class Carrier:
    """Writes the checkpoints of an attempt: a file as it is, a folder as one file. `units` is the
    number of the last one.

    The one rule: a checkpoint is a copy, and counts only if the original was the same before and
    after, and its own checksums, if any, are right. The manifest also says where it was (`at`), and
    which reports are behind its metric (`recent`).
    """

    def __init__(self, attempt: Attempt, work: Path, watch: Watch, units: int) -> None:
        self._attempt = attempt
        self._work = work
        self._watch = watch
        self._units = units
        # what the last one has of links that lead out of it, in words; empty: there are none
        self.out = ""

    def carry(self, saved: Saved, standing: SoFar) -> Optional[str]:
        """Write a checkpoint; return its name, None if the save changed. Raises `OSError`."""
        folder = self._attempt.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{standing.epoch:06d}-{self._units + 1:08d}"
        part = folder / f".{name}.pt"
        shows = self._watch.shows(saved)
        try:
            with open(part, "wb") as file:
                out = checkpoints.Flushed(file, part)
                with self._watch.held(saved):
                    is_same = self._copy(saved, out)
                out.flush()
            if not is_same or (shows and not is_sound(part)):
                return None
            self._units += 1
            manifest = {
                "version": 1,
                "name": name,
                "epoch": standing.epoch,
                "metrics": standing.metrics,
                "sha256": out.sha256.hexdigest(),
                "size": part.stat().st_size,
                "at": saved.path,
                "recent": standing.recent,
            }
            os.replace(part, folder / f"{name}.pt")
            checkpoints.publish(folder, manifest, self._attempt.goal)
        except (FileNotFoundError, BlockingIOError):  # it is being replaced, or written
            return None
        finally:
            part.unlink(missing_ok=True)
        return name

    def _copy(self, saved: Saved, out: checkpoints.Flushed) -> bool:
        """Copy a save; return whether it is still as it was seen."""
        path = self._work / saved.path
        if path.is_dir():
            folders.pack(path, cast(BinaryIO, out))
            self.out = folders.links_out(path)
            return self._watch.is_as_it_was(saved)
        with open(path, "rb") as file:  # it stays the same file though another takes its name
            shutil.copyfileobj(file, out, BLOCK)
            return saved.signature[0][1:] == identity(os.fstat(file.fileno()))
