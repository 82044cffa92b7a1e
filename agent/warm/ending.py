"""Ends a process as the interpreter would, but for taking down what was imported: in a fork that
copies most of the memory that is shared, and GPUs wait for it.

The one rule: what a script can notice of its end happens: its threads are waited for, what it
registered with `atexit` is called, its own objects go, what it has written is written.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys


def end(status: int) -> None:
    """End this process, whose script has come to its end, with this exit status."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    # Threads that are left would miss their names.
    if len(sys._current_frames()) == 1:  # noqa: SLF001
        sys.modules["__main__"].__dict__.clear()
        gc.collect()  # what was imported before the fork is frozen, and is not looked at
    flush_open_files()
    _flush_c()
    os._exit(status)


def flush_open_files() -> None:
    """Write out what scripts have left in files that they never close.

    An ordinary end does so when the last reference to a file is dropped; only the garbage collector
    knows of all that are open.
    """
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter)) and not thing.closed:
            with contextlib.suppress(OSError, ValueError):
                thing.flush()


def _flush_c() -> None:
    """Write out what libraries in C have left in files of theirs."""
    import ctypes

    ctypes.CDLL(None).fflush(None)
