"""Shows boards on the terminal: of the run of this process (`seerd run`), and of a run from its
journal at any moment (`seerd watch`).

Showing never changes a run, and a screen that cannot be written to never ends one.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group

from seerd.clock import RunClock
from seerd.core.state import State
from seerd.errors import SeerdError
from seerd.runs.reading import begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling import logs
from seerd.telling.explanation.as_json import trial_json
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.harmless import Harmless
from seerd.telling.live.board import Board, Recent, board_of
from seerd.telling.live.frame import TrialLife, frame
from seerd.telling.live.look import Act, LiveLook, press
from seerd.telling.live.terminal import WAIT_S, Terminal
from seerd.telling.plan_json import Json

if TYPE_CHECKING:
    from seerd.shell.daemon import Watcher


EVERY_S = 1.0
LOG_LINES = 12
SHARE = 20  # boards are taken and drawn at most for one in so many parts of the time


class Viewer:
    """Shows boards on the whole terminal while its context lasts."""

    def __init__(self, look: LiveLook, life: Callable[[str], TrialLife]) -> None:
        self.look = look
        self.board: Board | None = None  # what was drawn last, None before that
        self.terminal = Terminal()  # where it is drawn
        self._life = life
        self._height = 1
        self._console = Console()
        self._size = (0, 0)
        self._drawn_at = -EVERY_S
        self._every_s = EVERY_S
        self._note = ""

    def __enter__(self) -> Self:
        self.terminal.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminal.__exit__()

    @property
    def due(self) -> bool:
        """Whether it is time for another board."""
        return time.monotonic() - self._drawn_at >= self._every_s

    def acts(self) -> list[Act]:
        """Change the look by the keys pressed, and draw it; return what else they ask for."""
        acts: list[Act] = []
        keys = self.terminal.pressed()
        if self.board is None:
            return ["leave"] if "q" in keys and not self.look.owner else []
        for key in keys:
            self.look, act = press(self.look, key, self.board, self._height)
            acts += [act] if act else []
        if keys:
            self._draw(self.board, self._note)
        return acts

    def show(self, take: Callable[[], Board], note: str = "") -> None:
        """Take a board and draw it; `note` replaces the line of keys."""
        began = time.thread_time()  # what others take meanwhile is no reason to draw less
        self.board = take()
        self._draw(self.board, note)
        took_s = time.thread_time() - began
        self._drawn_at, self._every_s = time.monotonic(), max(EVERY_S, SHARE * took_s)

    def _draw(self, board: Board, note: str) -> None:
        self._note = note
        size = self.terminal.size()
        if size != self._size:
            self._size = size
            self._console.size = size
            self.terminal.clear()
        screen = frame(board, self.look, size, self._life, note)
        self._height = screen.height
        self.look = replace(self.look, down=screen.down)
        with self._console.capture() as captured:
            self._console.print(Harmless(Group(*screen.lines)), no_wrap=True, crop=True, end="")
        self.terminal.draw(captured.get().split("\n")[: size[1]])


def log_tail(folder: RunFolder, trial: str) -> tuple[str, ...]:
    """Return the last lines of the log of a trial's newest attempt that was written to last."""
    with contextlib.suppress(SeerdError, OSError):
        paths = logs.newest_attempts(logs.log_files(folder, trial), folder)
        if paths:
            newest = max(paths, key=lambda path: path.stat().st_mtime)
            return tuple("".join(logs.tail(newest, LOG_LINES)).splitlines())
    return ()


@contextlib.contextmanager
def live_watcher(folder: RunFolder) -> Iterator[Watcher]:
    """Show the live view of this process's run while the context lasts; yield its watcher."""

    def life(trial: str) -> TrialLife:
        return TrialLife(log=log_tail(folder, trial))

    with Viewer(LiveLook(owner=True), life) as viewer:
        yield RunView(viewer).watch


class RunView:
    """Shows the run of this process."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._recent = Recent()
        self._listening = False

    def watch(self, state: State, now_s: float, entries: list[Entry]) -> None:
        """Take what was just committed, and draw when it is time."""
        self._recent.read(entries, state)
        terminal = self._viewer.terminal
        if not self._listening and terminal.input is not None:
            self._listening = True
            import asyncio

            with contextlib.suppress(RuntimeError, OSError):  # else keys are read once a second
                loop, number = asyncio.get_running_loop(), terminal.input

                def pressed() -> None:
                    self._keys()
                    if terminal.input is None:
                        loop.remove_reader(number)
                    elif terminal.pending:
                        loop.call_later(WAIT_S, self._keys)

                loop.add_reader(number, pressed)
        self._keys()
        paused = self._viewer.look.paused and self._viewer.board is not None
        if self._viewer.due and not paused:
            self._viewer.show(lambda: board_of(state, now_s, self._recent))

    def _keys(self) -> None:
        if "stop" in self._viewer.acts():
            os.kill(os.getpid(), signal.SIGINT)


POLL_S = 0.5
STEPS = 60  # a run is gone through in about so many steps
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
        at_s = viewer.look.at_s
        at_s = None if at_s is None or at_s >= self._end_s() else at_s
        viewer.look = replace(viewer.look, at_s=at_s)
        still = viewer.look.paused and at_s is None and self.arrived
        arrived = still or self._player.advance(at_s)
        is_new = arrived and not (self.arrived and at_s == self._at_s)
        self._at_s, self.arrived = at_s, arrived
        if is_new or (viewer.due and not still):
            until_s = self._end_s() if at_s is None else at_s
            share = self._player.state.now / until_s if until_s else 1.0
            note = f"the journal is being read: {min(1.0, share):.0%}"

            def board() -> Board:
                state = self._player.state
                shown = board_of(state, until_s if arrived else state.now, self._player.recent)
                if at_s is None and arrived and not self._alive and not state.finished:
                    gone = f"no process runs it: seerd resume {state.facts.run}"
                    return replace(shown, doing=gone, running=False)
                return shown

            viewer.show(board, "" if arrived else note)
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
        one = self.state.trials.get(trial)
        return None if one is None else trial_json(one, self.timeline, self.state)

    def _begin(self) -> None:
        self.state, self._entries = begin(self._journal)
        self.recent, self.timeline = Recent(), Timeline()
