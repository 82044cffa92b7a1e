"""The GPUs of a machine that several runs of several users use: a folder with a file for each GPU
and for each run. Who holds the lock (flock(2)) on a GPU's file has it; a run is here while its
file, which only its owner can write, is locked. The kernel frees locks after a crash.

A part of a GPU has a file too, and larger parts that it is in, the GPU itself among them, are
locked with it as shared: so of two parts that overlap only one is had, however large each is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pwd
import re
import stat
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Iterable, NamedTuple, Optional, Sequence

from seerd.agent.manifest import by_number
from seerd.agent.protocol import PARTS

FOLDER = "/var/tmp/seerd-gpus"  # noqa: S108 (what is here is taken for what anybody may write)
ELSEWHERE = "SEERD_GPU_LEASES"  # environment variable that names another folder, for tests
FOLDER_MODE, FILE_MODE = 0o1777, 0o644
LONGEST = 1 << 16  # bytes of a run's file that are read at most
MOST_GPUS = 1024
RUN, NEW = "run-", ".new-"  # prefixes of the names of files: of runs, and of unfinished files
LEASE = re.compile(r"(gpu|slot)-[A-Za-z0-9._-]{1,80}")
PART = re.compile(r"(.+)\.([0-9]+)of([0-9]+)")  # the name of a part's lease, see `part_name`
SHOWN = re.compile(r"[^\x20-\x7e]")


class LeaseFolderError(Exception):
    """The folder cannot be used."""


class Use(NamedTuple):
    """What a GPU is used for."""

    attempt: str  # as "trial/attempt"
    since: float  # seconds since 1970


@dataclass(frozen=True)
class RunHere:
    """What a run says of itself on a machine."""

    run: str
    weight: float  # above 0
    most: int  # the most slots that it can use
    wants: int  # slots that it could use now
    least: int  # slots of its smallest trial, at least 1
    pool: list[str]  # leases of the GPUs that it may take
    since: float  # when its agent began, in seconds since 1970
    uses: dict[str, Use]  # by lease, for those that it holds
    user: str = ""  # owner of its file; empty: not read from a file
    lives: bool = True  # whether its agent lives; its trials may outlive it for a while
    parts: int = 1  # slots of each GPU


class LeaseFolder:
    """The folder at `path`, made if it is not there. Raises `LeaseFolderError`."""

    def __init__(self, path: str) -> None:
        self.path = path
        umask = os.umask(0)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, FOLDER_MODE)
                os.chmod(path, FOLDER_MODE)  # where mkdir(2) leaves out the sticky bit
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._folder = os.open(path, flags)
        except OSError as error:
            raise LeaseFolderError(f"{path} cannot be used: {error.strerror}") from None
        finally:
            os.umask(umask)
        status = os.fstat(self._folder)
        mode = stat.S_IMODE(status.st_mode)
        if mode != FOLDER_MODE:
            owner = _user(status.st_uid)
            os.close(self._folder)
            raise LeaseFolderError(
                f"{path} has mode {mode:04o}, and every user must be able to use it: {owner} or "
                f"root can run `chmod {FOLDER_MODE:o} {path}`"
            )
        with contextlib.suppress(OSError):  # against systemd-tmpfiles(8)
            fcntl.flock(self._folder, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Close the folder; leases and registrations stay."""
        os.close(self._folder)

    def lease_part(self, gpu: str, part: int, parts: int) -> Optional[list[int]]:
        """Return descriptors that hold a part of a GPU, or (of one) the whole; None if some of it
        is held already.
        """
        leases: list[int] = []
        for size in (size for size in PARTS if size <= parts):
            lock = fcntl.LOCK_EX if size == parts else fcntl.LOCK_SH
            lease = self.lease(part_name(gpu, part * size // parts, size), lock)
            if lease is None:
                free(leases)
                return None
            leases.append(lease)
        return leases

    def lease(self, name: str, lock: int = fcntl.LOCK_EX) -> Optional[int]:
        """Return a descriptor that holds the lock of this name until all its copies are closed;
        None if it is held already, or its file cannot be used.
        """
        while True:  # again if another process has removed the file meanwhile
            try:
                descriptor = self._file(name)
            except OSError:
                return None
            try:
                fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
                if _is_at(descriptor, name, self._folder):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)

    def leased(self) -> list[str]:
        """List the GPUs, and parts of GPUs, that are locked."""
        return [name for name in self._names() if LEASE.fullmatch(name) and self._is_held(name)]

    def holders(self, runs: Sequence[RunHere]) -> dict[str, Optional[RunHere]]:
        """Return which of these runs says that it holds each locked GPU; None: none does."""
        ranked = sorted(runs, key=lambda run: (run.lives, run.since))
        users = {lease: run for run in ranked for lease in run.uses}
        return {lease: users.get(lease) for lease in in_order(self.leased())}

    def register(self, name: str) -> "Registration":
        """Register a run. Raises `LeaseFolderError` if its file cannot be made."""
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
        own = f"{RUN}{plain}.{os.geteuid()}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(own, dir_fd=self._folder)  # of a process that had our number
            return Registration(self._folder, own, self._made(own, fcntl.LOCK_EX))
        except OSError as error:
            raise LeaseFolderError(f"{self.path}/{own}: {error.strerror}") from None

    def runs(self, dead: bool = False) -> list[RunHere]:
        """List the runs here; with `dead` also those whose agents have died."""
        runs: list[Optional[RunHere]] = []
        for name in self._names():
            if not name.startswith(RUN):
                continue
            try:
                descriptor = _open(name, self._folder)
            except OSError:
                continue
            with open(descriptor, "rb") as file:
                lives, user = not _could_lock(file.fileno()), os.fstat(file.fileno()).st_uid
                if lives or dead:
                    runs.append(parsed_run(file.read(LONGEST), _user(user), lives))
        return [run for run in runs if run is not None]

    def tidy(self) -> None:
        """Remove what dead processes of this user have left behind."""
        for name in self._names():
            if name.startswith((RUN, NEW)) and not self._is_held(name):
                with contextlib.suppress(OSError):
                    if os.stat(name, dir_fd=self._folder).st_uid == os.geteuid():
                        os.unlink(name, dir_fd=self._folder)

    def _names(self) -> list[str]:
        return sorted(os.listdir(self._folder))

    def _is_held(self, name: str) -> bool:
        try:
            descriptor = _open(name, self._folder)
        except OSError:
            return False
        with open(descriptor, "rb") as file:
            return not _could_lock(file.fileno())

    def _file(self, name: str) -> int:
        try:
            return _open(name, self._folder)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                return self._made(name, 0)
            return _open(name, self._folder)

    def _made(self, name: str, lock: int) -> int:
        """Make a file that everybody may read and lock. It gets its name only when it is ready."""
        part = f"{NEW}{name}.{os.getpid()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=self._folder)
            descriptor = os.open(part, flags, FILE_MODE, dir_fd=self._folder)
            try:
                os.fchmod(descriptor, FILE_MODE)
                if lock:
                    fcntl.flock(descriptor, lock)
                with contextlib.suppress(FileNotFoundError):  # another process has tidied it up
                    os.link(part, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=self._folder)
            os.close(descriptor)


class Registration:
    """The file of a run, while this process lives and has not closed it."""

    def __init__(self, folder: int, name: str, descriptor: int) -> None:
        self._folder = folder
        self.name = name
        self._descriptor = descriptor
        self._size = 0

    def write(self, run: RunHere) -> None:
        """Write this into the run's file, in one write of at least the last one's size."""
        data = json.dumps({"version": 1, **asdict(run)}).encode().ljust(self._size)
        self._size = len(data)
        with contextlib.suppress(OSError):  # a full disk: the last state stands
            os.pwrite(self._descriptor, data, 0)

    def close(self) -> None:
        """Remove the registration."""
        with contextlib.suppress(OSError):
            if _is_at(self._descriptor, self.name, self._folder):
                os.unlink(self.name, dir_fd=self._folder)
        os.close(self._descriptor)


def free(leases: Iterable[int]) -> None:
    """Free leases at once, even if other processes have copies of them, and close them."""
    for lease in leases:
        fcntl.flock(lease, fcntl.LOCK_UN)
        os.close(lease)


def folder_path() -> str:
    """Return the path of the folder on this machine."""
    return os.environ.get(ELSEWHERE) or FOLDER


def parsed_run(data: bytes, user: str, lives: bool) -> Optional[RunHere]:
    """Parse a run's file, which anybody may have written; None if it is not valid."""
    try:
        body: dict[str, Any] = json.loads(data)
        most, wants, least = int(body["most"]), int(body["wants"]), int(body["least"])
        uses = {
            _lease(name): Use(_plain(use[0]), float(use[1]))
            for name, use in list(body["uses"].items())[:MOST_GPUS]
        }
        pool = [_lease(name) for name in body["pool"][:MOST_GPUS]]
        run = RunHere(
            *(_plain(body["run"]), float(body["weight"]), most, wants, least),
            *(pool, float(body["since"]), uses),
            user=user,
            lives=lives,
            parts=int(body.get("parts", 1)),
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return None
    sound = math.isfinite(run.since) and all(math.isfinite(u.since) for u in uses.values())
    counts = 0 <= wants <= MOST_GPUS and 0 <= most <= MOST_GPUS and least >= 1
    return run if sound and counts and 0 < run.weight < 1e9 and run.parts in PARTS else None


def in_order(leases: Sequence[str]) -> list[str]:
    """Sort leases by their numbers."""
    return sorted(leases, key=by_number)


def part_name(gpu: str, part: int, parts: int) -> str:
    """Name the lease of a part of a GPU."""
    return gpu if parts == 1 else f"{gpu}.{part}of{parts}"


class LeasedPart(NamedTuple):
    """What a lease is for."""

    gpu: str  # name of the whole GPU's lease
    part: int  # which part of it, from 0
    parts: int  # how many of these the GPU has; 1: it is the whole GPU


def leased_part(lease: str) -> LeasedPart:
    """Return what a lease is for."""
    match = PART.fullmatch(lease)
    return LeasedPart(match[1], int(match[2]), int(match[3])) if match else LeasedPart(lease, 0, 1)


def gpu_of(lease: str) -> str:
    """Return the lease of the GPU that this one is a part of."""
    return leased_part(lease).gpu


def leases_text(leases: Iterable[str]) -> str:
    """Write which GPUs, and how much of shared ones, these leases are for: 2/4 of gpu-0, gpu-1."""
    leased = [leased_part(lease) for lease in leases]
    counts = Counter((part.gpu, part.parts) for part in leased)
    return ", ".join(
        gpu if parts == 1 else f"{count}/{parts} of {gpu}" for (gpu, parts), count in counts.items()
    )


def _open(name: str, folder: int) -> int:
    """Open a file to read and lock it. Raises `OSError`, also if it is no regular file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no file", name)
    return descriptor


def _could_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _is_at(descriptor: int, name: str, folder: int) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), status)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _lease(name: Any) -> str:
    if not isinstance(name, str) or not LEASE.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no lease")
    return name


def _plain(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.80} is no text")
    return SHOWN.sub("?", text)[:100]


def pools(runs: Sequence[RunHere]) -> set[str]:
    """Return the leases of all GPUs that one of these runs may take."""
    return {name for run in runs for name in run.pool}


def report() -> dict[str, Any]:
    """Return who has which GPUs of this machine, and which a run here has counted: only locks that
    are held count (`seerd machines`). Raises `LeaseFolderError`.
    """
    path, now = folder_path(), time.time()
    if not os.path.lexists(path):
        return {"now": now, "gpus": [], "runs": []}
    folder = LeaseFolder(path)
    runs = folder.runs(dead=True)
    holders = folder.holders(runs)
    folder.close()
    shown = [run for run in runs if run.lives or run in holders.values()]
    shown.sort(key=lambda run: (run.since, run.run))
    rest = pools([run for run in shown if run.lives]) - set(map(gpu_of, holders))
    leases = in_order(sorted(holders.keys() | rest))
    return {
        "now": now,
        "gpus": [
            {
                **leased_part(lease)._asdict(),
                "held": lease in holders,
                **_use(lease, holders.get(lease)),
            }
            for lease in leases
        ],
        "runs": [
            _counted(run, [name for name in holders if holders[name] == run]) for run in shown
        ],
    }


def _counted(run: RunHere, leases: Sequence[str]) -> dict[str, Any]:
    """Return what is shown of a run that has these leases. Parts of GPUs are fractions, exactly."""
    held = sum(run.parts if leased_part(lease).parts == 1 else 1 for lease in leases)
    slots = {"gpus": held, "most": run.most, "wants": run.wants}
    names = ("run", "user", "weight", "since", "lives", "parts")
    return {
        **{name: getattr(run, name) for name in names},
        **{name: n / run.parts if n % run.parts else n // run.parts for name, n in slots.items()},
    }


def _use(lease: str, run: Optional[RunHere]) -> dict[str, Any]:
    if run is None:
        return dict.fromkeys(("run", "user", "trial", "attempt", "since"))
    use = run.uses[lease]
    trial, _, attempt = use.attempt.rpartition("/")
    number = int(attempt) if attempt.isdecimal() else None
    about = {"trial": trial or None, "attempt": number, "since": use.since}
    return {"run": run.run, "user": run.user, **about}
