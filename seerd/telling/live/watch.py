"""The live view of a run from its journal, `seerd watch` in a terminal, at any moment."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from seerd.clock import RunClock
from seerd.core.state import State
from seerd.planner.trial_ids import same_trial
from seerd.runs.reading import begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.explanation.as_json import trial_json
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.live.board import Board, board_of
from seerd.telling.live.life import log_tail
from seerd.telling.live.look import Act, LiveLook
from seerd.telling.live.recent import Recent
from seerd.telling.live.trial_page import TrialLife
from seerd.telling.live.viewer import Viewer
from seerd.telling.plan_json import Json

POLL_S = 0.5
STEPS = 60  # A run is gone through in about so many steps
NICE_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)


def watch_live(folder: RunFolder, at_s: float | None) -> None:
    """Show a run from its journal until the user leaves the view. Raises `JournalError`.

    Without keys, until the run is over or no process runs it. `at_s`: the moment to begin with, in
    seconds since the run began; None: the present.
    """
    with Journal.open(folder.journal, read_only=True) as journal:
        shown = JournalView(folder, journal)
        with Viewer(LiveLook(journeys=True, at_s=at_s), shown.life) as viewer:
            while shown.turn(viewer):
                pass


class JournalView:
    """Shows a run that is read from its journal."""

    def __init__(self, folder: RunFolder, journal: Journal) -> None:
        self._folder, self._journal = folder, journal
        self._clock = RunClock(journal.origin)
        self._player = Player(journal)
        self._at_s: float | None = None
        self.arrived = False  # True: what is shown is the moment that the user wants to see
        self._alive = False

    def turn(self, viewer: Viewer) -> bool:
        """Read on, draw and read keys once; return False when the view is left."""
        self._alive = self._folder.owner() is not None
        at_s = known(viewer.look.at_s, self._end_s())
        viewer.look = replace(viewer.look, at_s=at_s)
        still = viewer.look.paused and at_s is None and self.arrived
        arrived = still or self._player.advance(at_s)
        is_new = arrived and not (self.arrived and at_s == self._at_s)
        self._at_s, self.arrived = at_s, arrived
        if is_new or (viewer.due and not still):
            viewer.show(lambda: self._board(at_s), "" if arrived else self._reading())
        acts = viewer.acts()
        for act in acts:
            viewer.look = replace(viewer.look, at_s=moved(viewer.look.at_s, act, self._end_s()))
        done = arrived and at_s is None and (self._player.state.finished or not self._alive)
        if "leave" in acts or (done and viewer.terminal.input is None):
            return False
        if arrived and not acts:
            viewer.terminal.wait(POLL_S)
        return True

    def life(self, trial: str) -> TrialLife:
        """Return what is known of a trial; its log, which has no times, only in the present."""
        log = log_tail(self._folder, trial) if self._at_s is None else None
        return TrialLife(self._player.life(trial), log)

    def _end_s(self) -> float:
        over = self._player.state.finished or not self._alive
        return self._journal.last_s if over else self._clock.now()

    def _board(self, at_s: float | None) -> Board:
        state = self._player.state
        now_s = self._end_s() if at_s is None else at_s
        board = board_of(state, now_s if self.arrived else state.now, self._player.recent)
        if at_s is None and self.arrived and not self._alive and not state.finished:
            gone = f"no process runs it: seerd resume {state.facts.run}"
            return replace(board, doing=gone, running=False)
        return board

    def _reading(self) -> str:
        until = self._end_s() if self._at_s is None else self._at_s
        share = self._player.state.now / until if until else 1.0
        return f"the journal is being read: {min(1.0, share):.0%}"


def known(at_s: float | None, end_s: float) -> float | None:
    """Return the moment that is shown; None: the present, which is at `end_s`."""
    return None if at_s is None or at_s >= end_s else at_s


def moved(at_s: float | None, act: Act, end_s: float) -> float | None:
    """Return the moment that is shown after a key; None: the present, which is at `end_s`."""
    step = next((s for s in NICE_S if s >= end_s / STEPS), NICE_S[-1])
    if act == "back":
        now_s = end_s if at_s is None else at_s
        before = math.ceil(now_s / step - 1e-6) - 1  # of two steps the earlier, on round figures
        return max(0.0, before * step)
    if act == "forth" and at_s is not None:
        after = (math.floor(at_s / step + 1e-6) + 1) * step
        return None if after >= end_s else float(after)
    return None if act == "live" else at_s


PIECE_S = 0.05  # for how long it reads at a time


class Player:
    """A run as it stood at some moment."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.state: State  # the run
        self.recent: Recent  # what the live view keeps of it
        self.timeline: Timeline  # what has happened
        self._entries: Iterator[Entry] | None = None
        self._begin()

    def advance(self, at_s: float | None, for_s: float = PIECE_S) -> bool:
        """Read towards a moment (None: the end of the journal); return whether it is reached.

        Raises `JournalError`.
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
            self.recent.read([entry], self.state)
            if time.monotonic() > until:
                self._entries = entries
                return False
        return True

    def life(self, trial: str) -> Json | None:
        """Return what `replay --trial --json` prints at this moment; None: no such trial yet."""
        for one in self.state.trials.values():
            if same_trial(one.id, trial):
                return trial_json(one, self.timeline, self.state)
        return None

    def _begin(self) -> None:
        self.state, self._entries = begin(self._journal)
        self.recent, self.timeline = Recent(), Timeline()
