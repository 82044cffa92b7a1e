"""Runs of before the first release: they are listed with the reason, no command takes them for
damaged, and none changes anything of theirs.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seerd import cli
from seerd.commands.common import orderly
from seerd.core.events import RunStarted, StopAsked
from seerd.shell.journal import Entry, Journal
from seerd.version import VERSION
from tests.conftest import small_facts

RUN = "small-20261122-000000-aaaa"
Make = Callable[[Path], None]
Seerd = Callable[..., tuple[str, str]]


def of_format_1(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
            "CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, event BLOB NOT NULL,"
            " commands BLOB NOT NULL) STRICT;"
            "INSERT INTO meta VALUES ('format', '1'), ('origin', '1700000000.25');"
            'INSERT INTO events VALUES (1, 2.0, CAST(\'{"kind":"stop-asked","at":2.0}\' AS BLOB),'
            " CAST('[]' AS BLOB));"
        )


def of_format_2(path: Path) -> Journal:
    journal = Journal.create(path, 1_700_000_000.25)
    journal.append([Entry(1, RunStarted(at=0.1, facts=small_facts()), [])])
    return journal


def converted(path: Path) -> None:
    """As a version before the first release has left a run of format 1 that had gone on."""
    with of_format_2(path) as journal:
        journal._set("converted", "from format 1")
        journal.append([Entry(2, StopAsked(at=2.0), [])])


OLDER = {
    "format 1": of_format_1,
    "converted": converted,
}


@pytest.fixture(params=OLDER.values(), ids=OLDER)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of such a run, the only one."""
    monkeypatch.setenv("SEERD_HOME", str(tmp_path))
    folder = tmp_path / RUN
    folder.mkdir()
    request.param(folder / "journal.db")
    return folder


@pytest.fixture
def seerd(capsys: pytest.CaptureFixture[str]) -> Iterator[Seerd]:
    """Runs a command that ends with this exit status; returns what it printed, and its errors."""

    def run(*args: str, code: int) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended, orderly():
            cli.app(list(args))
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out, " ".join(err.split())

    interrupted = signal.getsignal(signal.SIGINT)
    yield run
    signal.signal(signal.SIGINT, interrupted)


def contents(folder: Path) -> dict[str, bytes]:
    """What its files hold; SQLite puts an empty log beside what is read."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    passing = ("lock", "journal.db-shm")
    return {name: held for name, held in files.items() if held and name not in passing}


def test_it_is_listed_with_the_reason(seerd: Seerd, folder: Path) -> None:
    (row,) = json.loads(seerd("list", "--json", code=0)[0])["runs"]
    assert row["why"].startswith(f"{folder}/journal.db has format 1, written by seerd ")
    assert row["why"].endswith(
        f"; this is seerd {VERSION}, which reads format 2: use the version that wrote it"
    )
    assert (row["run"], row["status"]) == (RUN, "unreadable")
    assert "has format 1" in seerd("list", code=0)[0]


@pytest.mark.parametrize(
    "command", ["show", "best", "replay", "resume", "resume --up-to=1"], ids=lambda one: one[-7:]
)
def test_commands_refuse_it_and_leave_it_as_it_is(seerd: Seerd, folder: Path, command: str) -> None:
    before, (word, *options) = contents(folder), command.split()
    out, err = seerd(word, RUN, *options, code=1)
    assert (out, contents(folder)) == ("", before)
    assert "has format 1, written by" in err
    assert "damaged" not in err
