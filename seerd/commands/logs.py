"""`seerd logs`: what the trials have printed."""

from __future__ import annotations

import sys

from seerd.shell.home import RunFolder
from seerd.view.harmless import harmless, printable
from seerd.view.logs import lines, log_files


def logs(folder: RunFolder, trial: str | None) -> None:
    """Print the logs of one trial, or the list of all log files. Raises `UsageError`."""
    paths = log_files(folder, trial)
    if not paths:
        print(f"seerd: {harmless(trial or 'no trial')} has printed nothing", file=sys.stderr)
    for path in paths:
        name = printable(str(path))
        print(name if trial is None else f"==> {name} <==")
        if trial is not None:
            sys.stdout.writelines(lines(path))
