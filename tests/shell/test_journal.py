"""The journal: what was committed is read back exactly, a damaged or foreign file is told, a reader
can follow the writer.
"""

from __future__ import annotations

import sqlite3
from contextvars import copy_context
from pathlib import Path

import pytest

from seerd import clock
from seerd.clock import wall
from seerd.core.commands import SetTimer, Terminate
from seerd.core.events import RunFacts, RunStarted, StopAsked, TrialReported
from seerd.core.lifecycle import RunPhase
from seerd.core.verdicts import Closing, HeldBack
from seerd.errors import ImpossibleEventError, JournalError
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Condition, Parameter, Space
from seerd.runs.reading import replay
from seerd.runs.runs import _take_up_clock
from seerd.shell.journal import Entry, Journal
from seerd.version import VERSION

SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("kind", choices=("sgd", 1, 2.0, True)),
        Parameter("beta", low=0.5, high=1.0, mean=0.9, std=0.1, when=(Condition("kind", (1,)),)),
    ),
    constraints=("lr * beta < 0.5",),
)
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
        Entry(
            1,
            RunStarted(at=0.1, facts=FACTS),
            [SetTimer(id="1.0", due=0.30000000000000004), HeldBack()],
        ),
        Entry(
            2,
            TrialReported(
                at=1.0,
                instance="i",
                fact=1,
                happened=0.9,
                trial="t0001",
                attempt=1,
                reports=1,
                metric=None,
                unit_s=0.1,
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
        assert entries[0].commands == entries[0].decided[:1]


def test_a_batch_is_committed_whole_or_not_at_all(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        journal.append([Entry(1, StopAsked(at=0.0), [])])
        with pytest.raises(JournalError):
            journal.append([Entry(2, StopAsked(at=0.0), []), Entry(1, StopAsked(at=0.0), [])])
        assert [entry.seq for entry in journal.entries()] == [1]


def test_what_is_committed_waits_for_the_disk(tmp_path: Path) -> None:
    """2 is FULL (sqlite.org/pragma.html#pragma_synchronous): with less, a power cut may take back
    what was committed.
    """
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
    with pytest.raises(JournalError, match="damaged"):
        Journal.open(tmp_path / "journal.db")


def test_reading_decides_nothing(tmp_path: Path) -> None:
    """What was recorded is so, whatever this version would have decided."""
    closing = Closing(status="done", why="plan", by_s=42.0)
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        decided = [closing, SetTimer(id="1.0", due=99.0)]
        journal.append([Entry(1, RunStarted(at=0.1, facts=FACTS), decided)])
        state = replay(journal)
    assert (state.phase, state.end.close_by) == (RunPhase.CLOSING, 42.0)
    assert state.clock.timer == SetTimer(id="1.0", due=99.0)
    assert list(state.under_way) == ["1.0"]


def test_what_cannot_have_happened_is_told_with_its_number(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        unknown = Terminate(id="2.0", instance="never-asked-for", why="idle")
        rows = [RunStarted(at=0.1, facts=FACTS), StopAsked(at=0.2)]
        journal.append([Entry(1, rows[0], []), Entry(2, rows[1], [unknown])])
        with pytest.raises(ImpossibleEventError, match=r"event 2 \(StopAsked at 0.200s") as told:
            replay(journal)
    assert told.value.seq == 2


def test_which_version_wrote_it_is_known(tmp_path: Path) -> None:
    Journal.create(tmp_path / "journal.db", 0.0).close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert (journal._get("format"), journal.version) == ("2", VERSION)


def test_a_format_that_is_not_known_is_told_with_who_wrote_it(tmp_path: Path) -> None:
    """What it says of itself fits its checksum, so it is not damaged."""
    path = tmp_path / "journal.db"
    with Journal.create(path, 0.0) as journal:
        journal.append([Entry(1, RunStarted(at=0.1, facts=FACTS), [])])
        journal._set("format", "99")
        journal._set("version", "7.5")
        journal.append([Entry(2, StopAsked(at=0.2), [])])
    for read_only in (False, True):
        with pytest.raises(JournalError, match=r"format 99, written by seerd 7.5.*reads format 2"):
            Journal.open(path, read_only=read_only)


@pytest.mark.parametrize("set_by_s", [-3600.0, 45.0])
def test_a_clock_that_was_set_between_a_kill_and_a_resume_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_s: float
) -> None:
    """EC2's times, and those that were noted, are read by the clock as it was before."""
    path, right = tmp_path / "journal.db", wall()

    def resumed() -> tuple[float, float]:
        with Journal.open(path) as journal:
            assert _take_up_clock(journal, 0.0) == ""
            return wall() - right, journal.origin - right

    Journal.create(path, right - 40.0).close()
    monkeypatch.setattr(clock, "began_at", clock.began_at + set_by_s)
    for _ in range(2):
        assert copy_context().run(resumed) == pytest.approx((0.0, -40.0), abs=5.0)


def test_a_run_goes_on_from_its_last_event_at_the_earliest(tmp_path: Path) -> None:
    """After a boot, whatever the clock shows; people are told."""
    path = tmp_path / "journal.db"
    with Journal.create(path, wall() - 40.0) as journal:
        assert journal.is_steady
        journal._set("clock", "another 5.0")
        assert not journal.is_steady
        assert wall() - journal.origin == pytest.approx(40.0, abs=5.0)
        assert _take_up_clock(journal, 30.0) == ""
        assert wall() - journal.origin == pytest.approx(40.0, abs=5.0)
        assert "is at least 1m behind" in _take_up_clock(journal, 100.0)
        assert wall() - journal.origin == pytest.approx(100.0, abs=5.0)
