"""The folder of all runs: in which order they are listed, and which one a name means."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from seerd.agent import folders
from seerd.commands import tidy
from seerd.core.events import StopAsked
from seerd.errors import BusyError, UsageError
from seerd.shell.home import Home, RunFolder, copy_result, default_home
from seerd.shell.inbox import Inbox


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
        Inbox(folder.requests).put(StopAsked(at=0.0))
    finally:
        os.umask(before)
    for private in (folder.path, folder.requests):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_run_s_lock_says_who_holds_it(tmp_path: Path) -> None:
    folder = made(Home(tmp_path), "run", 1.0, 1.0)
    assert folder.owner() is None
    with folder.locked():
        assert (folder.path / "lock").read_text() == str(os.getpid())
        assert folder.owner() == os.getpid()
        assert not folder.is_in_a_thread()
        with pytest.raises(BusyError, match=str(os.getpid())), folder.locked():
            pass
        (folder.path / "lock").write_text("-7 what")
        assert folder.owner() is None
        (folder.path / "lock").write_text("")
        assert folder.owner() is None
        assert not folder.is_in_a_thread()
    assert folder.owner() is None, "whatever it says, nobody holds it"

    def held_in_a_thread() -> None:
        with folder.locked():
            held.append(((folder.path / "lock").read_text(), folder.is_in_a_thread()))

    held: list[tuple[str, bool]] = []
    thread = threading.Thread(target=held_in_a_thread)
    thread.start()
    thread.join()
    assert held == [(f"{os.getpid()} in-a-thread", True)]


def test_jobs_are_added_one_after_the_other(tmp_path: Path) -> None:
    folder = made(Home(tmp_path), "run", 1.0, 1.0)
    folder.specs.mkdir()
    with folder.adding():
        other = os.open(folder.specs, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        open_files = len(list(Path("/dev/fd").iterdir()))
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(list(Path("/dev/fd").iterdir())) == open_files - 1
    os.close(other)


def test_a_folder_is_a_run_if_it_has_a_journal_or_what_one_is_begun_with(tmp_path: Path) -> None:
    folder = made(Home(tmp_path), "run", 1.0, 1.0)
    (tmp_path / "nothing").mkdir()
    assert folder.is_one
    folder.journal.unlink()
    assert not folder.is_one
    folder.setup.touch()
    assert folder.is_one
    folder.spec.unlink()
    assert not folder.is_one
    assert Home(tmp_path).runs() == []
    with pytest.raises(UsageError, match=r"there is no run in .* yet; start one with: seerd run"):
        Home(tmp_path).find("run")


def test_a_name_that_is_one_run_s_is_no_beginning_of_others(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for name in ("digits", "digits-2"):
        made(home, name, 1.0, 1.0)
    assert home.find("digits").run == "digits"
    assert home.find("digits-").run == "digits-2"


def test_a_home_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Home(tmp_path / "none").runs() == Home(tmp_path / "file").runs() == []
    with pytest.raises(UsageError, match="cannot be used: Not a directory; name another one"):
        Home(tmp_path / "file").new("digits")
    folder = Home(tmp_path / "new" / "home").new("digits")
    assert re.fullmatch(r"digits-\d{8}-\d{6}-[0-9a-f]{4}", folder.run)
    assert folder.path == tmp_path / "new" / "home" / folder.run


def test_the_home_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SEERD_HOME", "~/runs")
    assert default_home() == (tmp_path / "runs").resolve()
    monkeypatch.setenv("SEERD_HOME", "")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_home() == Path("/state/seerd")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_home() == tmp_path / ".local" / "state" / "seerd"


def test_the_files_of_a_run_have_their_names(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    names = {
        path.relative_to(folder.path).as_posix()
        for path in (
            *(folder.journal, folder.spec, folder.setup, folder.target, folder.source),
            *(folder.specs, folder.agent, folder.instances, folder.store, folder.requests),
            *(folder.best, folder.added_job("a"), folder.made_from(""), folder.made_from("a")),
        )
    }
    assert names == {
        *("journal.db", "spec.toml", "setup.json", "target.json", "source", "specs"),
        *("agent.pyz", "instances", "store", "requests", "best", "specs/a.json"),
        *("spec.made-from", "specs/a.made-from"),
    }


def test_a_model_that_is_a_folder_is_unpacked_and_one_that_is_damaged_told(tmp_path: Path) -> None:
    folder = made(Home(tmp_path), "run", 1.0, 1.0)
    best, to = folder.best / "a", tmp_path / "to" / "there"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    saved = tmp_path / "saved"
    (saved / "in").mkdir(parents=True)
    (saved / "in" / "weights").write_bytes(b"w")
    with (best / "checkpoint.pt").open("wb") as packed:
        folders.pack(saved, packed)
    assert copy_result(folder, to, "a") == to / "checkpoint"
    assert (to / "checkpoint" / "in" / "weights").read_bytes() == b"w"
    assert sorted(path.name for path in to.iterdir()) == ["checkpoint", "config.json"]
    whole = (best / "checkpoint.pt").read_bytes()
    (best / "checkpoint.pt").write_bytes(whole.replace(b"weights", b"other", 1))
    with pytest.raises(UsageError, match=f"the model cannot be copied to {tmp_path}/other: "):
        copy_result(folder, tmp_path / "other", "a")
    with pytest.raises(UsageError, match=r"No such file or directory \(.*best/config.json\)"):
        copy_result(folder, tmp_path / "other")


def test_what_runs_take_of_the_disk_is_counted_once_and_removed_without_links(
    tmp_path: Path,
) -> None:
    one, two, kept = tmp_path / "one", tmp_path / "two", tmp_path / "kept"
    for path in (one / "in", two, kept):
        path.mkdir(parents=True)
    (one / "in" / "a").write_bytes(b"x" * 100)
    (one / "b").write_bytes(b"x" * 30)
    os.link(one / "in" / "a", two / "a")
    (two / "c").write_bytes(b"x" * 7)
    (two / "link").symlink_to(kept)
    (kept / "file").write_bytes(b"y" * 1000)
    (two / "of-a-file").symlink_to(kept / "file")
    link = (two / "of-a-file").lstat().st_size
    assert tidy.size_of([one, two]) == 137 + link
    assert tidy.size_of([one, one]) == 130
    assert tidy.size_of([tmp_path / "none"]) == 0
    (tmp_path / "to").symlink_to(one)
    tidy.remove([two, tmp_path / "to", tmp_path / "none", one / "b"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "one", "to"]
    assert (one / "b").is_file()
    assert (kept / "file").is_file()
