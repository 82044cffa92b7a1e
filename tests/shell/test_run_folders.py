"""The folder of all runs: in which order they are listed, and which one a name means."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from seerd.errors import UsageError
from seerd.shell.home import Home, RunFolder, copy_result
from seerd.shell.inbox import Inbox, StopRequest


def made(home: Home, name: str, begun: float, written: float) -> RunFolder:
    folder = RunFolder(home.path / name)
    folder.path.mkdir()
    folder.spec.touch()
    folder.journal.touch()
    os.utime(folder.spec, (begun, begun))
    os.utime(folder.journal, (written, written))
    return folder


def test_the_last_run_is_the_one_that_began_last_and_is_listed_last(tmp_path: Path) -> None:
    home = Home(tmp_path)
    later = made(home, "a-later", 2000.0, 2001.0)
    earlier = made(home, "b-resumed-since", 1000.0, 3000.0)
    assert [folder.run for folder in home.runs()] == [earlier.run, later.run]
    assert home.find("last").run == later.run
    assert home.find("b").run == earlier.run


def test_a_run_without_a_spec_is_as_old_as_its_journal(tmp_path: Path) -> None:
    home = Home(tmp_path)
    simulated = made(home, "simulated", 0.0, 1500.0)
    simulated.spec.unlink()
    made(home, "later", 2000.0, 2000.0)
    made(home, "earlier", 1000.0, 4000.0)
    assert [folder.run for folder in home.runs()] == ["earlier", "simulated", "later"]


def test_a_name_that_could_be_several_runs_is_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made(home, "digits-1", 1.0, 1.0)
    made(home, "digits-2", 2.0, 2.0)
    with pytest.raises(UsageError, match="could be any of digits-1, digits-2"):
        home.find("digits")
    with pytest.raises(UsageError, match="no run begins with 'x'; the last is digits-2"):
        home.find("x")


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_a_model_that_is_copied_onto_itself_stays(
    tmp_path: Path, link: Callable[[Path, Path], None] | None
) -> None:
    folder = made(Home(tmp_path), "run", 1.0, 1.0)
    to = folder.best if link is None else tmp_path / "to"
    for path in {folder.best, to}:
        path.mkdir()
    for name in ("config.json", "checkpoint.pt"):
        (folder.best / name).write_text(name)
        if link is not None:
            link(folder.best / name, to / name)
    assert copy_result(folder, to) == to / "checkpoint.pt"
    for name in ("config.json", "checkpoint.pt"):
        assert (folder.best / name).read_text() == (to / name).read_text() == name
        assert link is None or not (to / name).samefile(folder.best / name)
    assert sorted(path.name for path in to.iterdir()) == ["checkpoint.pt", "config.json"]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_only_the_user_reads_a_run_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = Home(tmp_path / "home").new("digits")
        Inbox(folder.requests).put(StopRequest())
    finally:
        os.umask(before)
    for private in (folder.path, folder.requests):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
