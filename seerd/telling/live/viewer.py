"""Shows boards on the terminal, and the run of this process (`seerd run`).

Showing never changes a run, and a screen that cannot be written to never ends one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group

from seerd.core.state import State
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry
from seerd.telling.harmless import Harmless
from seerd.telling.live.board import Board, board_of
from seerd.telling.live.frame import frame
from seerd.telling.live.life import Lives
from seerd.telling.live.look import Act, LiveLook, press
from seerd.telling.live.recent import Recent
from seerd.telling.live.terminal import WAIT_S, Terminal
from seerd.telling.live.trial_page import TrialLife

if TYPE_CHECKING:
    from seerd.shell.daemon import Watcher

EVERY_S = 1.0
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


@contextlib.contextmanager
def live_watcher(folder: RunFolder) -> Iterator[Watcher]:
    """Show the live view of this process's run while the context lasts; yield its watcher."""
    lives = Lives(folder)
    with contextlib.closing(lives), Viewer(LiveLook(owner=True), lives.of) as viewer:
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
        self._listen()
        self._keys()
        paused = self._viewer.look.paused and self._viewer.board is not None
        if self._viewer.due and not paused:
            self._viewer.show(lambda: board_of(state, now_s, self._recent))

    def _keys(self) -> None:
        if "stop" in self._viewer.acts():
            os.kill(os.getpid(), signal.SIGINT)

    def _listen(self) -> None:
        """Have the run's loop report keys as they are pressed."""
        if self._listening or self._viewer.terminal.input is None:
            return
        self._listening = True
        import asyncio

        with contextlib.suppress(RuntimeError, OSError):  # without it, keys are read once a second
            loop = asyncio.get_running_loop()

            def pressed() -> None:
                self._keys()
                if self._viewer.terminal.input is None:
                    loop.remove_reader(number)
                elif self._viewer.terminal.pending:
                    loop.call_later(WAIT_S, self._keys)

            number = self._viewer.terminal.input
            loop.add_reader(number, pressed)
