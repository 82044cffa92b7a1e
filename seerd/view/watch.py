"""Shows a run while it goes on, as a live view or as plain lines: from the daemon itself, or from
another terminal through the journal.

The one rule: showing never changes a run, and a screen that cannot be written to never ends one.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from seerd.core.state import State
from seerd.runs.reading import follow, replay
from seerd.shell.clock import RunClock
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.view.plain import line_of

if TYPE_CHECKING:
    from seerd.shell.daemon import Watcher

RECENT = 12
POLL_S = 0.5


def lines_to(folder: RunFolder, out: TextIO) -> Watcher:
    """Make a watcher that writes one line for each event that people need to know."""
    print(f"run {folder.run}", file=out, flush=True)

    def watcher(state: State, now_s: float, entries: list[Entry]) -> None:
        for entry in entries:
            line = line_of(entry.event, state, entry.decided)
            if line is not None:
                with contextlib.suppress(
                    OSError, ValueError
                ):  # ValueError: the encoding lacks it, or the stream is closed
                    print(line, file=out, flush=True)

    return watcher


@contextlib.contextmanager
def live_watcher(folder: RunFolder) -> Iterator[Watcher]:
    """Show the live view on this terminal while the context lasts; yield its watcher."""
    from seerd.view.live import LiveView  # rich.live costs more to import than plain lines need

    recent: deque[str] = deque(maxlen=RECENT)
    with LiveView() as view:

        def watcher(state: State, now_s: float, entries: list[Entry]) -> None:
            recent.extend(
                line
                for entry in entries
                if (line := line_of(entry.event, state, entry.decided)) is not None
            )
            view.update(state, now_s, recent)

        yield watcher


def watch_run(folder: RunFolder) -> None:
    """Show a run from its journal until it is over or no process runs it."""
    context = (
        live_watcher(folder)
        if sys.stdout.isatty()
        else contextlib.nullcontext(lines_to(folder, sys.stdout))
    )
    with Journal.open(folder.journal, read_only=True) as journal, context as watcher:
        state = replay(journal)
        clock = RunClock(journal.origin)
        watcher(state, clock.now(), list(journal.entries(max(0, state.clock.seq - RECENT))))
        while not state.finished and folder.owner() is not None:
            time.sleep(POLL_S)
            _catch_up(journal, state, clock, watcher)


def _catch_up(journal: Journal, state: State, clock: RunClock, watcher: Watcher) -> None:
    for entry in journal.entries(state.clock.seq):
        follow(state, [entry])
        watcher(state, clock.now(), [entry])
    watcher(state, clock.now(), [])
