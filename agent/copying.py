"""Copies of files: where the filesystem can, a copy shares its bytes with the original until one of
them is written to (a reflink).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Callable

PIECE = 16 << 20  # bytes that are copied at a time: between two pieces a copy can be given up


def copy_file(source: Path, to: Path, copied: Callable[[int], bool] = lambda size: False) -> None:
    """Copy the bytes of a file.

    `copied` is called with the size of each piece; if it returns True, the copy is flushed. Raises
    `OSError` (`shutil.SameFileError` if both paths lead to one file), and what `copied` raises.
    """
    if os.path.exists(to) and os.path.samefile(source, to):
        raise shutil.SameFileError(errno.EINVAL, "source and target are one file", str(to))
    with open(source, "rb", buffering=0) as original, open(to, "wb", buffering=0) as copy:
        size, done = os.fstat(original.fileno()).st_size, 0
        while moved := _copy_piece(original.fileno(), copy.fileno(), done, min(PIECE, size - done)):
            done += moved
            if copied(moved):
                os.fsync(copy.fileno())


def _copy_piece(original: int, copy: int, at: int, size: int) -> int:
    if hasattr(os, "copy_file_range"):
        # Some filesystems refuse, or copy nothing; whatever else is wrong is raised below.
        with contextlib.suppress(OSError):
            moved = os.copy_file_range(original, copy, size, at, at)
            if moved:
                return moved
    return os.pwrite(copy, os.pread(original, size, at), at)
