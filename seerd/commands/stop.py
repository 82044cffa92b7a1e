"""`seerd stop`: ends a run from another terminal."""

from __future__ import annotations

import os
import signal

from seerd.errors import UsageError
from seerd.shell.home import RunFolder


def stop(folder: RunFolder) -> None:
    """End a run in order, as Ctrl-C in its terminal does. Raises `UsageError` if it is not
    running.
    """
    owner = folder.owner()
    if owner is None:
        how = f"seerd show {folder.run} tells how it ended"
        raise UsageError(f"{folder.run} is not running ({how})")
    os.kill(owner, signal.SIGINT)
    print(f"asked {folder.run} to stop; its trials save now")
