"""`seerd list`, `show`, `ledger`, `best` and `logs`: what is known of runs, over or not.

The one rule: these commands only read, so they never disturb a run.
"""

from __future__ import annotations

import sys
import time
from json import dumps
from pathlib import Path

from seerd.commands.common import tell
from seerd.core.state import State
from seerd.errors import JournalError, NoModelError
from seerd.runs import reading
from seerd.shell.home import Home, RunFolder, copy_result
from seerd.view import run_json
from seerd.view.harmless import harmless, printable
from seerd.view.logs import lines, log_files
from seerd.view.plan_json import Json
from seerd.view.summary import summary
from seerd.view.tables import ledger_table, runs_table


def list_runs(home: Home, *, json: bool) -> None:
    """Print all runs, the newest last; one whose journal cannot be read is listed as unreadable."""
    rows = [_row(folder) for folder in home.runs()]
    tell({"runs": rows}, lambda told: runs_table(told["runs"]), json=json)


def _row(folder: RunFolder) -> Json:
    try:
        state = reading.read(folder)
    except JournalError as error:
        return run_json.unreadable(folder.run, str(error))
    return run_json.result(state, _status(folder, state))


def _status(folder: RunFolder, state: State) -> str:
    return run_json.status_of(state, folder.owner() is not None)


def show(folder: RunFolder, *, json: bool) -> None:
    """Print what a run has tried, and its best model. Raises `JournalError`."""
    state = reading.read(folder)
    tell(run_json.details(state, _status(folder, state)), lambda _: summary(state), json=json)


def ledger(folder: RunFolder, *, json: bool) -> None:
    """Print what a run has cost, and for what. Raises `JournalError`."""
    state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin if folder.owner() else state.now
    tell(run_json.ledger(state, now_s), ledger_table, json=json)


def best(folder: RunFolder, to: Path | None, *, json: bool) -> None:
    """Print the best model, and copy it into `to` if that is given.

    Raises `NoModelError` if there is none to hand back, `JournalError`.
    """
    found = run_json.best(reading.read(folder))
    if found is None or found["checkpoint"] is None:
        early = "" if found is None else " before it has ended"
        raise NoModelError(f"{folder.run} has no model to hand back{early}")
    if to is not None:
        found["checkpoint"] = str(copy_result(folder, to))
    text = (
        f"{found['trial']}  {found['metric']:.6g}\n{dumps(found['config'])}\n{found['checkpoint']}"
    )
    tell(found, lambda _: text, json=json)


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
