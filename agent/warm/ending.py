"""Ends a fork as the interpreter would, but without taking down what was imported, which would copy
most of the shared memory. Threads, `atexit`, the script's own objects and open files are seen to.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys


def end(status: int) -> None:
    """End this process, whose script has ended, with this exit status."""
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
    """Write out files that scripts have never closed; the garbage collector knows them."""
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter)) and not thing.closed:
            with contextlib.suppress(OSError, ValueError):
                thing.flush()


def _flush_c() -> None:
    import ctypes

    ctypes.CDLL(None).fflush(None)
