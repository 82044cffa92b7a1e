"""Values that are kept out of what an attempt leaves: its logs and core dumps."""

from __future__ import annotations

import contextlib
import mmap
import resource
from pathlib import Path
from typing import Iterable

LEAST = 6  # a shorter value may be any word of a log, bytes


def no_core_dumps() -> None:
    """Have this process and those that it starts leave no memory behind when they crash: with a
    limit of one byte Linux also pipes none to a program (core(5)).
    """
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def blot_out(folder: Path, values: Iterable[str]) -> None:
    """Overwrite these values with as many `*` in all files of a folder in which nobody writes any
    more. Raises `OSError`.
    """
    secrets = sorted(filter(lambda one: len(one) >= LEAST, map(str.encode, values)), key=len)
    for path in folder.rglob("*") if secrets else ():
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            for secret in reversed(secrets):  # one may be part of another
                at = content.find(secret)
                while at >= 0:
                    content[at : at + len(secret)] = b"*" * len(secret)
                    at = content.find(secret, at + len(secret))
