"""The checksums of a journal, and how far it goes.

The one rule: a checksum is over a row and the checksum of the row before. So a row that was
changed, left out or moved shows itself, and so do all that follow.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path

import msgspec

from seerd.shell.salvage import StoredRow

SUM = 16
"""Bytes of a checksum (BLAKE2b)."""


class Tip(msgspec.Struct, frozen=True):
    """How far a journal goes, in a file beside it that is written after each commit. A power cut
    may leave an older one, never a newer one.
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
