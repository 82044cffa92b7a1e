"""The journal: every event of a run and the commands that followed from it, in one SQLite file.

The one rule: a batch of events is committed, whole or not at all, before any of its commands is carried out and before any of its facts
is acknowledged. `PRAGMA synchronous=FULL` makes that hold through a power cut as well (sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from seerd.core.codec import FORMAT, decode_commands, decode_event, encode_commands, encode_event
from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent
from seerd.errors import JournalError

LATEST = 1e12
"""No run begins later (wall clock, seconds since 1970)."""
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, event BLOB NOT NULL, commands BLOB NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, its sequence number (from 1) and the commands that followed."""

    seq: int
    event: AnyEvent
    commands: list[AnyCommand]


class Journal:
    """One run's journal. Readers may open it (`read_only`) while the daemon writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    @classmethod
    def create(cls, path: Path, origin: float) -> Journal:
        """A new journal; `origin` is when the run began, in seconds since 1970. Raises `JournalError` where it cannot be written."""
        journal = cls(_connect(path, "rwc"), path)
        try:
            journal._connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"{path} cannot be made: {error}") from error
        journal._set("format", str(FORMAT))
        journal.origin = origin
        return journal

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """An existing journal. Raises `JournalError` if it is none, or of another format."""
        if not path.is_file():
            raise JournalError(f"{path} does not exist")
        journal = cls(_connect(path, "ro" if read_only else "rw"), path)
        found = journal._get("format")
        if found != str(FORMAT):
            raise JournalError(f"{path} has format {found:.20}, this version of seerd reads {FORMAT}")
        return journal

    @property
    def origin(self) -> float:
        """When the run began, in seconds since 1970, moved forward by the time for which it was interrupted."""
        try:
            origin = float(self._get("origin"))
        except ValueError:
            origin = math.nan
        if not abs(origin) < LATEST:
            raise JournalError(f"the journal {self.path} is damaged: it does not say when the run began")
        return origin

    @origin.setter
    def origin(self, value: float) -> None:
        self._set("origin", repr(value))

    def append(self, entries: list[Entry]) -> None:
        """Commit these entries. Nothing of them may be acted upon before this returns."""
        rows = [(e.seq, e.event.at, encode_event(e.event), encode_commands(e.commands)) for e in entries]
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} cannot be written: {error}") from error

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """All entries behind sequence number `after`, in order."""
        query = "SELECT seq, event, commands FROM events WHERE seq > ? ORDER BY seq"
        try:
            for seq, event, commands in self._connection.execute(query, (after,)):
                yield Entry(int(seq), decode_event(event), decode_commands(commands))
        except (sqlite3.Error, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise JournalError(f"the journal {self.path} is damaged: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, key: str) -> str:
        try:
            row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise JournalError(f"{self.path} is not a journal of seerd: {error}") from error
        if row is None:
            raise JournalError(f"{self.path} is not a journal of seerd: it has no {key}")
        return str(row[0])

    def _set(self, key: str, value: str) -> None:
        try:
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} cannot be written: {error}") from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        if mode != "ro":
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be opened: {error}") from error
    return connection
