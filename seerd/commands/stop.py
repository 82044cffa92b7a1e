"""`seerd stop`: ends a run from another terminal, or from Python."""

from __future__ import annotations

import os
import signal

from seerd.errors import UsageError
from seerd.shell.home import RunFolder


def stop(folder: RunFolder) -> None:
    """End a run in order, as Ctrl-C in its terminal does. Raises `UsageError` if it is not
    running.
    """
    ask_to_stop(folder)
    print(f"asked {folder.run} to stop; its trials save now")


def ask_to_stop(folder: RunFolder) -> None:
    """Ask the run's daemon to end it: by a signal, or by a request if signals are not for it.

    Raises `UsageError` if it is not running.
    """
    owner = folder.owner()
    if owner is None:
        how = f"seerd show {folder.run} tells how it ended"
        raise UsageError(f"{folder.run} is not running ({how})")
    if not folder.is_in_a_thread():
        os.kill(owner, signal.SIGINT)
        return
    from seerd.commands.asking import ask
    from seerd.shell.inbox import StopRequest

    ask(folder, StopRequest())
