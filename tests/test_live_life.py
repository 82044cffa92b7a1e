"""The history of a trial is read by another process, which says why it cannot."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.live.board import Board
from seerd.telling.live.look import LiveLook
from seerd.telling.live.trial_page import Lives, TrialLife, reader
from tests.conftest import small_facts
from tests.test_live import board, drawn, world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made, path = world(small_facts(), 25.0), tmp_path_factory.mktemp("small")
    with Journal.create(path / "journal.db", 0.0) as journal:
        journal.append([Entry(seq, *one) for seq, one in enumerate(made.journal, 1)])
    return RunFolder(path)


@pytest.fixture(scope="module")
def shown() -> Board:
    return board(world(small_facts(), 25.0))


def read(lives: Lives, trial: str) -> TrialLife:
    """What is told once its process has ended."""
    life = lives.of(trial)
    while lives.reading:
        life = lives.of(trial)
    return life


def test_files_beside_a_run_do_not_take_the_place_of_libraries(
    folder: RunFolder, tmp_path: Path
) -> None:
    (tmp_path / "numbers.py").write_text("raise SystemExit('mine')\n")
    ended = subprocess.run(
        reader(folder, "t0001"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["trial"] == "t0001"


def test_a_history_that_cannot_be_read_says_why_and_is_not_tried_for_ever(
    tmp_path: Path, shown: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seerd.telling.live.trial_page.AGAIN_S", 0.0)
    with contextlib.closing(Lives(RunFolder(tmp_path))) as lives:
        life = read(lives, "t0001")
        assert life.history is None
        assert "JournalError" in life.failed
        assert lives.of("t0001") == life
        assert not lives.reading
    lines = " ".join(drawn(shown, LiveLook(page="trial", cursor="t0001"), (100, 60), life))
    lines = " ".join(lines.split())
    assert "its history could not be read: seerd.errors.JournalError: " in lines
    assert "seerd replay small --trial t0001" in lines
    assert "is being read" not in lines


def test_a_history_is_read_by_another_process(folder: RunFolder, shown: Board) -> None:
    with contextlib.closing(Lives(folder)) as lives:
        life = read(lives, "t0001")
    assert life.failed == ""
    assert life.history is not None
    lines = "\n".join(drawn(shown, LiveLook(page="trial", cursor="t0001"), (100, 60), life))
    assert "why: " in lines
    assert "nothing printed yet that is here: seerd logs small t0001" in lines
