"""The folder in which a script runs that does not import seerd: one for each attempt, so that
trials beside each other do not write into each other's files.

The one rule: all of the source is there as links, but what the script saves, and the folders on the
way to it, are the attempt's own. The source itself is never written to by what is done here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Optional, Sequence

from seerd.agent import folders
from seerd.agent.arguments import is_inside
from seerd.agent.manifest import CheckpointError, small_file


def lay_out(source: Path, work: Path, checkpoint: str) -> None:
    """Make the folder `work` anew. `checkpoint` is the path or pattern of what the script saves."""
    shutil.rmtree(work, ignore_errors=True)
    parts = PurePosixPath(checkpoint).parts
    _link(source, work, parts)
    fixed = list(takewhile(lambda part: not set("*?[") & set(part), parts[:-1]))
    work.joinpath(*fixed).mkdir(parents=True, exist_ok=True)


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


def _link(source: Path, work: Path, own: Sequence[str]) -> None:
    """Link all of a folder. `own` are the parts of the path, or pattern, of what is not linked."""
    work.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            to = work / entry.name
            is_way = bool(own) and fnmatchcase(entry.name, own[0])
            if not is_way or (len(own) > 1 and not entry.is_dir()):
                to.symlink_to(entry.path)
            elif len(own) > 1:
                _link(Path(entry.path), to, own[1:])
