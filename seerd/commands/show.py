"""`seerd list`, `show`, `ledger` and `best`: what is known of runs, over or not.

The one rule: these commands only read, so they never disturb a run.
"""

from __future__ import annotations

import time
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from seerd.commands.common import tell
from seerd.core.state import State
from seerd.errors import JournalError, NoModelError
from seerd.runs import reading
from seerd.shell.home import Home, RunFolder, copy_result
from seerd.view import run_json
from seerd.view.plan_json import Json

if TYPE_CHECKING:
    from rich.console import RenderableType


def list_runs(home: Home, *, json: bool) -> None:
    """Print all runs, the newest last; one whose journal cannot be read is listed as unreadable."""
    rows = [_row(folder) for folder in home.runs()]
    tell({"runs": rows}, _runs, json=json)


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
    tell(run_json.details(state, _status(folder, state)), lambda _: _summary(state), json=json)


def ledger(folder: RunFolder, *, json: bool) -> None:
    """Print what a run has cost, and for what. Raises `JournalError`."""
    state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin if folder.owner() else state.now
    tell(run_json.ledger(state, now_s), _ledger, json=json)


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


def _runs(told: Json) -> RenderableType:
    from seerd.view.tables import runs_table

    return runs_table(told["runs"])


def _ledger(told: Json) -> RenderableType:
    from seerd.view.tables import ledger_table

    return ledger_table(told)


def _summary(state: State) -> RenderableType:
    from seerd.view.summary import summary

    return summary(state)
