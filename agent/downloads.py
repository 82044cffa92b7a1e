"""Fetches the job's data, objects that the daemon has granted, once per instance. Nothing is
written outside the trials' working folder, and a file gets its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from seerd.agent import plainfile
from seerd.agent.protocol import Download, Downloads
from seerd.agent.threads import parallel
from seerd.agent.transfer import name_file
from seerd.agent.web import WebError, Wires, download

FILES_AT_ONCE = 8


class JobData:
    """The data that the next preparation fetches."""

    def __init__(self) -> None:
        self._items: list[Download] = []

    def take(self, message: Downloads) -> None:
        """Add the items of this message; one that is `first` replaces what was there."""
        self._items = [*([] if message.first else self._items), *message.items]

    def fetch(self, root: Path) -> None:
        """Fetch every file that is not below `root` with the right size. Raises `ValueError`."""
        wires, root = Wires(), root.resolve()
        wanted = {item.to: item for item in self._items}.values()
        missing = [
            item
            for item in wanted
            if (path := place(root, item.to)).is_symlink() or plainfile.size(path) != item.size
        ]
        parallel(lambda item: _fetch(wires, item, root), missing, FILES_AT_ONCE)


def place(root: Path, to: str) -> Path:
    """Return the path of this file below `root`. Raises `ValueError` if it leads out of it."""
    parts, refused = to.split("/"), f"data for {to!r:.200} is refused"
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"{refused}: that is no plain path below the trials' working folder")
    path = root.joinpath(*parts)
    parent = path.parent.resolve()
    if parent != root and root not in parent.parents:
        raise ValueError(f"{refused}: a link leads out of the trials' working folder")
    return path


def _fetch(wires: Wires, item: Download, root: Path) -> None:
    path = place(root, item.to)
    part = path.with_name(f".part-{hashlib.sha256(item.to.encode()).hexdigest()[:16]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ValueError(f"data for {item.to} is refused: there is a folder of this name")
        download(wires, item.url, item.size, part)
        name_file(part, path)
    except (WebError, OSError) as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, WebError):
            raise ValueError(f"data for {item.to} cannot be fetched: {error}") from None
        why = error.strerror or error
        raise ValueError(f"data for {item.to} cannot be written: {why}") from None
