"""The journal: every event of a run and what was decided, in one SQLite file, with its format and
the version of seerd that wrote it.

The one rule: a batch of events is committed, as a whole or not at all, before any of its commands
is carried out and before any of its facts is acknowledged. `PRAGMA synchronous=FULL` keeps this
true through a power cut as well (sqlite.org/pragma.html#pragma_synchronous). Nothing is written to
a journal of an older format: it is copied and converted first.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from seerd.core.codec import FORMAT, decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.commands import AnyCommand
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.format1 import convert
from seerd.core.step import commands_of
from seerd.errors import JournalError
from seerd.shell.clock import noted, origin_of, wall
from seerd.version import VERSION

LATEST = 1e12
"""An upper limit for the start of a run (wall clock, seconds since 1970)."""
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, event BLOB NOT NULL, decisions BLOB NOT NULL
) STRICT;
"""
COLUMNS = {1: "commands", 2: "decisions"}
"""The formats that can be read, and the name of the column after the event in each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and what was decided.

    seq      sequence number, from 1
    event    what happened
    decided  the decisions that followed
    """

    seq: int
    event: AnyEvent
    decided: list[AnyDecision]

    @property
    def commands(self) -> list[AnyCommand]:
        """The commands among the decisions."""
        return commands_of(self.decided)


class Journal:
    """One run's journal. Others may open it `read_only` while the daemon writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self.format = FORMAT

    @classmethod
    def create(cls, path: Path, origin: float) -> Journal:
        """Make a new journal of a run that began at `origin` (seconds since 1970). Raises
        `JournalError` if it cannot be written.
        """
        journal = cls(_connect(path, "rwc"), path)
        try:
            journal._connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"{path} cannot be made: {error}") from error
        journal._set("format", str(FORMAT))
        journal._set("version", VERSION)
        journal.origin = origin
        return journal

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """Open an existing journal. To be written to, a journal of an older format is copied (see
        `older`) and converted first.

        Raises `JournalError` if the file is no journal, or of a format that this version does not
        know.
        """
        if not path.is_file():
            raise JournalError(
                f"{path} does not exist, so nothing is known of {path.parent.name}; what is left "
                f"of it is in {path.parent}"
            )
        journal = cls(_connect(path, "ro"), path)
        with contextlib.ExitStack() as closing:
            closing.enter_context(journal)
            journal.format = journal._known_format()
            if read_only:
                closing.pop_all()
                return journal
            if journal.format != FORMAT:
                converted = journal._converted()
        if journal.format != FORMAT:
            _replace(path, converted)
        return cls(_connect(path, "rw"), path)

    def _converted(self) -> Path:
        """Copy this journal, beside it, to the path that `older` gives; write its entries to a new
        journal of today's format, and return the path of that.
        """
        new_path = self.path.with_name(f"{self.path.stem}.new{self.path.suffix}")
        _remove(new_path)
        entries = list(self.entries())
        with Journal.create(new_path, self.origin) as new:
            new._set("converted", f"from format {self.format}")  # noqa: SLF001
            new.append(entries)
            new._into_one_file()  # noqa: SLF001
        kept = older(self.path, self.format)
        _remove(kept)
        try:
            with contextlib.closing(sqlite3.connect(kept)) as copy:
                self._connection.backup(copy)
        except sqlite3.Error as error:
            raise JournalError(
                f"the journal {self.path} cannot be copied to {kept}: {error}"
            ) from error
        return new_path

    def _into_one_file(self) -> None:
        """Put everything into one file. A write-ahead log left beside it would be taken for the log
        of whatever file is put in its place.
        """
        try:
            self._connection.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} cannot be converted: {error}") from error

    def _known_format(self) -> int:
        found = self._get("format")
        if found.isdecimal() and int(found) in COLUMNS:
            return int(found)
        wrote = self._maybe("version") or "another version"
        raise JournalError(
            f"{self.path} has format {found:.20}, written by seerd {wrote:.40}; this is seerd "
            f"{VERSION}, which reads formats "
            f"{' and '.join(map(str, COLUMNS))}: use the version that wrote it, or a newer one"
        )

    @property
    def version(self) -> str:
        """The version of seerd that began it; empty where that was not recorded."""
        return self._maybe("version")

    @property
    def origin(self) -> float:
        """When the run began, in seconds since 1970, moved forward by the time for which it was
        interrupted; by `clock.wall`, unless the machine has booted since. Raises `JournalError` if
        that is not recorded.
        """
        if (known := origin_of(self._maybe("clock"))) is not None:
            return known
        try:
            origin = float(self._get("origin"))
        except ValueError:
            origin = math.nan
        if not abs(origin) < LATEST:
            raise JournalError(
                f"the journal {self.path} is damaged: it does not say when the run began"
            )
        return origin

    @origin.setter
    def origin(self, value: float) -> None:
        self._set("clock", noted(value))
        self._set("origin", repr(round(value + time.time() - wall(), 6)))

    @property
    def is_steady(self) -> bool:
        """Whether the machine has not booted since `origin` was recorded."""
        return origin_of(self._maybe("clock")) is not None

    @property
    def last_s(self) -> float:
        """When its last event was learned of, in seconds since the run began; 0 if there is none.

        Raises `JournalError`.
        """
        try:
            row = self._connection.execute("SELECT at FROM events ORDER BY seq DESC").fetchone()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} is damaged: {error}") from error
        return 0.0 if row is None else float(row[0])

    def append(self, entries: list[Entry]) -> None:
        """Commit these entries. Nothing of them may be acted upon before this returns. Raises
        `JournalError`.
        """
        rows = [
            (e.seq, e.event.at, encode_event(e.event), encode_decisions(e.decided)) for e in entries
        ]
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: sqlite3.Error) -> JournalError:
        run = self.path.parent.name
        then = f"; free space, then: seerd resume {run}" if "full" in str(error) else ""
        return JournalError(f"the journal {self.path} cannot be written: {error}{then}")

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Yield all entries after sequence number `after`, in order. Entries of format 1 are
        converted to what would be written now. Raises `JournalError` if the journal is damaged.
        """
        rows = self._rows(after if self.format == FORMAT else 0)
        if self.format == FORMAT:
            yield from (Entry(*row) for row in rows)
            return
        for seq, (event, decided) in enumerate(
            convert([(event, decided) for _, event, decided in rows]), 1
        ):
            if seq > after:
                yield Entry(seq, event, decided)

    def _rows(self, after: int) -> Iterator[tuple[int, AnyEvent, list[AnyDecision]]]:
        columns = f"seq, event, {COLUMNS[self.format]}"
        query = f"SELECT {columns} FROM events WHERE seq > ? ORDER BY seq"  # noqa: S608
        try:
            for seq, event, decided in self._connection.execute(query, (after,)):
                yield int(seq), decode_event(event), decode_decisions(decided)
        except (
            sqlite3.Error,
            msgspec.MsgspecError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise JournalError(f"the journal {self.path} is damaged: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _maybe(self, key: str) -> str:
        try:
            row = self._connection.execute(
                "SELECT value FROM meta WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            raise JournalError(f"{self.path} is not a journal of seerd: {error}") from error
        return "" if row is None else str(row[0])

    def _get(self, key: str) -> str:
        found = self._maybe(key)
        if not found:
            raise JournalError(f"{self.path} is not a journal of seerd: it has no {key}")
        return found

    def _set(self, key: str, value: str) -> None:
        try:
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        except sqlite3.Error as error:
            raise self._unwritable(error) from error


def older(path: Path, form: int) -> Path:
    """Return the path at which a journal of an older format is kept once it has been converted."""
    return path.with_name(f"{path.stem}.format{form}{path.suffix}")


def _replace(path: Path, new_path: Path) -> None:
    """Put the converted journal in the place of the one that has been copied."""
    with Journal(_connect(path, "rw"), path) as copied:
        copied._into_one_file()  # noqa: SLF001
    try:
        new_path.replace(path)
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be converted: {error.strerror}") from error


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None
        )
        if mode != "ro":
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be opened: {error}") from error
    return connection
