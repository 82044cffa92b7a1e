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


def masked(content: bytes, secrets: Iterable[str]) -> bytes:
    """Return bytes with as many `*` in the place of each secret."""
    for secret in _as_bytes(secrets):
        content = content.replace(secret, b"*" * len(secret))
    return content


def mask_files(folder: Path, secrets: Iterable[str]) -> None:
    """Overwrite secrets with `*` in all files of a folder in which nobody writes any more. Raises
    `OSError`.
    """
    values = _as_bytes(secrets)
    for path in folder.rglob("*") if values else ():
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            for value in values:
                at = content.find(value)
                while at >= 0:
                    content[at : at + len(value)] = b"*" * len(value)
                    at = content.find(value, at + len(value))


def _as_bytes(secrets: Iterable[str]) -> list[bytes]:
    """Return those that are long enough, the longest first, since one may be part of another."""
    values = [value for value in map(str.encode, secrets) if len(value) >= LEAST]
    return sorted(values, key=len, reverse=True)
