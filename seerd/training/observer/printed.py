"""Lines that a script prints, and the reports in them.

The one rule: a report is made when the spec's metric is printed. Other metrics count with the value
that was printed last.
"""

import math
import re
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional

from seerd.training.attempt import mean_of

MOST_AT_ONCE = 1 << 20
LONGEST_LINE = 1 << 14
"""The end of a longer line is not looked at: a pattern may take long on it."""
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
BREAK = re.compile(rb"[\r\n]")
OURS = "seerd: "
"""How lines begin that this process prints itself."""


class Lines:
    """Lines of the files that `find` finds, as they come; each file is read once."""

    def __init__(self, find: Callable[[], List[Path]]) -> None:
        self._find = find
        self._offsets: Dict[Path, int] = {}
        self._rests: Dict[Path, bytes] = {}

    def new(self) -> Iterator[str]:
        """Yield the whole lines that have come since the last time."""
        for path in self._find():
            data = self._rests.get(path, b"") + self._read(path)
            *lines, self._rests[path] = BREAK.split(data)
            yield from map(_text, lines)

    def rest(self) -> Iterator[str]:
        """Yield all that is left when nobody writes any more, also lines without an end."""
        while any(self._has_more(path) for path in self._find()):
            yield from self.new()
        yield from (_text(rest) for rest in self._rests.values())
        self._rests.clear()

    def _has_more(self, path: Path) -> bool:
        try:
            return path.stat().st_size > self._offsets.get(path, 0)
        except OSError:
            return False

    def _read(self, path: Path) -> bytes:
        try:
            with open(path, "rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read(MOST_AT_ONCE)
        except OSError:
            return b""
        self._offsets[path] = self._offsets.get(path, 0) + len(data)
        return data


class Reports:
    """Reports in what is printed.

    epoch    how many there were, over all attempts
    metrics  those of the last one, with None for numbers that are not finite
    recent   the last `smooth` values of the metric that counts
    """

    def __init__(self, patterns: Dict[str, str], metric: str, smooth: int) -> None:
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self._metric = metric
        self._smooth = smooth
        self._seen: Dict[str, Optional[float]] = {}
        self.epoch = 0
        self.metrics: Dict[str, Optional[float]] = {}
        self.recent: List[Optional[float]] = []

    def take(self, line: str) -> bool:
        """Look at a line; return whether it makes a report."""
        if line.startswith(OURS):
            return False
        found = {
            name: number
            for name, pattern in self._patterns.items()
            for number in _numbers(pattern, line)
        }
        self._seen.update(
            (name, number if math.isfinite(number) else None) for name, number in found.items()
        )
        if self._metric not in found:
            return False
        self.epoch += 1
        self.metrics = dict(self._seen)
        self.recent = [*self.recent, self._seen[self._metric]][-self._smooth :]
        return True

    @property
    def saved_metrics(self) -> Dict[str, Optional[float]]:
        """The metrics of the last report as a checkpoint has them: the one that counts is the mean
        of the last `smooth` reports.
        """
        return {**self.metrics, self._metric: mean_of(self.recent)} if self.recent else {}


def _numbers(pattern: "re.Pattern[str]", line: str) -> Iterator[float]:
    """Yield the number that the first group of the pattern has found, if it is one."""
    found = pattern.search(line)
    text = found[1] if found else None
    if text is not None:
        try:
            yield float(text)
        except ValueError:
            return


def _text(line: bytes) -> str:
    return COLOUR.sub("", line[:LONGEST_LINE].decode(errors="replace"))
