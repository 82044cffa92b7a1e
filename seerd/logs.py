"""Where the output of trials lies in a run's folder.

The one rule: only names that exist are used; a trial that a person asks for is never made part of a path.
"""

from __future__ import annotations

import json
from pathlib import Path

from seerd.errors import UsageError
from seerd.shell.home import RunFolder


def log_files(folder: RunFolder, trial: str | None) -> list[Path]:
    """Log files of one trial or of all, by trial, attempt and rank. Raises `UsageError` if the trial has none."""
    trials = [path for path in folder.instances.glob("*/trials/*") if trial is None or path.name == trial]
    if not trials and _elsewhere(folder):
        raise UsageError(
            f"the output of the trials of {folder.run} is on the machines where they ran, while those are there, in "
            f"~/.seerd/{folder.run}/trials/TRIAL/ATTEMPT/logs; the last lines of trials that failed: seerd show {folder.run}"
        )
    if trial is not None and not trials:
        known = ", ".join(sorted({path.name for path in folder.instances.glob("*/trials/*")})) or "none"
        raise UsageError(f"{folder.run} has no logs of {trial!r}; trials with logs: {known}")
    found = (path for root in trials for path in root.rglob("*.log") if path.is_file() and path.stat().st_size)
    return sorted(found, key=lambda path: path.relative_to(folder.instances).parts[1:])


def _elsewhere(folder: RunFolder) -> bool:
    """Whether trials ran on other machines: such a run's setup names them."""
    setup = json.loads(folder.setup.read_bytes()) if folder.setup.is_file() else {}
    return bool(setup.get("hosts") or setup.get("ec2"))
