"""The live view of this process's run, `seerd run` in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from seerd.core.state import State
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry
from seerd.telling.live.board import board_of
from seerd.telling.live.life import Lives
from seerd.telling.live.look import LiveLook
from seerd.telling.live.recent import Recent
from seerd.telling.live.terminal import WAIT_S
from seerd.telling.live.viewer import Viewer

if TYPE_CHECKING:
    from seerd.shell.daemon import Watcher


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

        with contextlib.suppress(RuntimeError, OSError):  # without it, keys are heard once a second
            loop = asyncio.get_running_loop()

            def pressed() -> None:
                self._keys()
                if self._viewer.terminal.input is None:
                    loop.remove_reader(number)
                elif self._viewer.terminal.pending:
                    loop.call_later(WAIT_S, self._keys)

            number = self._viewer.terminal.input
            loop.add_reader(number, pressed)
