"""Reads a run from its journal, up to any moment: on from where it is, or from the beginning.

The one rule: it reads in pieces, so that keys are heard while a long journal is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from seerd.core.state import State
from seerd.planner.trial_ids import same_trial
from seerd.runs.reading import begin, follow
from seerd.shell.journal import Entry, Journal
from seerd.telling.explanation.as_json import trial_json
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.live.heard import Heard
from seerd.telling.plan_json import Json

PIECE_S = 0.05
"""For how long it reads at a time."""


class Player:
    """A run as it stood at some moment."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.state: State  # the run
        self.heard: Heard  # what the live view keeps of it
        self.timeline: Timeline  # what has happened
        self._entries: Iterator[Entry] | None = None
        self._begin()

    def advance(self, at_s: float | None, for_s: float = PIECE_S) -> bool:
        """Read towards a moment, in seconds since the run began; None: to the end of the journal.

        Return whether it is there. Raises `JournalError`.
        """
        if at_s is not None and at_s < self.state.now:
            self._begin()
        until = time.monotonic() + for_s
        entries = self._entries or self._journal.entries(self.state.clock.seq)
        self._entries = None
        for entry in entries:
            if at_s is not None and entry.event.at > at_s:
                return True
            follow(self.state, [entry], self.timeline.read)
            self.heard.hear([entry], self.state)
            if time.monotonic() > until:
                self._entries = entries
                return False
        return True

    def life(self, trial: str) -> Json | None:
        """Return what `seerd replay --trial --json` says at this moment; None: there is no such
        trial yet.
        """
        found = next((one for one in self.state.trials.values() if same_trial(one.id, trial)), None)
        return None if found is None else trial_json(found, self.timeline, self.state)

    def _begin(self) -> None:
        self.state, self._entries = begin(self._journal)
        self.heard, self.timeline = Heard(), Timeline()
