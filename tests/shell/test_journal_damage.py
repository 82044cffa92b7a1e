"""Journals that were damaged after they were written: never another state in silence, and all that
is whole can be read.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.checked_world import Behaviour, World
from seerd.commands import on_end
from seerd.core.codec import encode_decisions, encode_event
from seerd.core.events import JobStopAsked, RunResumed, StopAsked
from seerd.core.ledger import LOST
from seerd.core.step import step
from seerd.errors import DamagedJournalError, DamagedWarning, JournalError, UsageError
from seerd.runs import reading, runs
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal, damaged
from seerd.shell.journal_file import Tip
from tests.explanation.timelines import MakeFacts
from tests.tampered import without_sums

ORIGIN = 1_700_000_000.25


@pytest.fixture
def entries(facts: MakeFacts) -> list[Entry]:
    world = World(facts(), Behaviour(metric=lambda config, epoch: float(epoch)))
    world.run()
    return [Entry(seq, *row) for seq, row in enumerate(world.journal, 1)]


@pytest.fixture
def killed(entries: list[Entry], tmp_path: Path) -> Path:
    """The journal of a daemon that was killed: most of it is in the write-ahead log."""
    with Journal.create(tmp_path / "journal.db", ORIGIN) as journal:
        for at in range(0, len(entries), 5):
            journal.append(entries[at : at + 5])
        copy = tmp_path / "run" / "journal.db"
        copy.parent.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{journal.path}{suffix}", f"{copy}{suffix}")
        shutil.copy(journal.path.with_suffix(".tip"), copy.with_suffix(".tip"))
    return copy


@pytest.fixture
def over(killed: Path) -> Path:
    """The journal of a daemon that has ended: all is in one file."""
    Journal.open(killed).close()
    killed.with_name("journal.db-wal").unlink(missing_ok=True)
    return killed


def rows(journal: Path) -> tuple[list[bytes], str]:
    """What is read of it, and what is wrong with it."""
    with Journal.open(journal, read_only=True) as opened:
        told = list(opened.entries())
        assert opened.origin == pytest.approx(ORIGIN)
        return [encode_event(e.event) + encode_decisions(e.decided) for e in told], opened.damage


def flips(path: Path, dice: random.Random, count: int) -> Iterator[int]:
    """Turn over single bits of a file, one at a time; yield where."""
    whole = path.read_bytes()
    for _ in range(count):
        bit = dice.randrange(len(whole) * 8)
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        yield bit // 8
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("state", "suffix"),
    [("killed", ".db"), ("killed", ".db-wal"), ("killed", ".tip"), ("over", ".db")],
)
def test_a_flipped_bit_is_never_another_state_in_silence(
    request: pytest.FixtureRequest, state: str, suffix: str
) -> None:
    """What is read is what was written, from the first event on; if it is less, that is said."""
    path = request.getfixturevalue(state)
    expected, _ = rows(path)
    file, told = path.with_name(f"journal{suffix}"), 0
    for _ in flips(file, random.Random(7), 60):
        with warnings.catch_warnings(action="ignore", category=DamagedWarning):
            try:
                found, damage = rows(path)
            except JournalError:
                continue
        assert found == expected[: len(found)]
        assert damage or len(found) == len(expected)
        told += bool(damage)
    assert told or suffix == ".tip"


@pytest.mark.parametrize("offset", [0, 16, 18, 28, 100, 105])
def test_a_file_that_sqlite_refuses_gives_all_its_events(over: Path, offset: int) -> None:
    expected, _ = rows(over)
    data = bytearray(over.read_bytes())
    data[offset] ^= 0xFF
    over.write_bytes(data)
    with warnings.catch_warnings(action="ignore", category=DamagedWarning):
        assert rows(over)[0] == expected


def test_rows_are_found_where_no_pointer_leads(over: Path) -> None:
    expected, _ = rows(over)
    data = bytearray(over.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 12] = bytes(12)
    over.write_bytes(data)
    with warnings.catch_warnings(action="ignore", category=DamagedWarning):
        assert rows(over)[0] == expected


@pytest.mark.parametrize("key", [b"format", b"version", b"origin", b"clock"])
def test_what_the_journal_says_of_itself_may_be_no_text_any_more(over: Path, key: bytes) -> None:
    expected, _ = rows(over)
    data = bytearray(over.read_bytes())
    data[data.rindex(key, 4096, 8192) + len(key)] = 0xDF  # in its value, on the second page
    over.write_bytes(data)
    with pytest.warns(DamagedWarning):
        assert rows(over)[0] == expected


def test_what_is_only_met_in_writing_is_said_before_anything_is_written(over: Path) -> None:
    """Reading goes past an index, and the rows are whole."""
    expected, _ = rows(over)
    with contextlib.closing(sqlite3.connect(over)) as raw:
        (page,) = raw.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_meta_1'"
        ).fetchone()
    data = bytearray(over.read_bytes())
    data[(page - 1) * 4096 + 8] ^= 0x10  # where its first entry is said to lie
    over.write_bytes(data)
    with pytest.raises(DamagedJournalError, match=f"first {len(expected)} events are whole"):
        Journal.open(over)
    with pytest.warns(DamagedWarning, match=f"--up-to {len(expected)}"):
        assert rows(over)[0] == expected
    with pytest.warns(DamagedWarning):
        runs.cut(RunFolder(over.parent), len(expected))
    with Journal.open(over) as journal:
        journal.append([Entry(len(expected) + 1, StopAsked(at=1e6), [])])
    assert len(rows(over)[0]) == len(expected) + 1


def test_what_a_log_with_one_bad_bit_hides_is_read_and_said(killed: Path) -> None:
    """SQLite ends at the first frame whose checksum is wrong, and says nothing."""
    expected, _ = rows(killed)
    log = killed.with_name("journal.db-wal")
    data = bytearray(log.read_bytes())
    data[32 + 16] ^= 1  # the checksum of the first frame
    log.write_bytes(data)
    with pytest.warns(DamagedWarning, match=f"first {len(expected)} events are whole"):
        assert rows(killed)[0] == expected


def test_a_shorter_journal_is_said(killed: Path) -> None:
    """Its log is gone, or an older copy was put in its place."""
    killed.with_name("journal.db-wal").unlink()
    with pytest.raises(DamagedJournalError, match="start the run anew"):
        rows(killed)


def test_an_older_copy_says_how_much_is_missing(over: Path, entries: list[Entry]) -> None:
    copy = over.with_name("copy")
    shutil.copy(over, copy)
    with Journal.open(over) as journal:
        more = [Entry(len(entries) + 1, StopAsked(at=1e6), [])]
        journal.append(more)
    shutil.copy(copy, over)
    said = rf"first {len(entries)} events of {len(entries) + 1} are whole"
    with pytest.warns(DamagedWarning, match=said):
        assert len(rows(over)[0]) == len(entries)


def test_nobody_goes_on_from_a_damaged_journal(over: Path) -> None:
    _change(over, 9)
    with pytest.raises(DamagedJournalError, match=r"event 9 .*--up-to 8") as raised:
        Journal.open(over)
    assert raised.value.whole == 8


def test_rows_in_another_order_are_damage(over: Path, entries: list[Entry]) -> None:
    """Each with a checksum that fits it alone."""
    other = over.parent / "other.db"
    with Journal.create(other, ORIGIN) as journal:
        journal.append([entries[0], *(Entry(e.seq - 1, e.event, e.decided) for e in entries[2:4])])
    with contextlib.closing(sqlite3.connect(other)) as raw:
        (taken,) = raw.execute("SELECT event, decisions, sum FROM events WHERE seq = 3").fetchall()
    with contextlib.closing(sqlite3.connect(over, isolation_level=None)) as raw:
        raw.execute(
            "UPDATE events SET event = ?, decisions = ?, sum = ?, at = ? WHERE seq = 3",
            (*taken, entries[3].event.at),
        )
    with pytest.raises(DamagedJournalError, match="event 3 does not fit"):
        Journal.open(over)


def _change(journal: Path, seq: int) -> None:
    connection = sqlite3.connect(journal)
    connection.execute("UPDATE events SET decisions = CAST('[]' AS BLOB) WHERE seq = ?", (seq,))
    connection.execute("UPDATE events SET at = at + 1 WHERE seq = ?", (seq,))
    connection.commit()
    connection.close()


def test_a_run_goes_on_from_what_is_whole_and_keeps_the_damaged_journal(over: Path) -> None:
    folder = RunFolder(over.parent)
    kept, whole = over.read_bytes(), rows(over)[0]
    with pytest.raises(UsageError, match="is whole"):
        runs.cut(folder, 8)
    _change(over, 9)
    damaged_bytes = over.read_bytes()
    assert damaged_bytes != kept
    with pytest.warns(DamagedWarning), pytest.raises(UsageError, match="8 events"):
        runs.cut(folder, 9)
    aside = damaged(over)
    with pytest.warns(DamagedWarning) as said:
        runs.cut(folder, 8)
    assert len(said) == 1
    assert aside.read_bytes() == damaged_bytes
    assert rows(over) == (whole[:8], "")
    assert reading.read(folder).clock.seq == 8
    tip = Tip.read(over)
    assert tip is not None
    assert tip.seq == 8
    with Journal.open(over) as journal:
        assert journal.lost_until > 0


def test_a_resume_does_not_say_twice_that_the_journal_is_damaged(over: Path) -> None:
    _change(over, 9)
    with warnings.catch_warnings(action="error"):
        on_end.catch_up(RunFolder(over.parent))
    with pytest.raises(DamagedJournalError):
        Journal.open(over)


def test_a_cut_that_is_broken_off_leaves_the_damaged_journal(over: Path) -> None:
    whole, _ = rows(over)
    _change(over, 9)
    tip = over.with_suffix(".tip")
    tip.unlink()
    (tip / "in the way").mkdir(parents=True)
    with pytest.raises(JournalError, match="cannot be replaced"), pytest.warns(DamagedWarning):
        runs.cut(RunFolder(over.parent), 8)
    with pytest.warns(DamagedWarning, match="first 8 events"):
        assert rows(over)[0] == whole[:8]
    shutil.rmtree(tip)
    with pytest.warns(DamagedWarning):
        runs.cut(RunFolder(over.parent), 8)
    assert rows(over) == (whole[:8], "")


def test_what_may_have_been_spent_in_the_lost_part_counts(facts: MakeFacts) -> None:
    """All GPUs that the run may have, but for those that are charged in any case."""
    world = World(facts(), Behaviour(metric=lambda config, epoch: float(epoch)))
    world.begin()
    state = world.state
    most = state.facts.cluster.most_gpus(state.facts.problem.limits.max_gpus) or 0
    while not 0 < (held := sum(charge.gpus for charge in state.ledger.open.values())) < most:
        world.turn()
    now, before = state.now, state.ledger.spent_gpu_s(state.now + 10)
    alive = tuple(state.fleet.instances)
    step(state, RunResumed(at=now + 10, alive=alive, lost=(now, now + 8)))
    lost = [charge for charge in state.ledger.closed if charge.what.startswith(LOST)]
    assert sum(charge.gpu_s(0.0) for charge in lost) == pytest.approx(8 * (most - held))
    assert state.ledger.spent_gpu_s(now + 10) == pytest.approx(before + 8 * (most - held))


def test_a_journal_from_before_checksums_has_them_from_its_next_event(over: Path) -> None:
    expected, _ = rows(over)
    without_sums(over)
    assert rows(over) == (expected, "")
    with Journal.open(over) as journal:
        journal.append([Entry(len(expected) + 1, StopAsked(at=1e6), [])])
        journal.append([Entry(len(expected) + 2, StopAsked(at=1e6), [])])
    assert len(rows(over)[0]) == len(expected) + 2
    _change(over, len(expected) + 2)
    with pytest.warns(DamagedWarning, match=f"event {len(expected) + 2} does not fit"):
        assert len(rows(over)[0]) == len(expected) + 1


@given(st.binary(max_size=5000), st.binary(max_size=9000))
def test_whatever_lies_there_is_read_or_said(
    tmp_path_factory: pytest.TempPathFactory, file: bytes, log: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "journal.db"
    path.write_bytes(file)
    path.with_name("journal.db-wal").write_bytes(log)
    Tip(3, 1.0, {"format": "2", "summed after": "0"}).write(path)
    with pytest.raises(JournalError), Journal.open(path, read_only=True) as journal:
        list(journal.entries())


def test_long_rows_are_salvaged_from_all_their_pages(tmp_path: Path) -> None:
    """A row of many pages, among short ones."""
    path = tmp_path / "journal.db"
    job = JobStopAsked(at=0.0, request="r", job="x" * 5_000_000)
    with Journal.create(path, ORIGIN) as journal:
        journal.append([Entry(1, StopAsked(at=0.0), []), Entry(2, job, [])])
        journal.append([Entry(3, StopAsked(at=0.0), [])])
    expected, _ = rows(path)
    data = bytearray(path.read_bytes())
    data[:16] = b"x" * 16
    path.write_bytes(data)
    with pytest.warns(DamagedWarning, match="first 3 events"):
        assert rows(path)[0] == expected
