"""The journal: what was committed is read back exactly, a damaged or foreign file is told, a reader can follow the writer."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from planner.model import ClusterFacts, Limits, PolicyParams, Problem
from planner.space import Parameter, Space
from seerd.core.commands import SetTimer
from seerd.core.events import RunFacts, RunStarted, StopAsked, TrialReported
from seerd.errors import JournalError, ReplayError
from seerd.replay import replay
from seerd.shell.journal import Entry, Journal

SPACE = Space((Parameter("lr", low=1e-4, high=1.0, log=True), Parameter("kind", choices=("sgd", 1, 2.0, True))))
FACTS = RunFacts(
    run="r",
    name="n",
    metric="accuracy",
    mode="max",
    problem=Problem(Limits(60.0, 320.0, 8), SPACE, PolicyParams(eta=2, t_min_s=15.0)),
    cluster=ClusterFacts(billing="held", gpus_per_instance=8, max_instances=1),
)


def test_what_was_committed_is_read_back_exactly(tmp_path: Path) -> None:
    entries = [
        Entry(1, RunStarted(at=0.1, facts=FACTS), [SetTimer(id="1.0", due=0.30000000000000004)]),
        Entry(
            2,
            TrialReported(
                at=1.0, instance="i", fact=1, happened=0.9, trial="t0001", attempt=1, epoch=1, metric=None, unit_s=0.1
            ),
            [],
        ),
        Entry(3, StopAsked(at=2.0), []),
    ]
    with Journal.create(tmp_path / "journal.db", 1_700_000_000.25) as journal:
        journal.append(entries[:1])
        with Journal.open(tmp_path / "journal.db", read_only=True) as reader:
            assert list(reader.entries()) == entries[:1]
            journal.append(entries[1:])
            assert list(reader.entries(after=1)) == entries[1:]
            assert reader.origin == 1_700_000_000.25


def test_a_batch_is_committed_whole_or_not_at_all(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        journal.append([Entry(1, StopAsked(at=0.0), [])])
        with pytest.raises(JournalError):
            journal.append([Entry(2, StopAsked(at=0.0), []), Entry(1, StopAsked(at=0.0), [])])
        assert [entry.seq for entry in journal.entries()] == [1]


def test_what_is_committed_waits_for_the_disk(tmp_path: Path) -> None:
    """2 is FULL (sqlite.org/pragma.html#pragma_synchronous): with less, a power cut may take back what was committed."""
    path = tmp_path / "journal.db"
    for made in (Journal.create(path, 0.0), Journal.open(path)):
        with made as journal:
            assert journal._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_files_that_are_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="does not exist"):
        Journal.open(tmp_path / "missing.db")
    (tmp_path / "text.db").write_text("not a database, and long enough to be looked at as one" * 20)
    with pytest.raises(JournalError):
        Journal.open(tmp_path / "text.db")
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    with pytest.raises(JournalError, match="not a journal"):
        Journal.open(tmp_path / "empty.db")


def test_a_damaged_event_is_told(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        journal.append([Entry(1, StopAsked(at=0.0), [])])
    raw = sqlite3.connect(tmp_path / "journal.db")
    raw.execute('UPDATE events SET event = CAST(\'{"kind": "stop-asked"}\' AS BLOB)')
    raw.commit()
    raw.close()
    with Journal.open(tmp_path / "journal.db") as journal, pytest.raises(JournalError, match="damaged"):
        list(journal.entries())


def test_other_decisions_than_were_recorded_are_an_error_with_a_name(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        journal.append([Entry(1, RunStarted(at=0.1, facts=FACTS), [SetTimer(id="1.0", due=99.0)])])
        with pytest.raises(ReplayError, match="event 1 \\(RunStarted"):
            replay(journal)
