"""The agent's journal: what it says it has kept is there after any crash."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.agent.journal import AgentJournal, AgentJournalError, facts_after
from seerd.agent.protocol import (
    FACTS,
    Exited,
    Grow,
    Job,
    Noticed,
    Prepare,
    Prepared,
    Refused,
    Reported,
    Start,
    Started,
    Stop,
    StoreProof,
)
from seerd.agent.wire import decode, encode

JOB = Job(
    "s", "train.py", [], "python", "python3", {}, ["make"], "store", "accuracy", "max", [1], 1, 10.0
)
PREPARE = Prepare("p", JOB)
START = Start("a", "t1", 1, [0], {"lr": 0.1}, 17, [])
STOP = Stop("z", "t1", 1, checkpoint=False, grace_s=0.0)
GROW = Grow("g", "t1", 1, [0, 1])


def prepared(seq: int = 0) -> Any:
    return Prepared(seq, 1.0, "p")


def started(seq: int = 0) -> Any:
    return Started(seq, 2.0, "a", "t1", 1, 4711)


def reported(epoch: int, seq: int = 0) -> Any:
    return Reported(seq, 3.0, "t1", 1, epoch, {"accuracy": 0.5}, 0.1)


def exited(seq: int = 0) -> Any:
    return Exited(seq, 4.0, "t1", 1, "finished", 0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., AgentJournal]]:
    """Opens the journal again, as the next agent would, takes these orders and adds these facts."""
    journals: list[AgentJournal] = []

    def open_it(*steps: Any) -> AgentJournal:
        for journal in journals:
            journal.close()
        journals.append(written(tmp_path / "j", *steps))
        return journals[-1]

    yield open_it
    for journal in journals:
        journal.close()


def written(path: Path, *steps: Any) -> AgentJournal:
    """A journal in which these orders were taken and these facts added."""
    journal = AgentJournal(path)
    for step in steps:
        if isinstance(step, FACTS):
            journal.add([step])
        else:
            journal.take(step)
    return journal


def after(journal: AgentJournal, seen: int) -> list[Any]:
    """The facts with higher numbers."""
    return [decode(line) for line in journal.lines_after(seen)]


def test_facts_are_numbered_from_one_and_come_back_with_the_job(opened):
    opened(PREPARE, prepared(), START, started(), reported(1))
    journal = opened()
    assert [fact.seq for fact in after(journal, 0)] == [1, 2, 3]
    assert after(journal, 1) == [started(2), reported(1, 3)]
    assert journal.prepared is not None
    assert (journal.last, journal.prepared.job) == (3, JOB)


def test_every_order_and_fact_is_on_the_disk_before_anything_follows(opened, tmp_path, monkeypatch):
    flushed: list[int] = []
    flush = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (flush(file), flushed.append(os.fstat(file).st_size))
    )
    journal = opened()
    for step in (PREPARE, prepared(), START, started(), reported(1), exited(), STOP, GROW):
        journal.add([step]) if isinstance(step, FACTS) else journal.take(step)
        assert flushed[-1] == (tmp_path / "j").stat().st_size


def test_facts_that_were_noted_are_on_the_disk_when_they_have_been_flushed(
    opened, tmp_path, monkeypatch
):
    flushed: list[int] = []
    flush = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (flush(file), flushed.append(os.fstat(file).st_size))
    )
    journal = opened()
    journal.note([started(), reported(1)])
    journal.note([exited()])
    assert [fact.seq for fact in after(journal, 0)] == [1, 2, 3]
    flushes = len(flushed)
    journal.flush()
    journal.flush()
    assert flushed[flushes:] == [(tmp_path / "j").stat().st_size]
    journal.note([exited()])
    journal.close()
    assert flushed[-1] == (tmp_path / "j").stat().st_size


def test_facts_that_the_daemon_has_need_not_be_flushed(opened, monkeypatch):
    journal = opened(START)
    flushes: list[int] = []
    monkeypatch.setattr(os, "fsync", flushes.append)
    journal.note([started(), reported(1)])
    journal.acknowledge(2)
    journal.flush()
    assert not flushes
    journal.note([reported(2), exited()])
    journal.acknowledge(3)
    journal.flush()
    assert len(flushes) == 1


def test_an_attempt_without_an_end_is_open(opened):
    opened(START, started(), reported(1), reported(2))
    assert opened().open == {("t1", 1): [reported(1, 2), reported(2, 3)]}
    opened(exited())
    assert opened().open == {}


def test_signed_urls_and_secrets_of_orders_are_not_kept(opened, tmp_path):
    secret = replace(START, secrets={"TOKEN": "hidden"})
    assert opened().take(secret)
    assert "hidden" not in (tmp_path / "j").read_text()
    assert "hidden" not in repr(secret)
    order = replace(PREPARE, proof=StoreProof("https://put?signature", "https://get?signature"))
    assert opened().take(order)
    assert opened(order, prepared()).prepared == order
    assert "signature" not in (tmp_path / "j").read_text()
    assert opened().prepared == PREPARE


def test_an_order_is_new_once(opened):
    journal = opened()
    assert [journal.take(START), journal.take(START), journal.take(STOP)] == [True, False, True]


@pytest.mark.parametrize("outcome", [started(), exited(), Refused(0, 1.0, "a", "no")])
def test_an_order_with_an_outcome_stays_taken(opened, outcome):
    opened(START, outcome)
    assert not opened().take(START)


@pytest.mark.parametrize("order", [STOP, GROW])
def test_orders_about_attempts_that_have_died_with_the_agent_are_over(opened, order):
    opened(START, started(), order)
    assert not opened().take(order)


@pytest.mark.parametrize("order", [START, PREPARE])
def test_an_order_whose_outcome_was_never_told_is_new_for_the_next_agent(opened, order):
    opened(order)
    assert opened().take(order)


@given(st.data())
@settings(max_examples=30)
def test_torn_at_any_byte_every_whole_line_is_kept_and_writing_goes_on(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        written(
            path, PREPARE, prepared(), START, started(), reported(1), reported(2), exited()
        ).close()
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        facts = sum(b'"seq"' in line for line in whole[:cut].split(b"\n")[:-1])
        journal = AgentJournal(path)
        assert journal.last == facts
        journal.add([prepared()])
        journal.close()
        again = AgentJournal(path)
        assert [fact.seq for fact in after(again, 0)] == list(range(1, facts + 2))
        again.close()


def test_torn_at_every_byte_of_the_last_line(opened, tmp_path):
    path = tmp_path / "j"
    opened(START, started(), reported(1)).close()
    whole = path.read_bytes()
    for cut in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        path.write_bytes(whole[:cut])
        journal = AgentJournal(path)
        assert journal.last == 1
        journal.close()


@pytest.mark.parametrize("changed", [(b"started", b"st\0rted"), (b"t1", b"t2"), (b"\t", b" ")])
def test_a_journal_that_is_damaged_before_its_last_line_is_set_aside(opened, tmp_path, changed):
    """The agent begins anew, and a daemon that knows of more gives the instance up."""
    path = tmp_path / "j"
    opened(START, started(), reported(1)).close()
    damaged = path.read_bytes().replace(*changed, 1)
    path.write_bytes(damaged)
    journal = AgentJournal(path)
    assert (journal.last, journal.open, journal.lines_after(0)) == (0, {}, [])
    assert (tmp_path / "j.damaged").read_bytes() == damaged
    journal.add([prepared()])
    journal.close()
    assert after(opened(), 0) == [prepared(1)]


def test_a_last_line_that_may_have_been_told_is_damaged_and_not_torn(opened, tmp_path):
    """Otherwise another fact would get its number, and a daemon that has read it would miss that
    one.
    """
    path = tmp_path / "j"
    opened(START, started(), reported(1)).close()
    whole = path.read_bytes()
    for at in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        journal = AgentJournal(path)
        assert journal.last == 0, at
        journal.close()


def test_of_a_damaged_journal_the_facts_before_the_damage_can_be_read(opened, tmp_path):
    path = tmp_path / "j"
    opened(START, started(), reported(1), reported(2)).close()
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"1", b"2", 1)
    path.write_bytes(b"\n".join(lines))
    assert facts_after(path, 0) == [started(1)]


@given(st.data())
def test_a_flipped_bit_gives_no_other_facts(data):
    """Each line is as it was written, or the journal is damaged."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "j"
        journal = AgentJournal(path)
        journal.take(START)
        journal.add([started(), reported(1), reported(2)])
        journal.close()
        whole, facts = bytearray(path.read_bytes()), facts_after(path, 0)
        bit = data.draw(st.integers(0, len(whole) * 8 - 1))
        whole[bit // 8] ^= 1 << bit % 8
        path.write_bytes(whole)
        found = facts_after(path, 0)
        assert found == facts[: len(found)]


def test_a_journal_of_an_earlier_version_is_read_without_checksums(opened, tmp_path):
    path = tmp_path / "j"
    path.write_bytes(encode(START) + encode(started(1)))
    journal = opened(reported(1))
    assert [fact.seq for fact in after(journal, 0)] == [1, 2]


def test_what_is_acknowledged_leaves_memory_but_can_still_be_read(opened):
    journal = opened(START, started(), reported(1), reported(2))
    journal.acknowledge(2)
    journal.acknowledge(1)
    journal.acknowledge(99)
    assert journal._waiting == [encode(reported(2, 3))]
    assert after(journal, 2) == [reported(2, 3)]
    assert [fact.seq for fact in after(journal, 0)] == [1, 2, 3]
    assert opened()._waiting == [encode(reported(2, 3))]


class Disk:
    """A file that takes three bytes at once, and only so many."""

    def __init__(self, file: Any, room: int) -> None:
        self.file = file
        self.room = room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(3, self.room)
        self.room -= taken
        return self.file.write(data[:taken])

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()


def test_a_disk_that_takes_a_line_in_pieces_gets_all_of_it(opened):
    journal = opened()
    journal._file = Disk(journal._file, 10**6)
    journal.add([prepared()])
    assert after(opened(), 0) == [prepared(1)]


def test_a_full_disk_is_an_error_and_nothing_is_told(opened):
    journal = opened()
    journal._file = Disk(journal._file, 20)
    with pytest.raises(AgentJournalError, match="No space left"):
        journal.add([prepared()])
    assert after(journal, 0) == []
    assert opened().last == 0


def test_what_the_cloud_has_announced_belongs_to_no_attempt_and_is_remembered(opened):
    opened(PREPARE, prepared(), START, started(), Noticed(0, 5.0, "interruption", 60.0))
    again = opened()
    assert (again.last, list(again.open)) == (3, [("t1", 1)])
    assert not again.is_news(Noticed(0, 9.0, "interruption", 700.0))
    assert again.is_news(Noticed(0, 9.0, "rebalance", None))
    assert again.open["t1", 1] == []
    assert after(again, 2) == [Noticed(3, 5.0, "interruption", 60.0)]
