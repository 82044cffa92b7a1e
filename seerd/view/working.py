"""Says what a command is waiting for, where somebody looks.

The one rule: only on a terminal, on stderr, and gone when it is done: what is printed is the same
with and without it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

AFTER_S = 1.0
"""What takes no longer is over before it could be read."""


@contextlib.contextmanager
def working(what: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Say on a terminal's stderr what is done, from `after_s` seconds on until the block ends.

    No process may be forked in the block, since a thread draws.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def show() -> None:
        if done.wait(after_s):
            return
        from rich.console import Console  # most commands are over before anything is drawn

        console = Console(stderr=True)
        with contextlib.suppress(OSError), console.status(what, spinner="line"):
            done.wait()

    drawing = threading.Thread(target=show, name="working", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()
