"""The journal: every event of a run and what was decided, in one SQLite file, with its format and
the version of seerd that wrote it.

The one rule: a batch of events is committed, as a whole or not at all, before any of its commands
is carried out and any of its facts acknowledged. `PRAGMA synchronous=FULL` keeps this true through
a power cut (sqlite.org/pragma.html#pragma_synchronous).

Rows and the table `meta` carry checksums, and a file beside it (`Tip`) says how far it goes. So a
damaged journal is never taken for another or a shorter one: readers get the events before the
damage and a `DamagedWarning`, and nothing is written to it. Older journals have checksums from the
first event that was written with them.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path

import msgspec

from seerd.clock import noted, origin_of, take_up, wall
from seerd.core.codec import FORMAT, decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.commands import AnyCommand
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.step import commands_of
from seerd.errors import DamagedJournalError, DamagedWarning, JournalError
from seerd.shell.journal_file import (
    Salvage,
    StoredRow,
    Tip,
    connect,
    damaged,
    linked,
    put_in_place,
    remove_file,
    sum_of,
    write_note,
)
from seerd.version import VERSION

LATEST = 1e12  # an upper limit for the start of a run (wall clock, seconds since 1970)
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, event BLOB NOT NULL, decisions BLOB NOT NULL,
    sum BLOB NOT NULL
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and what was decided."""

    seq: int  # sequence number, from 1
    event: AnyEvent  # what happened
    decided: list[AnyDecision]  # the decisions that followed

    @property
    def commands(self) -> list[AnyCommand]:
        """The commands among the decisions."""
        return commands_of(self.decided)


class _BrokenError(Exception):
    """The journal is not as it was written; the text says where."""


class Journal(contextlib.AbstractContextManager["Journal"]):
    """One run's journal. It may be opened `read_only` while the daemon writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._summed_after: int | None = None
        self.path = path
        self.damage = ""

    @classmethod
    def create(cls, path: Path, origin: float) -> Journal:
        """Make a journal of a run that began at `origin` (since 1970). Raises `JournalError`."""
        journal = cls(connect(path, "rwc"), path)
        try:
            journal._connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"{path} cannot be made: {error}") from error
        journal._set("format", str(FORMAT))
        journal._set("version", VERSION)
        journal._set("summed after", "0")
        journal.origin = origin
        journal._check()
        journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return journal

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """Open an existing journal. Raises `JournalError` if the file is no journal or of another
        format, and `DamagedJournalError` if it is damaged and not `read_only`, or has no whole
        event.
        """
        if not path.is_file():
            raise JournalError(
                f"{path} does not exist, so nothing is known of {path.parent.name}; what is left "
                f"of it is in {path.parent}"
            )
        with contextlib.ExitStack() as closing:
            journal = closing.enter_context(cls._opened(path))
            journal._check_format()  # noqa: SLF001
            if read_only:
                closing.pop_all()
                return journal
            with warnings.catch_warnings(action="ignore", category=DamagedWarning):
                whole_rows = sum(1 for _ in journal._rows(0))  # noqa: SLF001
            if journal.damage:
                raise DamagedJournalError(path.parent.name, journal.damage, whole_rows)
        journal = cls(connect(path, "rw"), path)
        journal._check()
        if journal._summed_after is None:  # every row that is written from now on has a checksum
            with journal._writing() as connection:
                connection.execute("ALTER TABLE events ADD COLUMN sum BLOB")
                write_note(connection, "summed after", str(journal._last()[0]))
            journal._check()
        return journal

    @classmethod
    def _opened(cls, path: Path) -> Journal:
        """Open the journal, or what is whole of it, to be read. Raises `JournalError`."""
        try:
            with contextlib.ExitStack() as closing:
                journal = closing.enter_context(cls(connect(path, "ro"), path))
                journal._get("format")  # noqa: SLF001
                journal._check()  # noqa: SLF001
                closing.pop_all()
                return journal
        except (JournalError, _BrokenError) as error:
            tip = Tip.read(path)
            if tip is None and isinstance(error, JournalError):
                raise
            if tip is None:
                raise JournalError(f"the journal {path} is damaged: {error}") from error
            journal = cls(sqlite3.connect(":memory:"), path)
            journal._salvage(str(error), tip)
            return journal

    def _check(self) -> None:
        """Compare `meta` with its checksum. Raises `_BrokenError`."""
        try:
            columns = [row[1] for row in self._connection.execute("PRAGMA table_info(events)")]
            meta = dict(self._connection.execute("SELECT key, value FROM meta"))
        except (sqlite3.Error, UnicodeError) as error:
            raise _BrokenError(str(error)) from error
        if not columns:
            raise _BrokenError("its table of events is gone")
        checksum, after = meta.pop("sum", None), meta.get("summed after")
        if checksum is None and after is None and "sum" not in columns:
            return
        if checksum != sum_of(meta) or "sum" not in columns or after is None:
            raise _BrokenError("what it says of itself does not fit its checksum")
        self._summed_after = int(after)

    def _check_format(self) -> None:
        """Raise `JournalError` unless this version reads the format."""
        written = self._get("format")
        if self._maybe("converted") == "from format 1":
            written = "1"
        if written != str(FORMAT):
            wrote = self._maybe("version") or "another version"
            raise JournalError(
                f"{self.path} has format {written:.20}, written by seerd {wrote:.40}; this is "
                f"seerd {VERSION}, which reads format {FORMAT}: use the version that wrote it"
                f"{', or a newer one' if written > str(FORMAT) else ''}"
            )

    @property
    def version(self) -> str:
        """The version of seerd that began it; empty where that was not recorded."""
        return self._maybe("version")

    @property
    def origin(self) -> float:
        """When the run began, in seconds since 1970 by `clock.wall` (unless the machine has booted
        since), moved forward by its interruptions. Raises `JournalError` if that is not recorded.
        """
        if (steady := origin_of(self._maybe("clock"))) is not None:
            return steady
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

    def take_up_wall(self) -> None:
        """Continue the previous process's `clock.wall`, unless the machine has booted."""
        take_up(self._maybe("clock"))

    @property
    def last_s(self) -> float:
        """When its last event was learned of, in seconds into the run. Raises `JournalError`."""
        try:
            row = self._connection.execute("SELECT at FROM events ORDER BY seq DESC").fetchone()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} is damaged: {error}") from error
        return 0.0 if row is None else float(row[0])

    def append(self, entries: list[Entry]) -> None:
        """Commit these entries, before they are acted upon. Raises `JournalError`."""
        rows = [
            StoredRow(e.seq, e.event.at, encode_event(e.event), encode_decisions(e.decided), b"")
            for e in entries
        ]
        with self._writing() as connection:
            _, _, before = self._last()
            for row in rows:
                before = linked(before, row)
                connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (*row[:4], before))
        with contextlib.suppress(OSError, sqlite3.Error):  # the journal itself is complete
            meta = dict(self._connection.execute("SELECT key, value FROM meta WHERE key <> 'sum'"))
            Tip(*self._last()[:2], meta).write(self.path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Commit the statements of the block as a whole. Raises `JournalError`."""
        try:
            with self._connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def _last(self) -> tuple[int, float, bytes]:
        """Return number, time and checksum of the last row; zero and nothing if there is none."""
        row = self._connection.execute(
            "SELECT seq, at, sum FROM events ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        return (0, 0.0, b"") if row is None else (int(row[0]), float(row[1]), row[2] or b"")

    def _unwritable(self, error: sqlite3.Error) -> JournalError:
        run = self.path.parent.name
        then = f"; free space, then: seerd resume {run}" if "full" in str(error) else ""
        return JournalError(f"the journal {self.path} cannot be written: {error}{then}")

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Yield the entries after sequence number `after`, in order; of a damaged journal those
        before the damage, with a `DamagedWarning`. Raises `JournalError` if an entry cannot be
        read, `DamagedJournalError` if none can.
        """
        for row in self._rows(after):
            try:
                entry = Entry(row.seq, decode_event(row.event), decode_decisions(row.decisions))
            except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
                raise JournalError(f"the journal {self.path} is damaged: {error}") from error
            yield entry

    def _rows(self, after: int) -> Iterator[StoredRow]:
        """Yield the rows after `after`; from the damage on what can be salvaged."""
        seq = after
        try:
            for row in self._checked(after):
                yield row
                seq = row.seq
        except _BrokenError as error:
            self._salvage(str(error), Tip.read(self.path))
            yield from self._unchecked(seq)

    def _checked(self, after: int) -> Iterator[StoredRow]:
        """Yield the rows after `after`. Raises `_BrokenError` where one does not fit the one before
        it, and at the end if there was more.
        """
        summed_after = self._summed_after
        tip = None if self.damage else Tip.read(self.path)
        if summed_after is None:
            yield from self._unchecked(after)
            return
        # Of a journal that is being written, the tip was read before its last rows.
        seq, before = after, b""
        if after > summed_after:
            before = next(iter(self._unchecked(after - 1)), StoredRow(0, 0.0, b"", b"", b"")).sum
        for row in self._unchecked(after):
            if row.seq != seq + 1:
                raise _BrokenError(f"SQLite finds no event {seq + 1}")
            if row.seq > summed_after:
                if linked(before, row) != row.sum:
                    raise _BrokenError(f"event {row.seq} does not fit its checksum")
                before = row.sum
            seq = row.seq
            yield row
        if tip is not None and tip.seq > seq:
            raise _BrokenError(f"SQLite finds no event {seq + 1}")
        if after == 0:
            self._check_pages()

    def _check_pages(self) -> None:
        """Look also at what only writing meets, as indexes. Raises `_BrokenError`."""
        try:
            result = str(self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
        except sqlite3.Error as error:
            raise _BrokenError(str(error)) from error
        if result != "ok":
            raise _BrokenError(f"SQLite says: {result.splitlines()[-1]}")

    def _unchecked(self, after: int) -> Iterator[StoredRow]:
        last = "sum" if self._summed_after is not None else "x''"
        query = f"SELECT seq, at, event, decisions, {last} FROM events WHERE seq > ?"  # noqa: S608
        try:
            rows = self._connection.execute(f"{query} ORDER BY seq", (after,))
            for seq, at, event, decided, check in rows:
                yield StoredRow(
                    int(seq), float(at), bytes(event), bytes(decided), bytes(check or b"")
                )
        except (sqlite3.Error, TypeError, ValueError) as error:
            if self._summed_after is not None:
                raise _BrokenError(str(error)) from error
            raise JournalError(f"the journal {self.path} is damaged: {error}") from error

    def _salvage(self, why: str, tip: Tip | None) -> None:
        """Read only what is whole from now on. Raises `DamagedJournalError` if nothing is."""
        meta = {} if tip is None else {**tip.meta, "sum": sum_of(tip.meta)}
        with contextlib.suppress(sqlite3.Error, _BrokenError, ValueError):
            self._check()
            meta = dict(self._connection.execute("SELECT key, value FROM meta"))
        whole = sqlite3.connect(":memory:")
        whole.executescript(SCHEMA)
        whole.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        self._summed_after = int(meta.get("summed after", 0))
        rows = list(self._whole_rows(self._summed_after))
        whole.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
        self._connection.close()
        self._connection = whole
        at = f", {rows[-1].at:.1f}s into the run" if rows else ""
        lost = f" of {tip.seq}" if tip is not None and tip.seq > len(rows) else ""
        run = self.path.parent.name
        self.damage = (
            f"the journal {self.path} is damaged: {why}. Its first {len(rows)} events{lost} are "
            f"whole{at}"
        )
        if not rows:
            raise DamagedJournalError(run, self.damage, 0)
        go_on = f"seerd resume {run} --up-to {len(rows)}"
        text = f"{self.damage}; what follows is of these alone. To go on from there: {go_on}"
        warnings.warn(DamagedWarning(text), stacklevel=2)

    def _whole_rows(self, summed_after: int) -> Iterator[StoredRow]:
        """Yield the rows from the first to the last before the damage."""
        seq, before = 0, b""
        with contextlib.suppress(_BrokenError):
            for row in self._checked(0):
                yield row
                seq, before = row.seq, row.sum
        if seq < summed_after:
            return
        salvage = Salvage(self.path)
        while True:
            fits = (row for row in salvage.rows(seq + 1) if linked(before, row) == row.sum)
            next_row = next(fits, None)
            if next_row is None:
                return
            yield next_row
            seq, before = next_row.seq, next_row.sum

    def cut(self, after: int) -> None:
        """Keep only the events up to `after`, and the damaged file. Raises `JournalError`."""
        copy_context().run(self._cut, after)  # the run's `wall` is its own

    def _cut(self, after: int) -> None:
        self.take_up_wall()
        entries = [entry for entry in self.entries() if entry.seq <= after]
        tip = Tip.read(self.path)
        lost_until = max(tip.at if tip else 0.0, self.lost_until)
        new_path = self.path.with_name(f"{self.path.stem}.new{self.path.suffix}")
        remove_file(new_path)
        with Journal.create(new_path, self.origin) as new:
            new._set("converted", f"cut after event {after}")  # noqa: SLF001
            new._set("lost until", repr(lost_until))  # noqa: SLF001
            new.append(entries)
            try:  # a log left beside it would be taken for the log of what is put in its place
                new._connection.execute("PRAGMA journal_mode=DELETE")  # noqa: SLF001
            except sqlite3.Error as error:
                raise new._unwritable(error) from error  # noqa: SLF001
        kept = damaged(self.path)
        try:
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy2(f"{self.path}{suffix}", f"{kept}{suffix}")
        except OSError as error:
            raise JournalError(
                f"the journal {self.path} cannot be copied to {kept}: {error.strerror}"
            ) from error
        put_in_place(new_path, self.path)

    @property
    def lost_until(self) -> float:
        """Until when `cut` has left out events, in seconds since the run began; 0: none."""
        return float(self._maybe("lost until") or 0.0)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _maybe(self, key: str) -> str:
        try:
            row = self._connection.execute(
                "SELECT value FROM meta NOT INDEXED WHERE key = ?", (key,)
            ).fetchone()
        except (sqlite3.Error, UnicodeError) as error:
            raise JournalError(f"{self.path} is not a journal of seerd: {error}") from error
        return "" if row is None else str(row[0])

    def _get(self, key: str) -> str:
        value = self._maybe(key)
        if not value:
            raise JournalError(f"{self.path} is not a journal of seerd: it has no {key}")
        return value

    def _set(self, key: str, value: str) -> None:
        with self._writing() as connection:
            write_note(connection, key, value)
