"""The file of a journal: its checksums, how far it goes (`Tip`), how it is replaced, and what can
be read of a damaged one from its bytes and those of its write-ahead log, where SQLite reads none,
or not all.

The one rule: a checksum is over a row and the checksum of the row before, so a row that was
changed, left out or moved shows itself, and what looks like a row in a damaged file is believed
only if it fits. The format of the file: sqlite.org/fileformat2.html, sections 1.6, 2.1 and 4.1.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from seerd.errors import JournalError

SUM = 16  # bytes of a checksum (BLAKE2b)
PAGE = 4096  # bytes of a page, as SQLite makes files since version 3.12, if the file does not say
LOG_HEADER, FRAME_HEADER = 32, 24
LEAF_HEADER = 8
SIZES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}
"""Bytes of a value, by the type that a record has for it."""
MOST_VERSIONS = 4  # the most versions of a page that are tried for the rest of a row
MOST_TRIED = 20_000  # the most pages that are tried for the rest of a row


class StoredRow(NamedTuple):
    """A row or what looks like one; `sum`: its checksum."""

    seq: int
    at: float
    event: bytes
    decisions: bytes
    sum: bytes


class Tip(msgspec.Struct, frozen=True):
    """How far a journal goes, in a file beside it, written after each commit; after a power cut
    perhaps an older one, never a newer one.
    """

    seq: int  # number of the last row
    at: float  # time of the last row
    meta: dict[str, str]  # what the journal says of itself, but for its checksum

    @classmethod
    def read(cls, journal: Path) -> Tip | None:
        """Read the tip of the journal at this path; None if there is none, or it is torn."""
        try:
            check, text = tip_path(journal).read_bytes().split(b" ", 1)
            tip = msgspec.json.decode(text, type=cls)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        return tip if check == _crc(text) else None

    def write(self, journal: Path) -> None:
        """Write it. Raises `OSError`."""
        text = msgspec.json.encode(self)
        descriptor = os.open(tip_path(journal), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, os.pwrite(descriptor, _crc(text) + b" " + text, 0))
        finally:
            os.close(descriptor)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file, in a mode of SQLite: ro, rw or rwc. Raises `JournalError`."""
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


def write_note(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Write a value of `meta`, with the checksum if the journal has checksums."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key <> 'sum'"))
    if "summed after" in meta:
        row = ("sum", sum_of(meta))
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)


def tip_path(journal: Path) -> Path:
    """Return where the tip of the journal at this path is."""
    return journal.with_suffix(".tip")


def _crc(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


def linked(before: bytes, row: StoredRow) -> bytes:
    """Compute the checksum of a row from that of the row before it, empty for the first."""
    numbers = struct.pack(">qdq", row.seq, row.at, len(row.event))
    whole = b"".join((before, numbers, row.event, row.decisions))
    return hashlib.blake2b(whole, digest_size=SUM).digest()


def sum_of(meta: dict[str, str]) -> str:
    """Compute the checksum of a journal's `meta`."""
    return hashlib.blake2b(msgspec.json.encode(sorted(meta.items())), digest_size=SUM).hexdigest()


def damaged(path: Path) -> Path:
    """Return a free path for a damaged journal that is being replaced."""
    numbers = itertools.count(1)
    names = (path.with_name(f"{path.stem}.damaged{n}{path.suffix}") for n in numbers)
    return next(name for name in names if not name.exists())


def put_in_place(new_path: Path, path: Path) -> None:
    """Put a new journal in the place of a copied one, so that one exists at each moment. Its tip is
    put first, since a tip that goes further than its journal means damage.
    """
    remove_file(path, "-wal", "-shm")
    try:
        tip_path(new_path).replace(tip_path(path))
        new_path.replace(path)
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be replaced: {error.strerror}") from error


def remove_file(path: Path, *suffixes: str) -> None:
    """Remove a journal and its logs, or only those of these suffixes."""
    for suffix in suffixes or ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


class Salvage:
    """The pages of a journal's file and log, read once."""

    def __init__(self, path: Path) -> None:
        self._pages: list[bytes] = []
        self._by_number: dict[int, list[bytes]] = {}
        file, log = _bytes(path), _bytes(path.with_name(f"{path.name}-wal"))
        written = int.from_bytes(file[16:18], "big")
        self._size = size = written if written >= 512 and written.bit_count() == 1 else PAGE
        for number, start in enumerate(range(0, len(file), size), 1):
            self._add(number, file[start : start + size])
        for start in range(LOG_HEADER, len(log), FRAME_HEADER + size):
            number = int.from_bytes(log[start : start + 4], "big")
            self._add(number, log[start + FRAME_HEADER :][:size])
        self._rows: dict[int, list[StoredRow]] = {}
        for page in self._pages:
            for row in self._rows_at(page, _pointers(page)):
                self._rows.setdefault(row.seq, []).append(row)

    def rows(self, seq: int) -> Iterator[StoredRow]:
        """Yield what looks like this row: first what pages point to, then what is anywhere."""
        yield from self._rows.get(seq, [])
        start = _varint_bytes(seq)
        for page in self._pages:
            yield from self._rows_at(page, _before(page, start))

    def _add(self, number: int, page: bytes) -> None:
        self._pages.append(page)
        self._by_number.setdefault(number, []).append(page)

    def _rows_at(self, page: bytes, offsets: Iterator[int]) -> Iterator[StoredRow]:
        for offset in offsets:
            try:
                length, after = _varint(page, offset)
                seq, after = _varint(page, after)
                for payload in self._payloads(page, after, length):
                    yield _row(seq, payload)
            except (IndexError, ValueError, struct.error):
                continue

    def _payloads(self, page: bytes, start: int, length: int) -> Iterator[bytes]:
        """Yield what the payload of a cell may be (section 1.6), from its and other pages."""
        most = self._size - 35
        if length <= most:
            yield page[start : start + length]
            return
        least = (self._size - 12) * 32 // 255 - 23
        here = least + (length - least) % (self._size - 4)
        here = here if here <= most else least
        yield from self._longer(page[start : start + here], page[start + here :][:4], length)

    def _longer(self, begun: bytes, following: bytes, length: int) -> Iterator[bytes]:
        """Yield `begun` with what follows on other pages, in their versions, the newest first."""
        tried, waiting = 0, [(begun, following)]
        while waiting and tried < MOST_TRIED:
            begun, following = waiting.pop()
            tried += 1
            if len(begun) >= length:
                yield begun[:length]
                continue
            versions = self._by_number.get(int.from_bytes(following, "big"), [])
            newest = list(dict.fromkeys(reversed(versions)))[:MOST_VERSIONS]
            waiting += [(begun + page[4:], page[:4]) for page in reversed(newest)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _pointers(page: bytes) -> Iterator[int]:
    """Yield where the cells of a page begin, if it is a leaf."""
    for at in range(LEAF_HEADER, len(page) - 1, 2):
        offset = int.from_bytes(page[at : at + 2], "big")
        if not at < offset < len(page):
            return
        yield offset


def _before(page: bytes, key: bytes) -> Iterator[int]:
    """Yield where a cell with this encoded key may begin: its length takes up to three bytes."""
    at = page.find(key)
    while at >= 0:
        yield from range(max(0, at - 3), at)
        at = page.find(key, at + 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an integer and where it ends. Raises `ValueError` (too long), `IndexError` (cut off)."""
    value = 0
    for end in range(at, at + 4):
        value = value << 7 | data[end] & 0x7F
        if data[end] < 0x80:
            return value, end + 1
    raise ValueError("too long")


def _varint_bytes(value: int) -> bytes:
    parts = [value & 0x7F]
    while value := value >> 7:
        parts.append(value & 0x7F | 0x80)
    return bytes(reversed(parts))


def _row(seq: int, payload: bytes) -> StoredRow:
    """Read a record of a row. Raises `ValueError` if it is none."""
    ends, at = _varint(payload, 0)
    values: list[bytes] = []
    kinds: list[int] = []
    start = ends
    while at < ends:
        kind, at = _varint(payload, at)
        size = SIZES[kind] if kind in SIZES else (kind - 12) // 2
        kinds.append(kind)
        values.append(payload[start : start + size])
        start += size
    if len(values) != len(StoredRow._fields) or start != len(payload):
        raise ValueError("another record")
    number: float = {8: 0, 9: 1}.get(kinds[1], int.from_bytes(values[1], "big", signed=True))
    if kinds[1] == 7:  # else it is integral
        number = struct.unpack(">d", values[1])[0]
    return StoredRow(seq, float(number), values[2], values[3], values[4])
