"""A run as it is told: read from its journal, and read on while it is written.

The one rule: nothing is decided; the run and its process are not disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass

from seerd.core.state import State
from seerd.runs.reading import begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Journal
from seerd.telling.explanation.timeline import Timeline


@dataclass(slots=True)
class ToldRun:
    """A run as far as it was read."""

    timeline: Timeline  # what has happened
    state: State  # how it stands
    # when it began, wall clock, seconds since 1970, moved forward by the time for which it was
    # interrupted
    began: float

    def read_on(self, folder: RunFolder) -> None:
        """Read what was written since. Raises `JournalError`."""
        with Journal.open(folder.journal, read_only=True) as journal:
            self.began = journal.origin
            entries = journal.entries(self.state.clock.seq)
            follow(self.state, entries, self.timeline.read)


def told(folder: RunFolder) -> ToldRun:
    """Read a run to the end of its journal. Raises `JournalError`."""
    with Journal.open(folder.journal, read_only=True) as journal:
        state, entries = begin(journal)
        timeline = Timeline()
        follow(state, entries, timeline.read)
        return ToldRun(timeline, state, journal.origin)
