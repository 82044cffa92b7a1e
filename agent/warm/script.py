"""Runs a script as `python -u script.py ARGUMENTS` does, in a process that is a fork: as the module
`__main__`, on an empty stack. What it raises reaches the interpreter as it is.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib.machinery
import io
import os
import sys
import types
from typing import Any, Optional, Sequence


class Script:
    """A script that is to be run, by `python [-u] SCRIPT ARGUMENTS`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._arguments = list(argv[2:] if argv[1] == "-u" else argv[1:])

    def run(self) -> None:
        """Run the script, and end. Raises what it raises, if that is to be shown."""
        path = os.path.abspath(self._arguments[0])
        sys.argv[:] = self._arguments
        come_first(os.path.dirname(os.path.realpath(path)))
        main = new_main(path)
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError as error:
            why = f"[Errno {error.errno}] {error.strerror}"
            print(f"{sys.executable}: can't open file {path!r}: {why}", file=sys.stderr)
            raise SystemExit(2) from None
        try:
            execute(text, path, main.__dict__)
        except SystemExit as error:
            if not isinstance(error.code, int):
                raise
            status = error.code
        else:
            status = 0
        end(status & 0xFF)


def come_first(folder: str) -> None:
    """Put this folder first on the path of modules, as the interpreter does with a script's own."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def new_main(path: Optional[str]) -> types.ModuleType:
    """Put an empty module in the place of `__main__`, as that of this file."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __spec__=None)
    if path is not None:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    sys.modules["__main__"] = main
    return main


def execute(text: bytes, path: str, names: dict[str, Any]) -> None:
    """Execute the text of this file among these names. Tracebacks begin with it."""
    code: Any = None
    try:
        code = compile(text, path, "exec", dont_inherit=True)
        exec(code, names)  # noqa: S102
    except SystemExit:
        raise
    except BaseException as error:
        _shorten(error, code)
        raise


def _shorten(error: BaseException, code: Any) -> None:
    """Have the interpreter show this exception from the frame on that executes the code."""
    own, hook = error.__traceback__, sys.excepthook
    while own is not None and own.tb_frame.f_code is not code:
        own = own.tb_next

    def shown(kind: Any, raised: BaseException, traceback: Any) -> None:
        if raised is error:
            traceback = own
            raised.with_traceback(own)
        hook(kind, raised, traceback)

    sys.excepthook = shown


def end(status: int) -> None:
    """End this process, whose script has ended, as the interpreter would, but without taking down
    what was imported: that would copy most of the shared memory. Threads, `atexit`, the script's
    own objects and open files are seen to.
    """
    import ctypes

    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    # Threads that are left would miss their names.
    if len(sys._current_frames()) == 1:  # noqa: SLF001
        sys.modules["__main__"].__dict__.clear()
        gc.collect()  # what was imported before the fork is frozen, and is not looked at
    flush_open_files()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def flush_open_files() -> None:
    """Write out files that scripts have never closed; the garbage collector knows them."""
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter)) and not thing.closed:
            with contextlib.suppress(OSError, ValueError):
                thing.flush()
