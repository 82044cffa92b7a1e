"""Reads a run from its journal. Nothing is decided, written or carried out, so any later version
reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, RunStarted
from seerd.core.rules import RULES, Rules
from seerd.core.state import State, new_state
from seerd.core.step import follow as follow_one
from seerd.errors import ImpossibleEventError, JournalError
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal

# advances a state by one event and the decisions that followed from it
Go = Callable[[State, AnyEvent, Sequence[AnyDecision]], None]


def read(folder: RunFolder) -> State:
    """Read the state at the end of a run's journal. Raises `JournalError`."""
    return read_with_origin(folder)[0]


def read_with_origin(folder: RunFolder) -> tuple[State, float]:
    """Read the state at the end of a run's journal, and when the run began, seconds since 1970.
    Models that were moved with the run's folder get their new place.
    """
    with Journal.open(folder.journal, read_only=True) as journal:
        state, origin = replay(journal), journal.origin
    for job, published in state.result.of_jobs.items():
        path = folder.best / job / Path(published.path).name
        if path.exists() and not Path(published.path).exists():
            state.result.of_jobs[job] = replace(published, path=str(path))
    return state, origin


def replay(journal: Journal, rules: Rules = RULES) -> State:
    """Return the state at the journal's end, under these rules. Raises `JournalError`."""
    state, entries = begin(journal, rules)
    follow(state, entries)
    return state


def begin(journal: Journal, rules: Rules = RULES) -> tuple[State, Iterator[Entry]]:
    """Return the state before the first event, and an iterator of all entries. Raises
    `JournalError`, now or while the entries are read.
    """
    entries = _read(journal)
    first = next(entries, None)
    if first is None or not isinstance(first.event, RunStarted):
        raise JournalError(
            f"{journal.path.parent.name} was ended before it began; start it anew and remove "
            f"{journal.path.parent}"
        )
    return new_state(first.event.facts, rules), chain([first], entries)


def follow(state: State, entries: Iterable[Entry], go: Go = follow_one) -> None:
    """Advance the state by these entries; `go` does it for each. Raises `JournalError` if an entry
    is missing, `ImpossibleEventError` if one cannot have happened.
    """
    for entry in entries:
        if entry.seq != state.clock.seq + 1:
            what = f"event {state.clock.seq + 1} is missing"
            raise JournalError(f"the journal of {state.facts.run} is damaged: {what}")
        try:
            go(state, entry.event, entry.decided)
        except Exception as error:
            raise ImpossibleEventError(entry.seq, entry.event, error) from error


def _read(journal: Journal) -> Iterator[Entry]:
    read = 0
    try:
        for entry in journal.entries():
            yield entry
            read = entry.seq
    except JournalError as error:
        raise JournalError(
            f"{error}\nThis is event {read + 1}; the {read} before it can be read."
        ) from error
