"""One run of a name at a time: `seerd run --unless-running`."""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator

from seerd.errors import UsageError
from seerd.shell.home import Home

NAMED = re.compile(r"(.+)-\d{8}-\d{6}-[0-9a-f]{4}")
"""The id of a run: its name, when it was begun, and four digits by chance."""


@contextlib.contextmanager
def alone(home: Home, name: str) -> Iterator[str | None]:
    """Yield None if no run of this name is under way in this home, and keep others that ask from
    beginning until the block ends; else yield a sentence on the one that is.

    The lock is the system's: it ends with the process, however that ends. A run that was begun
    without asking is found by its own lock. Raises `UsageError` if the home cannot be used.
    """
    path = home.path / ".names" / name
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise UsageError(
            f"the folder of all runs, {home.path}, cannot be used: {error.strerror}; name "
            "another one with --home or SEERD_HOME"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _running(home, name) or f"a run of the name {name} is just beginning"
            return
        yield _running(home, name)


def _running(home: Home, name: str) -> str | None:
    """Say which run of this name a process runs; None: none."""
    for folder in home.runs():
        named = NAMED.fullmatch(folder.run)
        if named and named[1] == name and (owner := folder.owner()) is not None:
            return f"{folder.run} is running (process {owner})"
    return None
