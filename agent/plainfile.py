"""Reads files from paths that a trial can write to: a pipe, a device, a loop of links, or a file
larger than any memory may be there. Only a regular file is read, and nothing here waits.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def size(path: Path) -> int:
    """Return the size of a regular file in bytes, links followed; -1 for anything else."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def read(path: Path, start: int, most: int) -> bytes:
    """Read at most `most` bytes from `start` (negative: from the end). Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no file", str(path))
        file.seek(start if start >= 0 else max(0, status.st_size + start))
        return file.read(most)
