"""A line that a script rewrites, such as a progress bar: when the number in it is a report.

The one rule: a number counts when it is final or has changed.

- It counts when its line ends, if it has changed in this line, or was not in it from the start.
- It counts when it changes after `STOOD_S`, or once it has stood so long itself.
- A number that changes all the time counts when its line ends; until a first line has ended,
  every `MOVING_S`.

The number that a line begins with was there before any work: it does not count.
"""

import math
from typing import Any

STOOD_S = 1.0
MOVING_S = 5.0
NOTHING: Any = object()  # no number is shown


class RewrittenLine:
    """The present line of one log."""

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
