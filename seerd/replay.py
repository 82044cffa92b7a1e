"""Rebuilds a run from its journal: the same events through the same core must ask for the same commands.

The one rule: nothing is written and nothing is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from seerd.core.codec import encode_commands
from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent, RunStarted
from seerd.core.state import State, new_state
from seerd.core.step import step
from seerd.errors import ImpossibleEventError, JournalError, ReplayError
from seerd.shell.journal import Entry, Journal

Step = Callable[[State, AnyEvent], list[AnyCommand]]


def replay(journal: Journal) -> State:
    """The state at the end of the journal. Raises `ReplayError` where another command comes out than was recorded."""
    state, entries = begin(journal)
    follow(state, entries)
    return state


def begin(journal: Journal) -> tuple[State, Iterator[Entry]]:
    """The state before the first event, and all entries. Raises `JournalError`, now or while they are read, where that cannot be done."""
    entries = _read(journal)
    first = next(entries, None)
    if first is None or not isinstance(first.event, RunStarted):
        raise JournalError(
            f"{journal.path.parent.name} was ended before it began; start it anew and remove {journal.path.parent}"
        )
    try:
        state = new_state(first.event.facts)
    except Exception as error:
        raise ImpossibleEventError(first.seq, first.event, error) from error
    return state, chain([first], entries)


def follow(state: State, entries: Iterable[Entry], handle: Step = step) -> None:
    """Step through further entries; `handle` makes the steps."""
    for entry in entries:
        if entry.seq != state.seq + 1:
            raise JournalError(f"the journal of {state.facts.run} is damaged: event {state.seq + 1} is missing")
        try:
            commands = handle(state, entry.event)
        except Exception as error:
            raise ImpossibleEventError(entry.seq, entry.event, error) from error
        if encode_commands(commands) != encode_commands(entry.commands):
            raise ReplayError(entry.seq, entry.event, entry.commands, commands)


def _read(journal: Journal) -> Iterator[Entry]:
    """All entries; where one cannot be read, it is said which one."""
    read = 0
    try:
        for entry in journal.entries():
            yield entry
            read = entry.seq
    except JournalError as error:
        raise JournalError(f"{error}\nThis is event {read + 1}; the {read} before it can be read.") from error
