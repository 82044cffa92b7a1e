"""Where runs are kept: one folder per run in the home folder. Everything about a run is in its
folder, and only the daemon that holds its lock writes there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seerd.errors import BusyError, UsageError

PROCESS = re.compile(r"[1-9][0-9]{0,9}")
IN_A_THREAD = "in-a-thread"  # written to the lock if the daemon is not the main thread


class _File:
    """A file or folder with a fixed name in a run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run."""

    path: Path

    journal = _File("journal.db")  # every event of the run (SQLite)
    spec = _File("spec.toml")  # the spec as it was when the run began
    setup = _File("setup.json")  # what the daemon needs beyond the journal to go on
    target = _File("target.json")  # what the run measures, if `seerd profile` began it
    source = _File("source")  # the user's source as it was when the run began
    specs = _File("specs")  # the specs of the jobs that share the run, a file each
    agent = _File("agent.pyz")  # the agent's zip
    instances = _File("instances")  # local instances: a subfolder each, with its trials' logs
    store = _File("store")  # the checkpoint store, unless the spec puts it elsewhere
    requests = _File("requests")  # the user's requests while it goes on (`seerd.shell.inbox`)
    fetched = _File("fetched")  # models fetched from machines that could not store them
    best = _File("best")  # the result: the best model

    @property
    def run(self) -> str:
        """The run's id."""
        return self.path.name

    def added_job(self, job: str) -> Path:
        """A job that was added while the run went on: see `seerd.runs.wiring` (JSON)."""
        return self.specs / f"{job}.json"

    def made_from(self, job: str) -> Path:
        """What a job, or the run of one job, was made from (JSON): `seerd.shell.edits`."""
        spec = self.specs / f"{job}.toml" if job else self.spec
        return spec.with_name(f"{job or spec.stem}.made-from")

    @property
    def is_one(self) -> bool:
        """Whether there is a run, or remains of one: a simulated run has only a journal."""
        return self.journal.is_file() or (self.spec.is_file() and self.setup.is_file())

    @property
    def begun(self) -> float:
        """When the run was made, seconds since 1970, by the file written once at the start."""
        return (self.spec if self.spec.is_file() else self.journal).stat().st_mtime

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock, with this process's id in it. Raises `BusyError`."""
        with (self.path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(self.run, self.owner()) from None
            lock.truncate(0)
            lock.write(str(os.getpid()) if takes_signals() else f"{os.getpid()} {IN_A_THREAD}")
            lock.flush()
            yield

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Wait until no other process adds a job to the run, and exclude them during the block."""
        descriptor = os.open(self.specs, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def owner(self) -> int | None:
        """Return the process id of the daemon that runs this run now; None: none, or unknown."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            text = self._held_by()[0]
            return int(text) if PROCESS.fullmatch(text) else None
        return None

    def is_in_a_thread(self) -> bool:
        """Return whether the daemon is a thread of another program, which gets its signals."""
        return self._held_by()[1:] == [IN_A_THREAD]

    def _held_by(self) -> list[str]:
        return (self.path / "lock").read_text().split() or [""]


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of all runs."""

    path: Path

    def new(self, name: str) -> RunFolder:
        """Make a folder for a new run, private to the user. Raises `UsageError`."""
        run = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        folder = RunFolder(self.path / run)
        try:
            folder.path.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise UsageError(
                f"the folder of all runs, {self.path}, cannot be used: {error.strerror}; name "
                "another one with --home or SEERD_HOME"
            ) from error
        return folder

    def runs(self) -> list[RunFolder]:
        """Return all runs, oldest first, also those without a journal. Raises `UsageError`."""
        if not self.path.is_dir():
            return []
        try:
            runs = [folder for path in self.path.iterdir() if (folder := RunFolder(path)).is_one]
        except OSError as error:
            raise UsageError(
                f"the folder of all runs, {self.path}, cannot be read: {error.strerror}"
            ) from error
        return sorted(runs, key=lambda folder: (folder.begun, folder.run))

    def find(self, name: str) -> RunFolder:
        """Return the run of this name, or the only one whose name begins with it; `last`: the
        newest run. Raises `UsageError` if there is none, or more than one.
        """
        runs = self.runs()
        if not runs:
            raise UsageError(f"there is no run in {self.path} yet; start one with: seerd run SPEC")
        if name == "last":
            return runs[-1]
        exact = [folder for folder in runs if folder.run == name]
        matching = exact or [folder for folder in runs if folder.run.startswith(name)]
        if len(matching) == 1:
            return matching[0]
        if not matching:
            raise UsageError(
                f"no run begins with {name!r}; the last is {runs[-1].run} (seerd list shows all)"
            )
        names = ", ".join(folder.run for folder in matching)
        raise UsageError(f"{name!r} could be any of {names}: give more of the name")


def takes_signals() -> bool:
    """Return whether this is the process's main thread, which gets its signals."""
    return threading.current_thread() is threading.main_thread()


def default_home() -> Path:
    """Return `$SEERD_HOME`, else `seerd` in the XDG state folder."""
    if home := os.environ.get("SEERD_HOME"):
        return Path(home).expanduser().resolve()
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "seerd"


def copy_result(folder: RunFolder, to: Path, job: str = "") -> Path:
    """Copy the best model's checkpoint (of this job) and configuration to the folder `to`; return
    the path of the checkpoint, a folder if the script has saved one. Raises `UsageError`.
    """
    from seerd.agent import folders
    from seerd.agent.manifest import CheckpointError

    best = folder.best / job
    try:
        to.mkdir(parents=True, exist_ok=True)
        _copy_whole(best / "config.json", to / "config.json")
        if folders.is_packed(best / "checkpoint.pt"):
            folders.unpack(best / "checkpoint.pt", to / "checkpoint")
            return to / "checkpoint"
        _copy_whole(best / "checkpoint.pt", to / "checkpoint.pt")
    except CheckpointError as error:
        raise UsageError(f"the model cannot be copied to {to}: {error}") from error
    except OSError as error:
        raise UsageError(
            f"the model cannot be copied to {to}: {error.strerror}"
            f"{f' ({error.filename})' if error.filename else ''}"
        ) from error
    return to / "checkpoint.pt"


def _copy_whole(source: Path, to: Path) -> None:
    """Replace `to` by a copy: a link there is replaced, not followed."""
    from seerd.agent.copying import copy_file

    part = to.with_name(f".{to.name}.part")
    try:
        copy_file(source, part)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
