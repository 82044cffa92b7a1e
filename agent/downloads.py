"""The job's data: objects that the daemon has granted, fetched once per instance before the setup
commands.

The one rule: nothing is written outside the trials' working folder, and a file has its name only
when it is whole.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import List

from seerd.agent.protocol import Download, Downloads
from seerd.agent.ranges import RANGE, download
from seerd.agent.threads import parallel
from seerd.agent.transfer import name_file
from seerd.agent.web import WebError, Wires

FILES_AT_ONCE = 8


class DataError(ValueError):
    """The data cannot be had; the text says what of it, and why."""


class JobData:
    """What the next preparation fetches."""

    def __init__(self) -> None:
        self._items: List[Download] = []

    def take(self, message: Downloads) -> None:
        """More of it; the first message begins anew."""
        self._items = [*([] if message.first else self._items), *message.items]

    def fetch(self, root: Path) -> None:
        """Have every file below this folder. One that is there with the right size is kept. Raises
        `DataError`, and `OSError` if there is no room.
        """
        wires, root = Wires(), root.resolve()
        wanted = {item.to: item for item in self._items}.values()
        missing = [item for item in wanted if not _is_there(place(root, item.to), item.size)]
        small = [item for item in missing if item.size <= RANGE]
        parallel(lambda item: _fetch(wires, item, root), small, FILES_AT_ONCE)
        for item in missing:
            if item.size > RANGE:  # several ranges of one at once are as fast
                _fetch(wires, item, root)


def place(root: Path, to: str) -> Path:
    """Where this goes. Raises `DataError` if that is not below the folder, links followed."""
    parts = to.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise DataError(
            f"data for {to!r:.200} is refused: that is no plain path below the trials' "
            "working folder"
        )
    path = root.joinpath(*parts)
    parent = path.parent.resolve()
    if parent != root and root not in parent.parents:
        raise DataError(
            f"data for {to!r:.200} is refused: a link leads out of the trials' working folder"
        )
    return path


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


def _fetch(wires: Wires, item: Download, root: Path) -> None:
    path = place(root, item.to)
    part = path.with_name(f".part-{hashlib.sha256(item.to.encode()).hexdigest()[:16]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        download(wires, item.url, item.size, part)
        if path.is_dir():
            raise DataError(f"data for {item.to} is refused: there is a folder of this name")
        name_file(part, path)
    except WebError as error:
        _remove(part)
        raise DataError(f"data for {item.to} cannot be fetched: {error}") from None
    except OSError as error:
        _remove(part)
        raise DataError(
            f"data for {item.to} cannot be written: {error.strerror or error}"
        ) from None


def _remove(part: Path) -> None:
    try:
        os.unlink(part)
    except OSError:
        return
