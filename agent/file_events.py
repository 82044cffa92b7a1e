"""Tells at once when a file has been written (Linux, inotify(7)). Elsewhere, and where the system
has no more watches to give, nothing is told, and whoever wants to know looks by himself.

The one rule: what is told is only a reason to look. Events may be lost, and come for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

IN_MODIFY = 0x2
EVENT = struct.Struct("iIII")
"""The fixed part of an event: watch, mask, cookie, length of the name that follows."""
AT_ONCE = 1 << 16


class FileEvents:
    """The watched files of this process. To be made and used in the loop's thread."""

    def __init__(self) -> None:
        self._libc = _inotify() if sys.platform == "linux" else None
        self._queue = -1
        self._watches: Dict[int, Tuple[bytes, Callable[[], None]]] = {}

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
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self._queue, AT_ONCE)
        written = set()
        at = 0
        while at < len(data):
            watch, _, _, length = EVENT.unpack_from(data, at)
            at += EVENT.size + length
            written.add((watch, data[at - length : at].rstrip(b"\0")))
        for watch, name in written:
            wanted, call = self._watches.get(watch, (None, None))
            if call is not None and name == wanted:
                call()


def _inotify() -> Any:
    """Return the C library of a Linux system, which has the calls of inotify(7)."""
    import ctypes

    # Calls that return at once are not worth giving up the interpreter for.
    return ctypes.PyDLL(None)
