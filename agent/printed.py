"""What trials have printed on this machine, for whoever shows it elsewhere.

The one rule: only logs that have changed since the last time are told, and of a long one its end; nothing is followed out of their folders.
"""

from __future__ import annotations

import base64
import contextlib
import os
import stat
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

MOST_OF_ONE = 1 << 20
MOST = 8 << 20
SETTLED_S = 1.0
"""A log that was written so shortly before it was read is read again the next time: times of files are coarse."""


def printed(folder: Path, after: float) -> Dict[str, Any]:
    """`logs`: by name below `folder`, the ends of those written to later than `after`, newest first and within `MOST` bytes, zlib in base64;
    `until`: what to say as `after` the next time. Moments are file times, seconds since 1970.
    """
    found = sorted(((about.st_mtime, path) for path, about in _logs(folder) if about.st_mtime > after), reverse=True)
    until, left = min(found[0][0] if found else after, time.time() - SETTLED_S), MOST
    logs = {}
    for _, path in found:
        if left <= 0:
            break
        with contextlib.suppress(OSError):
            end = _end_of(path, min(left, MOST_OF_ONE))
            left -= len(end)
            logs[str(path.relative_to(folder))] = base64.b64encode(zlib.compress(end)).decode()
    return {"logs": logs, "until": max(after, until)}


def _logs(folder: Path) -> Iterator[Tuple[Path, os.stat_result]]:
    for logs in folder.glob("trials/*/*/logs"):
        for top, _, names in os.walk(logs):
            for name in names:
                path = Path(top, name)
                with contextlib.suppress(OSError):
                    about = path.lstat()
                    if name.endswith(".log") and stat.S_ISREG(about.st_mode) and about.st_size:
                        yield path, about


def _end_of(path: Path, most: int) -> bytes:
    with open(path, "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - most))
        return log.read(most)
