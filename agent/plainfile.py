"""Reads files from paths that a trial can write to: a pipe, a device, a loop of links, or a file
larger than any memory may be there. Only a regular file is read, and nothing here waits.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Optional

BLOCK = 1 << 20


def size(path: Path) -> int:
    """Return the size of a regular file in bytes, links followed; -1 for anything else."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of this file (flock(2)); not if there is no file."""
    import fcntl  # not on Windows, where no agent runs either

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def opened(path: Path) -> BinaryIO:
    """Open a regular file to read it. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no file", str(path))
    return open(descriptor, "rb")


def read(path: Path, start: int, most: int) -> bytes:
    """Read at most `most` bytes from `start` (negative: from the end). Raises `OSError`."""
    with opened(path) as file:
        file.seek(start if start >= 0 else max(0, os.fstat(file.fileno()).st_size + start))
        return file.read(most)


def copied(source: Any, to: Optional[BinaryIO] = None, most: int = 1 << 62) -> tuple[int, str]:
    """Copy what a file has, at most `most` bytes; return how many there were, and their SHA-256."""
    digest, size = hashlib.sha256(), 0
    while size < most and (block := source.read(min(BLOCK, most - size))):
        digest.update(block)
        size += len(block)
        if to is not None:
            to.write(block)
    return size, digest.hexdigest()
