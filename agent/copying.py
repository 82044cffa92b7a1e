"""Copies of files: on Linux holes stay holes, and where the filesystem can, a copy shares its bytes
with the original until one of them is written to (a reflink).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Callable, Iterator, Tuple

PIECE = 16 << 20  # bytes that are copied at a time: between two pieces a copy can be given up


def copy_file(source: Path, to: Path, copied: Callable[[int], bool] = lambda size: False) -> None:
    """Copy the bytes of a file.

    `copied` is called with the size of each piece; if it returns True, the copy is flushed. Raises
    `OSError` (`shutil.SameFileError` if both paths lead to one file), and what `copied` raises.
    """
    if os.path.exists(to) and os.path.samefile(source, to):
        raise shutil.SameFileError(errno.EINVAL, "source and target are one file", str(to))
    with open(source, "rb", buffering=0) as original, open(to, "wb", buffering=0) as copy:
        about = os.fstat(original.fileno())
        size = about.st_size
        # Elsewhere a hole may be data that is not on the disk yet (APFS).
        is_sparse = sys.platform == "linux" and about.st_blocks * 512 < size
        for at, end in _with_data(original.fileno(), size) if is_sparse else [(0, size)]:
            done = 0
            while at + done < end:
                moved = _copy_piece(original.fileno(), copy.fileno(), at + done, end - at - done)
                if not moved:  # it has become shorter meanwhile
                    return
                done += moved
                if copied(moved):
                    os.fsync(copy.fileno())
        os.truncate(copy.fileno(), size)


def _with_data(file: int, size: int) -> Iterator[Tuple[int, int]]:
    at = 0
    while at < size:
        try:
            begin = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is only a hole left
                return
            begin, end = at, size
        yield begin, end
        at = end


def _copy_piece(original: int, copy: int, at: int, size: int) -> int:
    size = min(size, PIECE)
    if hasattr(os, "copy_file_range"):
        # Some filesystems refuse, or copy nothing; whatever else is wrong is raised below.
        with contextlib.suppress(OSError):
            moved = os.copy_file_range(original, copy, size, at, at)
            if moved:
                return moved
    return os.pwrite(copy, os.pread(original, size, at), at)
