"""Lines that a script prints or rewrites, and the reports in them.

The one rule: a report is made when the spec's metric is printed, and is complete when the metrics
that the spec constrains have come too. Other metrics count with the value that was printed last.
"""

import math
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set

from seerd.agent.patterns import NumberPattern
from seerd.training.attempt import Attempt, aggregate

MOST_AT_ONCE = 1 << 20
LONGEST_LINE = 1 << 14  # the end of a longer line is not read: a pattern may take long on it
# seconds that a report waits for constrained metrics; then their values before count
COMPLETE_S = 5.0
BRIEFLY_S = 0.2  # the same once a report was made without them when the next one came (`is_sparse`)
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BREAK = re.compile(rb"([\r\x08]*\n|[\r\x08]+(?=[^\r\x08\n]))")
# a line below the present one that is rewritten, as tqdm does for one of several bars: line feeds
# only move the cursor, which is moved back afterwards
OTHER_BAR = re.compile(rb"\n+\r([^\r\n]*?)(?:\x1b\[A)+")
OURS = "seerd: "  # how this process's own lines begin
STOOD_S = 1.0
MOVING_S = 5.0
NOTHING: Any = object()  # no number is shown


class Line(NamedTuple):
    """A line that a script prints, or the present text of a line that it rewrites."""

    text: str  # what it shows, without colours
    ends: bool = True  # whether a line feed follows; False: a carriage return, or nothing yet
    path: Path = Path()  # the log


class Lines:
    """Lines of the files that `find` finds, as they come; each file is read once."""

    def __init__(self, find: Callable[[], List[Path]]) -> None:
        self._find = find
        self._offsets: Dict[Path, int] = {}
        self._rests: Dict[Path, bytes] = {}
        self._rewritten: Set[Path] = set()

    def new(self) -> Iterator[Line]:
        """Yield the new whole lines, and the text of a line being rewritten that is at rest."""
        for path in self._find():
            new = self._read(path)
            data = OTHER_BAR.sub(rb"\r\1\r", self._rests.get(path, b"") + new)
            *parts, rest = BREAK.split(data)
            for at in range(0, len(parts), 2):
                ends = parts[at + 1].endswith(b"\n")
                (self._rewritten.discard if ends else self._rewritten.add)(path)
                yield Line(_text(parts[at]), ends, path)
            self._rests[path] = rest
            if rest and not new and (path in self._rewritten or rest.endswith((b"\r", b"\x08"))):
                yield Line(_text(rest), False, path)

    def rest(self, *, was_cut: bool = False) -> Iterator[Line]:
        """Yield all that is left when nobody writes any more, also lines without an end. `was_cut`:
        the script did not end by itself, so a line that it rewrote has no end.
        """
        while any(self._has_more(path) for path in self._find()):
            yield from self.new()
        for path, rest in self._rests.items():
            yield Line(_text(rest), not (was_cut and path in self._rewritten), path)
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
    """Reports in what is printed."""

    def __init__(self, patterns: Dict[str, str], attempt: Attempt) -> None:
        self._patterns = {name: NumberPattern(pattern) for name, pattern in patterns.items()}
        self._metric = attempt.metric
        self._attempt = attempt
        self._constrained = set(attempt.constrained()) & set(patterns) - {attempt.metric}
        self._seen: Dict[str, Optional[float]] = {}
        self._fresh: Set[str] = set()
        self._rewritten: Dict[Path, RewrittenLine] = {}
        self._waits_since: Optional[float] = None
        self._next: Optional[float] = None
        self._next_text = ""
        self.is_sparse = False  # whether constrained metrics do not come with each report
        self.epoch = 0  # how many there were, over all attempts
        # those of the last one, with None for numbers that are not finite
        self.metrics: Dict[str, Optional[float]] = {}
        # the last values of the metric that counts (`Attempt.recent`)
        self.recent: List[Optional[float]] = []
        self.text = ""  # the line that the last one came from
        self.partial = ""  # what was printed where a number was read that looks like a part of it

    def go_on(
        self, epoch: int, metrics: Dict[str, Optional[float]], recent: List[Optional[float]]
    ) -> None:
        """Go on after a checkpoint. Its other metrics count until they come again: a constraint
        that it violates is not forgotten.
        """
        self.epoch, self.metrics, self.recent = epoch, metrics, recent
        self._seen = {name: value for name, value in metrics.items() if name in self._patterns}

    def take(self, line: Line, now: float) -> Iterator[None]:
        """Read a line; yield after each report that it completes. `now`: monotonic seconds."""
        if line.text.startswith(OURS):
            return
        numbers: Dict[str, Any] = {}
        for name, pattern in self._patterns.items():
            number, longer = pattern.read(line.text) or (NOTHING, "")
            self.partial = self.partial or longer
            if number is not NOTHING:
                numbers[name] = number if math.isfinite(number) else None
        rewritten = self._rewritten.setdefault(line.path, RewrittenLine())
        number = numbers.pop(self._metric, NOTHING)
        counts = (
            rewritten.end(number, now) if line.ends else rewritten.refresh(line.text, number, now)
        )
        if counts:
            self.is_sparse |= self.waits
            yield from self.complete()
        self._seen.update(numbers)
        self._fresh.update(numbers)
        if counts:
            self._next, self._next_text, self._waits_since = number, line.text, now
        if self._constrained <= self._fresh:
            yield from self.complete()

    def late(self, now: float) -> Iterator[None]:
        """Complete a report that has waited for long enough; yield after it."""
        wait_s = BRIEFLY_S if self.is_sparse else COMPLETE_S
        if self._waits_since is not None and now - self._waits_since >= wait_s:
            yield from self.complete()

    def complete(self) -> Iterator[None]:
        """Complete the report that waits, if there is one; yield after it."""
        if self._waits_since is None:
            return
        self.epoch += 1
        self.metrics = {**self._seen, self._metric: self._next}
        self.recent = self._attempt.recent(self.recent, self.metrics)
        self.text, self._waits_since = self._next_text, None
        self._fresh.clear()
        yield

    @property
    def waits(self) -> bool:
        """Whether a report is incomplete."""
        return self._waits_since is not None

    @property
    def unprinted(self) -> List[str]:
        """Constrained metrics that were not printed yet."""
        return sorted(self._constrained.difference(self._seen))

    @property
    def saved_metrics(self) -> Dict[str, Optional[float]]:
        """The last report's metrics in a checkpoint: the one that counts may be a mean."""
        return {**self.metrics, self._metric: aggregate(self.recent)} if self.recent else {}


def _text(line: bytes) -> str:
    shown = line[:LONGEST_LINE].rstrip(b"\r\x08")
    return COLOUR.sub("", shown.decode(errors="replace"))


class RewrittenLine:
    """The present line of one log, which a script may rewrite, such as a progress bar: when the
    number in it is a report.

    The one rule: a number counts when it is final or has changed.

    - It counts when its line ends, if it has changed in this line, or was not in it from the start.
    - It counts when it changes after `STOOD_S`, or once it has stood so long itself.
    - A number that changes all the time counts when its line ends; until a first line has ended,
      every `MOVING_S`.

    The number that a line begins with was there before any work: it does not count.
    """

    def __init__(self) -> None:
        self._shown: Any = NOTHING  # the number that it shows or has shown last
        self._since = math.inf  # since when
        self._counted: Any = NOTHING  # the number that has counted last
        self._counted_at = math.inf  # when
        # whether the number has changed and not counted yet; whether it has changed in this line,
        # or was not in it from the start; whether a number of this line has counted
        self._due = self._changed = self._counts = False
        # whether the line was rewritten; whether it shows nothing just now; whether a line has
        # ended in which the number had changed
        self._is_rewritten = self._is_cleared = self._has_ended = False

    def refresh(self, text: str, number: Any, now: float) -> bool:
        """Note that the line shows this until it is rewritten; return whether the number counts."""
        self._is_cleared = not text.strip()
        if self._is_cleared:
            self._since = math.inf
            return False
        self._is_rewritten = True
        if number is NOTHING:
            self._changed = True
            return False
        stood = now - self._since >= STOOD_S
        if number != self._shown:
            begins = self._shown is NOTHING
            self._shown, self._since = number, now
            self._counted_at = now if begins else self._counted_at
            if begins and not self._changed:
                return False
            self._due = self._changed = True
        elif self._since == math.inf:
            self._since = now
        moves = not self._has_ended and now - self._counted_at >= MOVING_S
        return self._due and (stood or moves) and self._count(number, now)

    def end(self, number: Any, now: float) -> bool:
        """Note that the line shows this number, and ends; return whether the number counts."""
        if not self._is_rewritten or self._is_cleared:
            self._is_cleared = False
            return number is not NOTHING and self._count(number, now)
        changed = number is not NOTHING and (self._changed or number != self._shown)
        counts = changed and not (self._counts and number == self._counted)
        self._shown = self._shown if number is NOTHING else number
        self._has_ended |= changed
        result = counts and self._count(number, now)
        self._since = math.inf
        self._due = self._changed = self._counts = self._is_rewritten = False
        return result

    def _count(self, number: Any, now: float) -> bool:
        self._counted, self._counted_at = number, now
        self._due, self._counts = False, True
        return True
