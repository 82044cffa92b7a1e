"""What happens to files of journals while nobody has them open.

The one rule: nothing here knows what is in them.
"""

from __future__ import annotations

import random
from pathlib import Path

LOG_HEADER, FRAME = 32, 24 + 4096
"""Bytes of SQLite's write-ahead log: at its beginning, and of each page in it."""


def flip_a_bit(path: Path, dice: random.Random) -> None:
    """Change one bit of the file, if it has any."""
    data = bytearray(path.read_bytes())
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)


def files_of(journal: Path) -> dict[Path, bytes]:
    """Return what is in the files of a coordinator's journal."""
    log, tip = journal.with_name(f"{journal.name}-wal"), journal.with_suffix(".tip")
    return {path: path.read_bytes() for path in (journal, log, tip) if path.exists()}


def put_back(journal: Path, files: dict[Path, bytes]) -> None:
    """Make these the files of the journal, which nobody has open."""
    for suffix in ("", "-wal", "-shm"):
        journal.with_name(journal.name + suffix).unlink(missing_ok=True)
    journal.with_suffix(".tip").unlink(missing_ok=True)
    for path, data in files.items():
        path.write_bytes(data)


def without_tail(files: dict[Path, bytes], dice: random.Random) -> dict[Path, bytes]:
    """Return the same with the end of the log lost, up to half of it; the tip may be lost too."""
    kept = {path: data for path, data in files.items() if path.suffix != ".tip"}
    kept = files if dice.random() < 0.5 else kept
    for log, data in files.items():
        if log.name.endswith("-wal"):
            frames = max(0, len(data) - LOG_HEADER) // FRAME
            lost = dice.randint(min(1, frames // 2), min(frames // 2, 20))
            kept = {**kept, log: data[: LOG_HEADER + (frames - lost) * FRAME]}
    return kept
