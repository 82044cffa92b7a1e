"""`seerd rm` and `seerd gc`: remove what runs have left on this disk. Nothing is removed of a run
that a process runs or whose agents may still be at work, and nothing before the user, or `--yes`,
has agreed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import typer

from seerd.commands.common import tell
from seerd.commands.options import Consent
from seerd.commands.sweep import QUIET_S
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.errors import BusyError, JournalError, UsageError
from seerd.runs import reading, wiring
from seerd.runs.runs import can_go_on, lacks_its_model
from seerd.runs.unstored import unstored
from seerd.shell.home import Home, RunFolder
from seerd.stores.by_address import by_address
from seerd.telling.harmless import harmless
from seerd.telling.working import working
from seerd.units import format_duration, format_size


class Freed(NamedTuple):
    """What can be removed of a run."""

    folder: RunFolder
    paths: tuple[Path, ...]  # folders that go, with all that is in them
    size: int  # their bytes
    stays: str = ""  # what stays elsewhere, for people; empty if nothing does


def rm(folder: RunFolder, consent: Consent) -> None:
    """Remove a run with all that it has on this disk, its model too. Raises `BusyError` if a
    process runs it, `UsageError` if its agents may still be at work.
    """
    owner = folder.owner()
    if owner is not None:
        raise BusyError(folder.run, owner)
    try:
        state, origin = reading.read_with_origin(folder)
    except JournalError:
        written = folder.journal.stat().st_mtime if folder.journal.is_file() else folder.begun
        over, quiet_s = False, time.time() - written
    else:
        over, quiet_s = state.phase is RunPhase.OVER, time.time() - origin - state.now
    if not over and quiet_s < QUIET_S:
        raise UsageError(
            f"{folder.run} was cut off, and its agents may still be at work; remove it in "
            f"{format_duration(round(QUIET_S - quiet_s))}, or go on with: seerd resume {folder.run}"
        )
    outside, stays = _store_elsewhere(folder)
    paths = (folder.path, *outside)
    with working("looking at what it has on the disk"):
        freed = Freed(folder, paths, size_of(paths), stays)
    _remove([freed], "remove {} with its model", consent)


def gc(home: Home, older_than_s: float, consent: Consent) -> None:
    """Remove the checkpoints and the instances' folders of runs that ended so many seconds ago.
    Journals, models, specs and sources stay.
    """
    freed = []
    with working("looking at what runs have on the disk"):
        for folder in [folder for folder in home.runs() if folder.owner() is None]:
            try:
                state, origin = reading.read_with_origin(folder)
            except JournalError:
                continue
            is_new = time.time() - origin - state.now < older_than_s
            if not _cannot_go_on(state) or is_new or unstored(folder, state):
                continue
            outside, stays = _store_elsewhere(folder)
            paths = (folder.store, folder.instances, *outside)
            paths = tuple(path for path in paths if path.is_dir())
            if size := size_of(paths):
                freed.append(Freed(folder, paths, size, stays))
    _remove(freed, "remove checkpoints and logs of {}", consent)


def _cannot_go_on(state: State) -> bool:
    return state.phase is RunPhase.OVER and not lacks_its_model(state) and not can_go_on(state)


def _store_elsewhere(folder: RunFolder) -> tuple[tuple[Path, ...], str]:
    """Return the run's folder in a store outside of its own, and what stays in a store that is not
    on this disk.
    """
    try:
        store = wiring.load(folder).store
    except JournalError:
        return (), ""
    if stays := by_address(store).what_stays():
        return (), stays
    path = Path(store)
    named = path.name == folder.run and not path.is_relative_to(folder.path.resolve())
    return ((path,) if named and path.is_dir() else ()), ""


def _remove(freed: list[Freed], question: str, consent: Consent) -> None:
    """Show what is removed, ask, and remove it under each run's lock."""
    size = sum(run.size for run in freed)
    if not consent.json:
        print("\n".join(map(harmless, _lines(freed, size))))
    if freed and not consent.dry_run:
        what = freed[0].folder.run if len(freed) == 1 else f"{len(freed)} runs"
        if not consent.yes:
            if consent.json or not sys.stdin.isatty():
                how = "give --yes to agree, or --dry-run to see it first"
                raise UsageError(f"nothing was removed: {how}")
            if not typer.confirm(f"{question.format(what)}?"):
                raise typer.Exit(0)
        with working("removing"):
            for run in freed:
                with run.folder.locked():
                    try:
                        remove(run.paths)
                    except OSError as error:
                        why = f"{error.strerror} ({error.filename})"
                        left = f"not all of {run.folder.run} could be removed: {why}"
                        raise UsageError(left) from error
        if not consent.json:
            print(f"freed {format_size(size)}")
    if consent.json:
        rows = [
            {
                "run": run.folder.run,
                "bytes": run.size,
                "paths": [str(path) for path in run.paths],
                "stays": run.stays or None,
            }
            for run in freed
        ]
        tell({"dry_run": consent.dry_run, "bytes": size, "runs": rows}, str, json=True)


def _lines(freed: list[Freed], size: int) -> Iterator[str]:
    for run in freed:
        yield f"{format_size(run.size):>8}  {run.folder.run}"
        if run.stays:
            yield f"          {run.stays}"
    if not freed:
        yield "there is nothing to remove"
    elif len(freed) > 1:
        yield f"{format_size(size):>8}  in all"


def size_of(paths: Iterable[Path]) -> int:
    """Add up the bytes of all files in these folders; one with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in paths:
        for folder, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    about = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - millions of them
                    seen[about.st_dev, about.st_ino] = about.st_size
    return sum(seen.values())


def remove(paths: Iterable[Path]) -> None:
    """Remove these folders and all that is in them, but follow no links. Raises `OSError`."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
