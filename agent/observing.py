"""The process that observes, from outside, a script that does not import seerd
(`seerd/training/observer`).

The one rule: it lives from the script's start until it has seen the script's end. If it ends
before, nobody would report for the script or stop it, so the attempt ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Awaitable, Callable, Optional, Set

END_FILE = "ended"
"""The file that says how the script has ended."""
LAST_LOOK_S = 60.0
"""Seconds that it has, after the script's end, to copy the last checkpoint."""


class Observing:
    """The observer of an attempt, if it has one, in the attempt's folder. `lost` is called when it
    ends before it has seen the script's end.
    """

    def __init__(self, folder: Path, lost: Callable[[], None]) -> None:
        self._folder = folder
        self._lost = lost
        self._process: Optional[asyncio.subprocess.Process] = None
        self._watching: Optional[asyncio.Task[None]] = None

    @property
    def pids(self) -> Set[int]:
        """Its process id, if there is one."""
        return set() if self._process is None else {self._process.pid}

    async def begin(self, spawn: Callable[[], Awaitable[asyncio.subprocess.Process]]) -> None:
        """Start it. Raises `OSError`."""
        (self._folder / "out.jsonl").touch()  # it may come later than the script's end
        self._process = await spawn()
        self._watching = asyncio.ensure_future(self._watch(self._process))

    async def see_end(self, code: Optional[int]) -> None:
        """Have it see the script's end: its last words, and its last checkpoint."""
        if self._process is None or self._watching is None:
            return
        self._watching.cancel()
        with contextlib.suppress(OSError):  # a trial that has removed its own folder
            part = self._folder / f".{END_FILE}"
            part.write_text(str(code))
            os.replace(part, self._folder / END_FILE)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), LAST_LOOK_S)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self._lost()
