"""How this process ends, in order even with torch's threads.

A thread of gloo that drops the last reference to a tensor needs the interpreter. If that is being
taken down, the process aborts ("terminate called without an active exception") and torchrun calls
the whole attempt failed: on a busy machine in one of several runs, even after a barrier and
`destroy_process_group()`. So ranks whose process group is ours leave without taking the interpreter
down.
"""

import atexit
import os
import signal
import sys
from typing import Any, Callable

from seerd.agent.warm.ending import flush_open_files


class End:
    """How this process ends."""

    def __init__(self) -> None:
        # asked: whether SIGTERM has asked it to save and leave
        # failed: whether `sys.exit` was called with a status that is not 0
        self.asked = self.failed = False

    @property
    def crashed(self) -> bool:
        """Whether an exception that nobody has caught ends this process."""
        return hasattr(sys, "last_value")

    def heed_sigterm(self) -> None:
        """Take SIGTERM as a request to save and leave."""
        signal.signal(signal.SIGTERM, self._ask)

    def call(self, last: Callable[[], None]) -> None:
        """Call `last` when the script has come to its end."""
        # At exit Python does not say with which status, and a failure must not be hidden.
        self._exit, sys.exit = sys.exit, self._leave  # type: ignore[assignment]
        atexit.register(last)

    def _ask(self, *_: Any) -> None:
        self.asked = True

    def _leave(self, status: Any = None) -> None:
        self.failed = status not in (None, 0)
        self._exit(status)


def leave_at_once(status: int) -> None:
    """End this process at once, after what an ordinary end would still do."""
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._exit_function()  # ends the workers of loaders
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    flush_open_files()
    os._exit(status)
