"""Collects logs from other machines into the run's folder. Nothing that a machine sends becomes an
unchecked path, or more than a bounded number of bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from seerd.agent.secrecy import masked
from seerd.backends.base import Printed, Printer

LOOK_S = 30.0
"""How often machines with trials are asked, seconds; also when an attempt has ended, and at the
end.
"""
LAST_S = 1.5  # longest wait for a machine that is to be given back, seconds: it costs meanwhile
MOST_FILES = 2000  # most files kept for one machine; the oldest are deleted
MOST_AT_ONCE = 20  # most answers in a row from a machine that has more to send
PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}"
PART_FILE = ".part"
UNUSUAL = re.compile(r"^\.|[^A-Za-z0-9._@:-]")
NAME = re.compile(rf"trials/t[0-9]{{4,9}}/[0-9]{{1,9}}/logs/(?:{PART}/){{0,5}}{PART}")


class Collector:
    """Collects logs into `folder`: a subfolder per machine, laid out as if trials had run here.
    `secrets`: values that are not kept.
    """

    def __init__(self, source: Printer, folder: Path, secrets: Iterable[str] = ()) -> None:
        self._source = source
        self._folder = folder
        self._secrets = list(secrets)
        self._after: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._next: dict[str, asyncio.Task[None]] = {}
        self._looks: set[asyncio.Task[None]] = set()

    def look(self, instance: str) -> asyncio.Task[None]:
        """Start a look at the instance's logs, unless one is about to start; return its task."""
        if instance not in self._next:
            task = self._next[instance] = asyncio.create_task(self._look(instance))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)
        return self._next[instance]

    async def last(self, instance: str, spare_s: float) -> None:
        """Look at the instance's logs once more, for at most `LAST_S` and `spare_s` seconds."""
        look = self.look(instance)
        if spare_s > 0:
            await asyncio.wait({look}, timeout=min(LAST_S, spare_s))

    async def keep_looking(self, instances: Callable[[], Iterable[str]]) -> None:
        """Look at the logs of all instances, every `LOOK_S` seconds."""
        while True:
            await asyncio.sleep(LOOK_S)
            for instance in list(instances()):
                self.look(instance)

    async def close(self) -> None:
        """Cancel all looks that are under way."""
        for task in self._looks:
            task.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    async def _look(self, instance: str) -> None:
        async with self._locks[instance]:
            del self._next[instance]
            # A machine that does not answer or answers nonsense, or a full disk here, must not end
            # the run: it is worth more than the logs.
            with contextlib.suppress(Exception):
                for _ in range(MOST_AT_ONCE):
                    printed = await self._source(instance, self._after.get(instance, 0.0))
                    if printed is None:
                        break
                    await asyncio.to_thread(self._keep, printed)
                    self._after[instance] = printed.until
                    if not printed.more:
                        break

    def _keep(self, printed: Printed) -> None:
        top = self._folder / UNUSUAL.sub("_", printed.place)
        for name, content in printed.logs.items():
            path = top / name
            if NAME.fullmatch(name):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                part = path.parent / PART_FILE
                part.write_bytes(masked(content, self._secrets))
                part.replace(path)
        kept = sorted(
            (path for path in top.rglob("*") if path.is_file()),
            key=lambda path: path.stat().st_mtime_ns,
        )
        for path in kept[:-MOST_FILES]:
            path.unlink()
