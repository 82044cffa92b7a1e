"""`seerd list`, `show` and `ledger`: what is known of runs, over or not.

The one rule: these commands only read, so they never disturb a run.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from seerd.commands.common import say, tell
from seerd.core.state import State
from seerd.errors import JournalError
from seerd.runs import reading, unstored
from seerd.shell.home import Home, RunFolder
from seerd.telling import run_json
from seerd.telling.plan_json import Json
from seerd.telling.working import working

if TYPE_CHECKING:
    from rich.console import RenderableType


def list_runs(home: Home, *, json: bool) -> None:
    """Print all runs, the newest last; one whose journal cannot be read is listed as unreadable."""
    with working("reading all runs"):
        rows = [_row(folder) for folder in home.runs()]
    tell({"runs": rows}, _runs, json=json)


def _row(folder: RunFolder) -> Json:
    began = datetime.fromtimestamp(folder.begun, UTC).isoformat(timespec="seconds")
    try:
        state = reading.read(folder)
    except JournalError as error:
        return {**run_json.unreadable(folder.run, str(error)), "began": None}
    return {**run_json.listed(state, _status(folder, state)), "began": began}


def _status(folder: RunFolder, state: State) -> str:
    return run_json.status_of(state, folder.owner() is not None)


def show(folder: RunFolder, *, every: bool, json: bool) -> None:
    """Print what a run has tried, and its best model. Raises `JournalError`.

    every  all trials, not only the best ones
    """
    with working(f"reading {folder.run}"):
        state = reading.read(folder)
    alive = folder.owner() is not None
    told = run_json.details(state, run_json.status_of(state, alive))
    tell(told, lambda _: _summary(state, alive=alive, every=every), json=json)
    for line in unstored.note(folder, state) if state.finished else ():
        say(line)


def ledger(folder: RunFolder, *, json: bool) -> None:
    """Print what a run has cost, and for what. Raises `JournalError`."""
    with working(f"reading {folder.run}"):
        state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin if folder.owner() else state.now
    tell(run_json.ledger(state, now_s), _ledger, json=json)


def _runs(told: Json) -> RenderableType:
    from seerd.telling.tables import runs_table

    return runs_table(told["runs"])


def _ledger(told: Json) -> RenderableType:
    from seerd.telling.tables import ledger_table

    return ledger_table(told)


def _summary(state: State, *, alive: bool, every: bool) -> RenderableType:
    from seerd.telling.summary import MOST_ROWS, summary

    return summary(state, alive=alive, most=None if every else MOST_ROWS)
