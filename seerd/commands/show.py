"""`seerd list`, `show` and `ledger`: what is recorded of runs. These commands only read."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from seerd import telling
from seerd.commands.common import say, tell
from seerd.errors import JournalError
from seerd.runs import reading, unstored
from seerd.shell.home import Home, RunFolder
from seerd.telling import run_json
from seerd.telling.working import working


def list_runs(home: Home, *, json: bool) -> None:
    """Print all runs, the newest last; one whose journal cannot be read is listed as unreadable."""
    rows = []
    with working("reading all runs"):
        for folder in home.runs():
            began = datetime.fromtimestamp(folder.begun, UTC).isoformat(timespec="seconds")
            try:
                state = reading.read(folder)
            except JournalError as error:
                rows.append({**run_json.unreadable(folder.run, str(error)), "began": None})
                continue
            status = run_json.status_of(state, folder.owner() is not None)
            rows.append({**run_json.listed(state, status), "began": began})
    tell({"runs": rows}, lambda listed: telling.tables.runs_table(listed["runs"]), json=json)


def show(folder: RunFolder, *, every: bool, json: bool) -> None:
    """Print a run's best trials, or all (`every`), and its best model. Raises `JournalError`."""
    with working(f"reading {folder.run}"):
        state = reading.read(folder)
    alive = folder.owner() is not None
    details = run_json.details(state, run_json.status_of(state, alive))
    most: dict[str, None] = {"most": None} if every else {}
    tell(details, lambda _: telling.summary.summary(state, alive=alive, **most), json=json)
    for line in unstored.note(folder, state) if state.finished else ():
        say(line)


def ledger(folder: RunFolder, *, json: bool) -> None:
    """Print what a run has cost, and for what. Raises `JournalError`."""
    with working(f"reading {folder.run}"):
        state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin if folder.owner() else state.now
    charges = run_json.ledger(state, now_s)
    tell(charges, lambda _: telling.tables.ledger_table(charges), json=json)
