"""What the commands share: finding a run, printing for users and scripts, exit codes. Imports that
cost more than typer are inside the functions.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from seerd.clock import process_began
from seerd.telling.harmless import Harmless, harmless

if TYPE_CHECKING:
    from seerd.shell.home import Home, RunFolder

STARTED = process_began()  # when this command began, seconds since 1970: deadlines count from here
FREE_SPACE = "Free space (or make the disk writable)"
# what the machine may refuse to any command, and what the user can do about it
REFUSALS = {
    errno.ENOSPC: FREE_SPACE,
    errno.EDQUOT: FREE_SPACE,
    errno.EROFS: FREE_SPACE,
    errno.EACCES: "Give yourself the right to it, or name another folder (`--home`)",
    errno.EFBIG: "Files may not grow so large here: run `ulimit -f unlimited` first",
    errno.EMFILE: "A process may not open so many files here: run `ulimit -n 4096` first",
    errno.ENFILE: "The whole machine has too many files open: end what has opened them",
    errno.EAGAIN: "No process or thread can be started here: end some, or see `ulimit -u`",
    errno.ENOMEM: "The machine has no memory left: end what uses it",
}
T = TypeVar("T")


def home_of(path: str | os.PathLike[str] | None) -> Home:
    """Return the folder of all runs; None: the default one."""
    from seerd.shell.home import Home, default_home

    return Home(Path(path).expanduser().resolve() if path else default_home())


def find(run: str, home: Path | None) -> RunFolder:
    """Find a run by its name, the beginning of one, or `last`. Raises `UsageError` without one."""
    return home_of(home).find(run)


def seconds(text: str, option: str = "") -> float:
    """Read the duration of an option. Raises `UsageError`."""
    from seerd.errors import UsageError
    from seerd.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}".lstrip()) from error


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Raise `UsageError` if the block cannot write there."""
    from seerd.errors import UsageError

    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def say(line: str) -> None:
    """Print one line that is not a mistake, on stderr."""
    print(harmless(line), file=sys.stderr)


_damages: list[str] = []  # what was printed of damaged journals


def say_damages() -> None:
    """From now on print it, once, if a journal that is read is damaged."""
    import warnings

    from seerd.errors import DamagedWarning

    show = warnings.showwarning

    def say_it(message: Warning | str, *where: Any, **others: Any) -> None:
        if isinstance(message, DamagedWarning):
            _damages.append(str(message))
            say(f"seerd: {message}")
        else:
            show(message, *where, **others)

    warnings.simplefilter("always", DamagedWarning)
    warnings.showwarning = say_it


def tell(result: T, view: Callable[[T], Any], *, json: bool) -> None:
    """Print the result as JSON, or what `view` makes of it for people."""
    if json:
        shown: Any = result
        print(dumps({**shown, "damaged": _damages[0]} if _damages else shown))
        return
    from rich.console import Console

    # No markup: names and values that others chose must not be read as instructions.
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    console.print(Harmless(view(result)))


def tell_version(asked: bool) -> None:
    """Print the versions on one line and exit, if asked."""
    if not asked:
        return
    import platform

    from seerd.agent.protocol import VERSION as PROTOCOL
    from seerd.core.codec import FORMAT
    from seerd.version import VERSION

    python = platform.python_version()
    print(f"seerd {VERSION} (Python {python}, journal format {FORMAT}, agent protocol {PROTOCOL})")
    raise typer.Exit


def quickly() -> None:
    """Spare a quick command numpy's threads, which take longer than it."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextlib.contextmanager
def orderly() -> Iterator[None]:
    """Turn errors with a message for the user into one line on stderr and an exit code."""
    from seerd.errors import SeerdError

    def interrupted(*_: object) -> None:  # no run goes on: a run's daemon has its own handler
        print("seerd: interrupted", file=sys.stderr)
        raise SystemExit(130)

    signal.signal(signal.SIGINT, interrupted)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that an encoding lacks must not end a run.
            stream.reconfigure(errors="replace")
    try:
        yield
    except SeerdError as error:
        print(f"seerd: {harmless(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (OSError, RuntimeError) as error:
        # pathlib raises a RuntimeError for it until Python 3.12.
        if getattr(error, "errno", 0) == errno.ELOOP or str(error).startswith("Symlink loop"):
            circle = f"a link leads in a circle: {error}; remove it, or name another path"
            print(f"seerd: {harmless(circle)}", file=sys.stderr)
            sys.exit(2)
        if str(error) == "can't start new thread":
            error = OSError(errno.EAGAIN, str(error))
        if not isinstance(error, OSError) or error.errno not in REFUSALS:
            raise
        where = f": {error.filename}" if error.filename else ""
        refusal = (
            f"{(error.strerror or os.strerror(error.errno)).lower()}{where}. "
            f"{REFUSALS[error.errno]}, then, if the run had begun: seerd resume RUN (`seerd list` "
            "shows it); its trials save and end by themselves meanwhile"
        )
        print(f"seerd: {harmless(refusal)}", file=sys.stderr)
        sys.exit(1)


def leave(end: SystemExit) -> NoReturn:
    """End this process at once with the status of `end`: taking apart all that a command has
    imported takes a tenth of a second, and seconds on a busy machine.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to call them and stay
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads, or it is closed
            stream.flush()
    os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
