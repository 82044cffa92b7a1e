"""Rebuilds a run from its journal: the same events through the same core must ask for the same commands.

The one rule: nothing is written and nothing is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable

from seerd.core.codec import encode_commands
from seerd.core.events import RunStarted
from seerd.core.state import State, new_state
from seerd.core.step import step
from seerd.errors import JournalError, ReplayError
from seerd.shell.journal import Entry, Journal


def replay(journal: Journal) -> State:
    """The state at the end of the journal. Raises `ReplayError` where another command comes out than was recorded."""
    entries = journal.entries()
    first = next(entries, None)
    if first is None or not isinstance(first.event, RunStarted):
        raise JournalError(
            f"{journal.path.parent.name} was ended before it began; start it anew and remove {journal.path.parent}"
        )
    try:
        state = new_state(first.event.facts)
    except Exception as error:
        raise _impossible(first, error) from error
    follow(state, [first])
    follow(state, entries)
    return state


def follow(state: State, entries: Iterable[Entry]) -> None:
    """Step through further entries."""
    for entry in entries:
        try:
            commands = step(state, entry.event)
        except Exception as error:
            raise _impossible(entry, error) from error
        if encode_commands(commands) != encode_commands(entry.commands):
            raise ReplayError(entry.seq, entry.event, entry.commands, commands)


def _impossible(entry: Entry, error: Exception) -> JournalError:
    """The file is whole, and what it says cannot have been: the core has bugs only where it lives, not where it remembers."""
    return JournalError(
        f"the journal is damaged, or of another version of seerd: event {entry.seq} ({type(entry.event).__name__}) cannot have happened "
        f"({type(error).__name__}: {error!s:.200})"
    )
