"""Finds and reads the output of trials in a run's folder.

The one rule: only names that exist are used; a trial that a person asks for never becomes part of a
path. What a trial has written is shown as plain text, however long it is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from seerd.errors import UsageError
from seerd.planner.trial_ids import same_trial
from seerd.shell.home import RunFolder
from seerd.view.harmless import printable

PIECE = 1 << 16


def log_files(folder: RunFolder, trial: str | None) -> list[Path]:
    """List log files of one trial, or of all, by trial, attempt and rank.

    Raises `UsageError` if the trial has none.
    """
    trials = [
        path
        for path in folder.instances.glob("*/trials/*")
        if trial is None or same_trial(path.name, trial)
    ]
    if not trials and _elsewhere(folder):
        raise UsageError(
            f"{folder.run} has no logs here: what its trials print on other machines is brought "
            "every half minute and when an attempt ends. "
            f"On one that is still there it is in ~/.seerd/{folder.run}/trials/TRIAL/ATTEMPT/logs"
        )
    if trial is not None and not trials:
        known = (
            ", ".join(sorted({path.name for path in folder.instances.glob("*/trials/*")})) or "none"
        )
        raise UsageError(f"{folder.run} has no logs of {trial!r}; trials with logs: {known}")
    found = (path for root in trials for path in root.rglob("*.log") if _is_ours(path, folder))
    return sorted(found, key=lambda path: path.relative_to(folder.instances).parts[1:])


def lines(path: Path) -> Iterator[str]:
    """Read a log in pieces of bounded size, without what a terminal could obey.

    The steps of a progress bar become lines.
    """
    with path.open(encoding="utf-8", errors="replace") as log:
        while piece := log.read(PIECE):
            yield "\n".join(
                "\t".join(map(printable, line.split("\t"))) for line in piece.split("\n")
            )


def _is_ours(path: Path, folder: RunFolder) -> bool:
    """Tell whether a path is a log with content, and not a link, pipe or device that a trial has
    put there.
    """
    with contextlib.suppress(OSError):
        inside = path.resolve().is_relative_to(folder.instances.resolve())
        return inside and not path.is_symlink() and path.is_file() and path.stat().st_size > 0
    return False


def _elsewhere(folder: RunFolder) -> bool:
    """Tell whether trials ran on other machines; such a run's setup names these."""
    try:
        setup = json.loads(folder.setup.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(setup, dict) and bool(setup.get("hosts") or setup.get("ec2"))
