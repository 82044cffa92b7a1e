"""Shows a run as plain lines: from its daemon, or from its journal.

Showing never changes a run, and an output that cannot be written to never ends one.
"""

from __future__ import annotations

import contextlib
import sys
import time
from itertools import takewhile
from typing import TYPE_CHECKING, TextIO

from seerd.core.state import State
from seerd.runs.reading import begin, follow, replay
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.plain import line_of

if TYPE_CHECKING:
    from seerd.shell.daemon import Watcher

RECENT = 12
POLL_S = 0.5


def lines_to(folder: RunFolder, out: TextIO) -> Watcher:
    """Return a watcher that writes a line for each event that people need to know."""
    print(f"run {folder.run}", file=out, flush=True)

    def watcher(state: State, now_s: float, entries: list[Entry]) -> None:
        for entry in entries:
            # ValueError: the encoding lacks a character, or the stream is closed
            with contextlib.suppress(OSError, ValueError):
                _write(entry, state, out)

    return watcher


def _write(entry: Entry, state: State, out: TextIO) -> None:
    line = line_of(entry.event, state, entry.decided)
    if line is not None:
        print(line, file=out, flush=True)


def watch_run(folder: RunFolder, at_s: float | None = None) -> None:
    """Write a run's lines from its journal until it is over or no process runs it; or, with `at_s`,
    what is there until so many seconds after it began.

    Raises `JournalError`, and `BrokenPipeError` if nobody reads the lines any more.
    """
    print(f"run {folder.run}", flush=True)
    with Journal.open(folder.journal, read_only=True) as journal:
        if at_s is not None:
            state, entries = begin(journal)
            for entry in takewhile(lambda one: one.event.at <= at_s, entries):
                follow(state, [entry])
                _write(entry, state, sys.stdout)
            return
        state = replay(journal)
        for entry in journal.entries(max(0, state.clock.seq - RECENT)):
            _write(entry, state, sys.stdout)
        while not state.finished and folder.owner() is not None:
            time.sleep(POLL_S)
            for entry in journal.entries(state.clock.seq):
                follow(state, [entry])
                _write(entry, state, sys.stdout)
