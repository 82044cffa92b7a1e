"""Single bits of a journal that are turned over, in its file, its write-ahead log and its tip: what
whoever reads it then gets. Prints JSON: `python bench/bit_flips.py [--flips 2000] [--seed 0]`.

    harmless        everything is read, and nothing is said
    told            it is said that the journal is damaged, and the events before that are read
    unreadable      it is said, and nothing can be read
    another state   something else is read, and nothing is said: must be 0
    cut too early   of those told: an event was lost although neither it nor one before it was hit
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import journal as made

from seerd.core.codec import encode_decisions, encode_event
from seerd.errors import DamagedWarning, JournalError
from seerd.shell.journal import Entry, Journal
from seerd.shell.journal_file import SUM

ORIGIN = 1_700_000_000.25
Read = tuple[float, list[bytes]]


def main() -> None:
    """Flip bits of a journal that is closed, and of one whose daemon was killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    entries = [Entry(n, *row) for n, row in enumerate(made.run(12).journal, 1)]
    told: dict[str, Any] = {"events": len(entries), "flips": asked.flips}
    for name, live in (("closed", False), ("killed", True)):
        with written(entries, live=live) as folder:
            told[name] = flipped(folder, entries, asked.flips // 2, random.Random(asked.seed))
    print(json.dumps(told))


@contextmanager
def written(entries: list[Entry], *, live: bool) -> Iterator[Path]:
    """A folder with the journal, as a daemon leaves it that ended, or that was killed."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as writing:
        folder, copy = Path(name), Path(name) / "copy"
        journal = writing.enter_context(Journal.create(folder / "journal.db", ORIGIN))
        for at in range(0, len(entries), 3):
            journal.append(entries[at : at + 3])
        if not live:
            writing.close()
        copy.mkdir()
        for path in folder.glob("journal.*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, copy)
        yield copy


def flipped(folder: Path, entries: list[Entry], flips: int, dice: random.Random) -> dict[str, Any]:
    """Flip so many single bits, one at a time."""
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        whole = (journal.origin, [_row(entry) for entry in journal.entries()])
    files = sorted(path for path in folder.iterdir() if not path.name.endswith("-shm"))
    sizes = [path.stat().st_size for path in files]
    found: Counter[str] = Counter()
    shares = []
    for _ in range(flips):
        path = dice.choices(files, sizes)[0]
        original = path.read_bytes()
        bit = dice.randrange(len(original) * 8)
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        kind, seen = outcome(folder, whole)
        found[kind] += 1
        if kind == "told" and seen < len(entries):
            shares.append(seen / len(entries))
            found["cut too early"] += _is_early(damaged, original, bit // 8, whole[1], seen)
        path.write_bytes(original)
    files_bytes = {path.name: size for path, size in zip(files, sizes, strict=True)}
    share = sum(shares) / max(1, len(shares))
    return {**found, "another state": found["another state"], "share read": share, **files_bytes}


def _is_early(damaged: bytes, original: bytes, at: int, rows: list[bytes], seen: int) -> bool:
    """Whether the first event that is not read is whole in the file, and the bit is not near it."""
    start = original.find(rows[seen])
    return (
        start >= 0
        and damaged.find(rows[seen]) >= 0
        and not start - 40 < at < start + len(rows[seen]) + SUM
    )


def outcome(folder: Path, whole: Read) -> tuple[str, int]:
    """What reading it gives, and how many events."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        copy = shutil.copytree(folder, Path(name) / "run")
        try:
            with Journal.open(copy / "journal.db", read_only=True) as journal:
                rows = [_row(entry) for entry in journal.entries()]
                read = (journal.origin, rows)
        except JournalError:
            return "unreadable", 0
    if any(issubclass(one.category, DamagedWarning) for one in said):
        same = read[0] == whole[0] and rows == whole[1][: len(rows)]
        return "told" if same else "another state", len(rows)
    return "harmless" if read == whole else "another state", len(rows)


def _row(entry: Entry) -> bytes:
    return encode_event(entry.event) + encode_decisions(entry.decided)


if __name__ == "__main__":
    main()
