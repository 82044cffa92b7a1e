"""Downloads a file from a presigned URL, a large one in several ranges at once.

The one rule: the bytes go to a temporary name beside the file. The caller gives them their own name
once they are what they should be.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Tuple

from seerd.agent.threads import parallel
from seerd.agent.web import Wires

RANGE = 8 << 20
THREADS = 4


def download(wires: Wires, url: str, size: int, part: Path) -> None:
    """Download `size` bytes into the file `part`, which is begun anew, and flush it.

    Raises `WebError` if they cannot be had, `OSError` if they cannot be written.
    """
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        parallel(lambda piece: _fetch(wires, url, piece, descriptor), ranges(size), THREADS)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ranges(size: int) -> List[Tuple[int, int]]:
    """Split `size` bytes into ranges; return where each begins, and how many bytes it has."""
    return [(start, min(RANGE, size - start)) for start in range(0, size, RANGE)]


def _fetch(wires: Wires, url: str, piece: Tuple[int, int], descriptor: int) -> None:
    start, size = piece

    def once() -> None:
        at = start

        def write(block: bytes) -> None:
            nonlocal at
            rest = memoryview(block)
            while rest:
                written = os.pwrite(descriptor, rest, at)
                rest, at = rest[written:], at + written

        wires.get(url, start, size, write)

    wires.insist(once)
