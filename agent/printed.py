"""The ends of logs that have changed, for a machine that shows them elsewhere. Only plain files are
opened, and no answer holds more than `MOST` bytes of logs.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from seerd.agent import plainfile

MOST_OF_ONE = 1 << 18
MOST = 8 << 20
SETTLED_S = 1.0
"""A log written fewer seconds ago is read again the next time: file times are coarse."""


def printed(folder: Path, after: float) -> Dict[str, Any]:
    """Return the ends of the logs below `folder` that were written to later than `after`.

    logs   by path below `folder`, oldest first: the end of the log, zlib in base64
    more   whether there are others, for which no room was left
    until  what to give as `after` the next time

    All times are file times, in seconds since 1970.
    """
    changed = sorted((at, path) for path, at in _logs(folder) if at > after)
    logs: Dict[str, str] = {}
    until, left = after, MOST
    for at, path in changed:
        if left < MOST_OF_ONE:
            return {"logs": logs, "until": until, "more": True}
        with contextlib.suppress(OSError):
            end = plainfile.read(path, -MOST_OF_ONE, MOST_OF_ONE)
            left -= len(end)
            logs[str(path.relative_to(folder))] = base64.b64encode(zlib.compress(end)).decode()
        until = max(after, min(at, time.time() - SETTLED_S))
    return {"logs": logs, "until": until, "more": False}


def _logs(folder: Path) -> Iterator[Tuple[Path, float]]:
    for trial in _folders(folder / "trials"):
        for attempt in _folders(trial):
            logs = attempt / "logs"
            for top, _, names in () if logs.is_symlink() else os.walk(logs):
                for name in names:
                    path = Path(top, name)
                    with contextlib.suppress(OSError):
                        about = path.lstat()
                        if name.endswith(".log") and about.st_size and not path.is_symlink():
                            yield path, about.st_mtime


def _folders(top: Path) -> List[Path]:
    try:
        return [path for path in top.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
