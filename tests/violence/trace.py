"""What trials leave behind for us: the trace that they write, and the checkpoints that appear in
the store.

The one rule: nothing is read that seerd has written about itself; a checkpoint counts from the
moment at which its manifest is seen in the store.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

LOOK_S = 0.06


@dataclass(frozen=True, slots=True)
class Line:
    """`what` a process of a trial did: begin (with `epoch` reports restored), epoch (trained one
    more), saved (wrote a checkpoint).
    """

    at: float
    trial: str
    attempt: int
    pid: int
    what: str
    epoch: int
    gpus: int


def read(path: Path) -> list[Line]:
    """All lines so far, in the order in which they were written."""
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Saved:
    """A manifest that was seen in the store, and when first, seconds since 1970. `metric`: None if
    it is not finite.
    """

    trial: str
    name: str
    epoch: int
    metric: float | None
    at: float


StoredCheckpoints = Callable[[], Iterator[tuple[str, str, Callable[[], bytes]]]]
"""What is in a store now: trial, name of the checkpoint, and a way to read its manifest. May raise
OSError.
"""


class Watch:
    """Looks into a store again and again; as a context manager."""

    def __init__(self, stored: StoredCheckpoints, every_s: float = LOOK_S) -> None:
        self._stored = stored
        self._every_s = every_s
        self._seen: dict[tuple[str, str], Saved] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def saved(self) -> list[Saved]:
        """Every checkpoint that was ever there, in the order in which they were seen."""
        return list(self._seen.values())

    def look(self) -> None:
        """Once."""
        for trial, name, content in self._stored():
            if (trial, name) in self._seen:
                continue
            with contextlib.suppress(OSError):  # it has been removed meanwhile
                told = json.loads(content())
                (metric,) = told["metrics"].values()
                self._seen[trial, name] = Saved(trial, name, told["epoch"], metric, time.time())

    def _keep_looking(self) -> None:
        while not self._over.wait(self._every_s):
            with contextlib.suppress(
                OSError
            ):  # the store is being hurt, or what was listed is gone
                self.look()


def directory(folder: Path) -> StoredCheckpoints:
    """A directory of runs: RUN/TRIAL/NAME.json."""

    def now() -> Iterator[tuple[str, str, Callable[[], bytes]]]:
        for path in folder.glob("*/*/[!.]*.json"):
            yield path.parent.name, path.stem, path.read_bytes

    return now
