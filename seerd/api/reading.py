"""A run as it is, read from its journal; no event is read twice. Reading never disturbs a run."""

from __future__ import annotations

import threading

from seerd.commands.report import as_read
from seerd.shell.home import RunFolder
from seerd.telling.explanation.timeline import RunHistory, read_history
from seerd.telling.page.run_page import ReadRun


class ReadingOn:
    """Reads one run, as far as it has gone. Threads may share it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._history: RunHistory | None = None
        self._lock = threading.Lock()

    def history(self) -> RunHistory:
        """Read what was added, and return all. Raises `JournalError`."""
        with self._lock:
            if self._history is None:
                self._history = read_history(self.folder)
            else:
                self._history.read_on(self.folder)
            return self._history

    def read(self) -> ReadRun:
        """Do the same, and add what else reports show."""
        return as_read(self.folder, self.history())
