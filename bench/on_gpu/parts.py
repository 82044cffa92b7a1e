"""The parts of `bench/gpu.py`, and what was done of them, which is kept in a file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bench.on_gpu import checks, measures
from bench.on_gpu.ground import Ground, PartError

ROOT = Path(__file__).parents[2]
CODE = ("agent", "bench", "planner", "seerd")
"""Folders of the sources that a measurement depends on."""
LONGEST_S = 480.0
SLOW = 3.0  # so many times as long may parts take on a fake device, beside other work
Facts = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part: its name is that of its functions in `measures.py` and `checks.py`."""

    name: str
    most_s: float  # seconds that it may take where there is a GPU; all parts: `LONGEST_S`

    def done(self, pretended: bool) -> Facts:
        """Measure the part and check it. What goes wrong is in `failed`."""
        began = time.monotonic()
        facts: Facts = {}
        most_s = SLOW * self.most_s if pretended else self.most_s
        with (
            tempfile.TemporaryDirectory(prefix="seerd-", ignore_cleanup_errors=True) as folder,
            _limit(most_s),
        ):
            try:
                ground = Ground(Path(folder), pretended, most_s)
                facts = getattr(measures, self.name)(ground)
                failed = list(getattr(checks, self.name)(facts))
            except Exception as error:  # noqa: BLE001 - it is what the part has come to
                failed = [f"{error!r:.2000}"]
        missed = [] if pretended or failed else checks.missed(self.name, facts)
        seconds = round(time.monotonic() - began, 1)
        return {"failed": failed, "missed": missed, "seconds": seconds, **facts}


PARTS = {
    part.name: part
    for part in (
        Part("start", 30),
        Part("command", 10),
        Part("nccl", 20),
        Part("profile", 27),
        Part("best", 24),
        Part("saves", 28),
        Part("memory", 34),
        Part("move", 36),
        Part("killed", 28),
        Part("hang", 43),
        Part("parts", 66),
        Part("appetite", 26),
        Part("share", 105),
    )
}


@contextlib.contextmanager
def _limit(most_s: float) -> Iterator[None]:
    """Raise `PartError` in the body of `with` after so many seconds (main thread)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise PartError(f"it took more than {most_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, most_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Kept:
    """A file of what was done: of parts that were measured on the same device, of the same code."""

    def __init__(self, path: Path, about: Facts) -> None:
        self._path, self._about = path, about
        self.parts: dict[str, Facts] = {}
        if path.exists():
            body = json.loads(path.read_text())
            if body["about"] == about:
                self.parts = body["parts"]

    def keep(self, name: str, facts: Facts) -> None:
        """Write down what a part has come to."""
        self.parts[name] = facts
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.body, indent=1))
        part.replace(self._path)

    @property
    def body(self) -> Facts:
        """All that is in the file."""
        return {"about": self._about, "parts": self.parts}

    def is_done(self, name: str) -> bool:
        """Return whether a part was measured and has not failed."""
        return name in self.parts and not self.parts[name].get("failed")


def digest() -> str:
    """Return a digest of the code that is measured."""
    whole = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def do(names: Iterable[str], kept: Kept, pretended: bool) -> bool:
    """Do these parts, and keep each; a line for each goes to stderr. Return whether none failed."""
    failed = False
    for name in names:
        facts = PARTS[name].done(pretended)
        kept.keep(name, facts)
        print(f"{name}: {outcome(facts)}", file=sys.stderr, flush=True)
        failed |= bool(facts.get("failed"))
    return not failed


def outcome(facts: Facts) -> str:
    """Return what came of a part, in words."""
    words = "; ".join(facts["failed"]) or "done"
    if facts["missed"]:
        words += f", but {'; '.join(facts['missed'])}"
    return f"{words} ({facts['seconds']:.0f} s)"
