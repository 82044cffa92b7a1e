"""Which packages can be imported before trials are forked, kept for later runs in the same
environment.

The one rule: it only saves time. A file that cannot be read counts as empty, and one that cannot be
written is not.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Iterable, Set


class ImportMemory:
    """What is known of packages."""

    def __init__(self, environment: str) -> None:
        """Read what is known in this environment (`warm/preload.py` names it)."""
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self._path = Path(cache, "seerd", "imports", f"{environment}.json")
        self.good: Set[str] = set()  # packages that can be imported beforehand
        self.odd: Set[str] = set()  # packages that cannot
        self._read()

    def note(self, good: Iterable[str] = (), odd: Iterable[str] = ()) -> None:
        """Add packages, and what other runs have added meanwhile."""
        self._read()
        self.odd.update(odd)
        self.good.update(good)
        self.good -= self.odd
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"good": sorted(self.good), "odd": sorted(self.odd)}))
            os.replace(part, self._path)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            kept = json.loads(self._path.read_text())
            good, odd = set(map(str, kept["good"])), set(map(str, kept["odd"]))
            self.good |= good
            self.odd |= odd
