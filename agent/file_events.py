"""Tells when a file has been written (Linux, inotify(7)): at once, but the more are written
the more of them together. Elsewhere, and where the system has no more watches to give, nothing is
told, and whoever wants to know looks by himself.

The one rule: what is told is only a reason to look. Events may be lost, and come for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple

IN_MODIFY = 0x2
EVENT = struct.Struct("iIII")
"""The fixed part of an event: watch, mask, cookie, length of the name that follows."""
AT_ONCE = 1 << 16
GATHER_S, MOST_S = 0.02, 0.1
"""Seconds until the next word, for each file that the last one was about, and at most: each word
costs a message to the daemon, and a commit there.
"""


class FileEvents:
    """The watched files of this process. To be made and used in the loop's thread."""

    def __init__(self) -> None:
        self._libc = _inotify() if sys.platform == "linux" else None
        self._queue = -1
        self._watches: Dict[int, Tuple[bytes, Callable[[], None]]] = {}
        self._next_at = 0.0

    def watch(self, path: Path, call: Callable[[], None]) -> int:
        """Call `call` whenever this file is written, which need not be there yet; its folder must.

        Returns the number of the watch; negative if there can be none.
        """
        if self._libc is None or not self._is_open(self._libc):
            return -1
        watch: int = self._libc.inotify_add_watch(self._queue, os.fsencode(path.parent), IN_MODIFY)
        if watch >= 0:
            self._watches[watch] = os.fsencode(path.name), call
        return watch

    def forget(self, watch: int) -> None:
        """End a watch."""
        if self._watches.pop(watch, None) is not None and self._libc is not None:
            self._libc.inotify_rm_watch(self._queue, watch)

    def _is_open(self, libc: Any) -> bool:
        if self._queue < 0:
            self._queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._queue >= 0:
                asyncio.get_running_loop().add_reader(self._queue, self._hear)
        return self._queue >= 0

    def _hear(self) -> None:
        """Have told what has been written, and is until then. Nothing is heard meanwhile: whoever
        writes all the time must not wake us all the time.
        """
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._queue)
        loop.call_later(max(0.0, self._next_at - time.monotonic()), self._tell)

    def _tell(self) -> None:
        written = self._written()
        self._next_at = time.monotonic() + min(MOST_S, GATHER_S * len(written))
        for call in written:
            call()
        asyncio.get_running_loop().add_reader(self._queue, self._hear)

    def _written(self) -> List[Callable[[], None]]:
        """Return whom to call, for each watched file that has been written."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self._queue, AT_ONCE)
        found: Set[int] = set()
        at = 0
        while at < len(data):
            watch, _, _, length = EVENT.unpack_from(data, at)
            at += EVENT.size + length
            name = data[at - length : at].rstrip(b"\0")
            if watch in self._watches and self._watches[watch][0] == name:
                found.add(watch)
        return [self._watches[watch][1] for watch in found]


def _inotify() -> Any:
    """Return the C library of a Linux system, which has the calls of inotify(7)."""
    import ctypes

    # Calls that return at once are not worth giving up the interpreter for.
    return ctypes.PyDLL(None)
