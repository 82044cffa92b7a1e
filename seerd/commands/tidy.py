"""`seerd rm` and `seerd gc`: what runs have left on this disk, and removing it.

The one rule: nothing is removed of a run that a process runs, or whose agents may still be there;
and nothing before a person, or `--yes`, has agreed to what would be.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from seerd.commands.common import tell
from seerd.commands.options import Consent
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.errors import BusyError, JournalError, UsageError
from seerd.runs import reading, wiring
from seerd.runs.runs import can_go_on, lacks_its_model
from seerd.runs.unstored import unstored
from seerd.shell import disk
from seerd.shell.home import Home, RunFolder
from seerd.stores.by_address import by_address
from seerd.telling.harmless import harmless
from seerd.telling.working import working
from seerd.units import format_duration, format_size

QUIET_S = 300.0
"""If nobody has written a run's journal for this many seconds and no process runs it, none of its
agents is there any more: leases end after 60 s, and saving takes at most 150 s more.
"""


@dataclass(frozen=True, slots=True)
class Freed:
    """What can be removed of a run."""

    folder: RunFolder  # the run's folder
    paths: tuple[Path, ...]  # folders that go, with all that is in them
    size: int  # their bytes
    stays: str = ""  # what stays elsewhere, for people; empty if nothing does


def rm(folder: RunFolder, consent: Consent) -> None:
    """Remove a run with all that it has on this disk, its model too.

    Raises `BusyError` if a process runs it, `UsageError` if its agents may still be there.
    """
    _check_gone(folder)
    outside, stays = _store_elsewhere(folder)
    paths = (folder.path, *outside)
    with working("looking at what it has on the disk"):
        found = Freed(folder, paths, disk.size_of(paths), stays)
    _remove([found], "remove {} with its model", consent)


def gc(home: Home, older_than_s: float, consent: Consent) -> None:
    """Remove the checkpoints and the instances' folders of runs that ended so many seconds ago.
    Journals, models, specs and sources stay.
    """
    with working("looking at what runs have on the disk"):
        found = [one for folder in home.runs() if (one := _spent(folder, older_than_s)) is not None]
    _remove(found, "remove checkpoints and logs of {}", consent)


def _check_gone(folder: RunFolder) -> None:
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


def _spent(folder: RunFolder, older_than_s: float) -> Freed | None:
    """Return what `gc` may remove of a run; None if nothing."""
    if folder.owner() is not None:
        return None
    try:
        state, origin = reading.read_with_origin(folder)
    except JournalError:
        return None
    if not _cannot_go_on(state) or time.time() - origin - state.now < older_than_s:
        return None
    if unstored(folder, state):
        return None
    outside, stays = _store_elsewhere(folder)
    paths = tuple(path for path in (folder.store, folder.instances, *outside) if path.is_dir())
    size = disk.size_of(paths)
    return Freed(folder, paths, size, stays) if size else None


def _cannot_go_on(state: State) -> bool:
    """Tell whether nothing can come of the run's checkpoints any more."""
    return state.phase is RunPhase.OVER and not lacks_its_model(state) and not can_go_on(state)


def _store_elsewhere(folder: RunFolder) -> tuple[tuple[Path, ...], str]:
    """Return the run's own folder in a store outside of its own, and what stays in a store that is
    not on this disk.
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


def _remove(found: list[Freed], question: str, consent: Consent) -> None:
    """Show what was found, ask, and remove it under each run's lock."""
    size = sum(one.size for one in found)
    if not consent.json:
        for line in _lines(found, size):
            print(harmless(line))
    if found and not consent.dry_run:
        what = found[0].folder.run if len(found) == 1 else f"{len(found)} runs"
        _agree(question.format(what), consent)
        with working("removing"):
            _remove_all(found)
        if not consent.json:
            print(f"freed {format_size(size)}")
    told = {"dry_run": consent.dry_run, "bytes": size, "runs": [_row(one) for one in found]}
    if consent.json:
        tell(told, str, json=True)


def _row(one: Freed) -> dict[str, object]:
    return {
        "run": one.folder.run,
        "bytes": one.size,
        "paths": [str(path) for path in one.paths],
        "stays": one.stays or None,
    }


def _lines(found: list[Freed], size: int) -> Iterator[str]:
    for one in found:
        yield f"{format_size(one.size):>8}  {one.folder.run}"
        if one.stays:
            yield f"          {one.stays}"
    if not found:
        yield "there is nothing to remove"
    elif len(found) > 1:
        yield f"{format_size(size):>8}  in all"


def _agree(question: str, consent: Consent) -> None:
    """Ask the person, unless that was agreed. Raises `UsageError` where nobody can be asked."""
    if consent.yes:
        return
    if consent.json or not sys.stdin.isatty():
        raise UsageError("nothing was removed: give --yes to agree, or --dry-run to see it first")
    if not typer.confirm(f"{question}?"):
        raise typer.Exit(0)


def _remove_all(found: list[Freed]) -> None:
    for one in found:
        with one.folder.locked():
            try:
                disk.remove(one.paths)
            except OSError as error:
                raise UsageError(
                    f"not all of {one.folder.run} could be removed: {error.strerror} "
                    f"({error.filename})"
                ) from error
