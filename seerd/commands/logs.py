"""`seerd logs`: what the trials have printed. It only reads, so it never disturbs a run."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from seerd.commands.options import LogsAsked
from seerd.errors import UsageError
from seerd.shell.home import RunFolder
from seerd.telling.harmless import harmless, printable
from seerd.telling.logs import Growing, lines, log_files, newest_attempts, newest_last, tail

POLL_S = 0.3


def logs(folder: RunFolder, trial: str | None, wanted: LogsAsked) -> None:
    """Print the ends of the logs, the newest last: of one trial those of all its attempts, else of
    each trial those of its newest one. Raises `UsageError`.
    """
    paths = _logs(folder, trial, wanted)
    if not paths and not wanted.follow:
        who = f"{harmless(trial)} has" if trial else f"the trials of {folder.run} have"
        print(f"seerd: {who} printed nothing that has come here yet", file=sys.stderr)
    if wanted.files:
        for path in paths:
            print(printable(str(path)))
        return
    shown = newest_last(paths if trial is not None else newest_attempts(paths, folder), folder)
    growing = {path: Growing(path, path.stat().st_size) for path in paths}
    for path in shown:
        print(f"==> {printable(str(path))} <==")
        sys.stdout.writelines(lines(path) if wanted.whole else tail(path, wanted.lines))
    if wanted.follow:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        _follow(folder, lambda: _logs(folder, trial, wanted), growing, shown[-1:])


def _logs(folder: RunFolder, trial: str | None, wanted: LogsAsked) -> list[Path]:
    """List the logs. Raises `UsageError` if there are none, unless they may still come."""
    try:
        return log_files(folder, trial)
    except UsageError:
        if wanted.follow and folder.owner() is not None:
            return []
        raise


def _follow(
    folder: RunFolder,
    logs: Callable[[], list[Path]],
    growing: dict[Path, Growing],
    last: list[Path],
) -> None:
    """Print what is added to the logs until no process runs the run; `last` was printed last."""
    while True:
        over = folder.owner() is None
        for path in logs():
            added = growing.setdefault(path, Growing(path)).added(whole=not over)
            if added:
                if [path] != last:
                    print(f"==> {printable(str(path))} <==")
                sys.stdout.write(added)
                last = [path]
        sys.stdout.flush()
        if over:
            return
        time.sleep(POLL_S)
