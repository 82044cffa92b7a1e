"""The view of a run in a notebook, renewed while the run goes on. It never ends a run, and takes a
small part of the time.
"""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

from seerd.api.html import shown
from seerd.api.reading import ReadingOn
from seerd.core.lifecycle import RunPhase
from seerd.errors import JournalError
from seerd.shell.home import RunFolder
from seerd.telling.harmless import harmless

POLL_S = 0.5
RENEW_S = 1.0
SHARE = 0.1  # the largest part of the time that is spent on drawing


def in_a_notebook() -> bool:
    """Return whether this is a notebook's kernel, whose cells can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class NotebookView:
    """Shows one run at a time, in the output of the cell that made it."""

    def __init__(self) -> None:
        from IPython import display

        shows: Any = display
        self._html = shows.HTML
        self._display = shows.display(self._html("<p>planning ...</p>"), display_id=True)
        self._reading: ReadingOn | None = None
        self._next = 0.0

    def show(self, folder: RunFolder, *, last: bool = False) -> None:
        """Show the run as it is, if it is time to draw again or this is the `last` time."""
        begins = time.monotonic()
        if begins < self._next and not last:
            return
        if self._reading is None:
            self._reading = ReadingOn(folder)
        self._display.update(self._html(_html(self._reading)))
        took_s = time.monotonic() - begins
        self._next = begins + max(RENEW_S, took_s / SHARE)

    def watch(self, folder: RunFolder) -> None:
        """Show the run until it is over, or nobody runs it."""
        while folder.owner() is not None:
            self.show(folder)
            time.sleep(POLL_S)
        self.show(folder, last=True)


def _html(reading: ReadingOn) -> str:
    try:
        history = reading.history()
        goes_on = history.state.phase is not RunPhase.OVER
        return shown(reading.read(), time.time() - history.began if goes_on else None)
    except JournalError:  # before its first event, or after its folder was removed
        return "<p>planning ...</p>"
    except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
        return f"<p>this run cannot be shown: {escape(harmless(str(error)))}</p>"
