"""Says on stderr what a command is waiting for, if that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from seerd.units import SLOW_S

AFTER_S = 1.0  # what takes no longer is over before it could be read


@contextlib.contextmanager
def working(what: str, after_s: float | None = None) -> Iterator[None]:
    """Write to stderr what is done, after `after_s` seconds; on a terminal until the block ends.

    No process may be forked in the block, since a thread writes.
    """
    terminal, done = sys.stderr.isatty(), threading.Event()
    wait_s = (AFTER_S if terminal else SLOW_S) if after_s is None else after_s

    def show() -> None:
        if done.wait(wait_s):
            return
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            if not terminal:
                print(f"seerd: {what} ...", file=sys.stderr, flush=True)
                return
            from rich.console import Console  # most commands are over before anything is drawn

            with Console(stderr=True).status(what, spinner="line"):
                done.wait()

    drawing = threading.Thread(target=show, name="working", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()
