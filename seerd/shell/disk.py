"""What runs take of the disk, and removing it. Only what is inside a folder that was asked for is
removed; links are never followed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def size_of(paths: Iterable[Path]) -> int:
    """Add up the bytes of all files in these folders; one with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in paths:
        for folder, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    about = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - millions of them
                    seen[about.st_dev, about.st_ino] = about.st_size
    return sum(seen.values())


def remove(paths: Iterable[Path]) -> None:
    """Remove these folders and all that is in them. Raises `OSError`."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
