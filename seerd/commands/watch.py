"""`seerd watch`: the live view of a run from its journal; its lines where there is no terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from seerd.commands import common as c

if TYPE_CHECKING:
    from seerd.shell.home import RunFolder


def watch(folder: RunFolder, at: str | None) -> None:
    """Show a run `at` so long after its start (None: now). Raises `UsageError`, `JournalError`."""
    at_s = None if at is None else c.seconds(at)
    if drawable():
        from seerd.telling.live.watch import watch_live  # rich costs more to import than lines need

        watch_live(folder, at_s)
        return
    from seerd.telling.watch import watch_run

    watch_run(folder, at_s)


def drawable() -> bool:
    """Return whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
