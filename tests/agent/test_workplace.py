"""The folder of one attempt."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path

import pytest

from seerd.agent.folders import pack
from seerd.agent.workplace import MOST, SMALL, WIDE, lay_out, put_back, tidy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("train.py", "data/train.csv", "out/last.pt", "out/notes.txt", "out/sub/a"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "source"


def test_all_is_there_but_what_the_script_saves(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    lay_out(source, work, "out/last.pt")
    assert (work / "train.py").read_text() == "train.py"
    assert (work / "data" / "train.csv").read_text() == "data/train.csv"
    assert sorted(path.name for path in (work / "out").iterdir()) == ["notes.txt", "sub"]
    (work / "out" / "last.pt").write_text("of this attempt")
    assert (source / "out" / "last.pt").read_text() == "out/last.pt"


def test_a_pattern_for_folders_leaves_files_where_they_are(source: Path, tmp_path: Path) -> None:
    lay_out(source, tmp_path / "work", "*/last.pt")
    assert (tmp_path / "work" / "train.py").read_text() == "train.py"
    assert (tmp_path / "work" / "data" / "train.csv").exists()
    assert not (tmp_path / "work" / "out" / "last.pt").exists()


def test_folders_on_the_way_are_made(source: Path, tmp_path: Path) -> None:
    lay_out(source, tmp_path / "work", "runs/a/version_*/last.ckpt")
    assert (tmp_path / "work" / "runs" / "a").is_dir()
    assert not (source / "runs").exists()


def test_an_earlier_folder_is_replaced_and_the_source_is_not_touched(
    source: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    lay_out(source, work, "out/last.pt")
    (work / "left").write_text("over")
    laid = lay_out(source, work, "out/last.pt")
    assert not (work / "left").exists()
    tidy(source, work, laid, "*")
    assert (source / "data" / "train.csv").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_written_into_stays_in_the_folder(source: Path, tmp_path: Path) -> None:
    (source / "large.db").write_bytes(b"x" * (SMALL + 1))
    before = contents(source)
    laid = lay_out(source, tmp_path / "work", own=["train.py", "large.db"])
    for name in before:
        with (tmp_path / "work" / name).open("ab") as file:
            file.write(b"of this attempt")
    for folder in ("data", "out/sub"):
        (tmp_path / "work" / folder / "new").write_text("of this attempt")
    assert (tmp_path / "work" / "train.py").resolve() == tmp_path / "work" / "train.py"
    assert tidy(source, tmp_path / "work", laid) == ""
    assert contents(source) == before
    assert contents(tmp_path / "work").keys() == {*before, "data/new", "out/sub/new"}


def test_other_files_are_links_that_nobody_can_write_to(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (source / "data" / "large.bin").write_bytes(b"x" * (SMALL + 1))
    (source / "images" / "more").mkdir(parents=True)
    for number in range(WIDE + 1):
        (source / "images" / f"{number}.png").touch()
    before = contents(source)
    laid = lay_out(source, work)
    for name in ("data/large.bin", "images/7.png"):
        assert (work / name).samefile(source / name)
        assert (work / name).resolve() == work / name
        assert (source / name).stat().st_mode & 0o222 == 0
    (work / "images" / "labels.cache").write_text("of this attempt")
    (work / "images" / "more" / "new").write_text("of this attempt")
    (work / "images" / "7.png").unlink()
    (work / "images" / "7.png").write_text("of this attempt")
    (work / "images" / "8.png").unlink()
    assert tidy(source, work, laid) == ""
    assert contents(source) == before
    assert contents(work).keys() == {"images/labels.cache", "images/more/new", "images/7.png"}


@pytest.mark.parametrize("removed", [False, True])
def test_what_was_written_into_a_link_is_known(source: Path, tmp_path: Path, removed: bool) -> None:
    for name in ("1.bin", "2.bin", "data/3.bin", "from_the_future.bin"):
        (source / name).write_bytes(bytes(SMALL + 1))
    os.utime(source / "from_the_future.bin", (1e10, 1e10))
    laid, other = lay_out(source, tmp_path / "1"), lay_out(source, tmp_path / "2")
    written = tmp_path / "1" / "data" / "3.bin"
    written.chmod(0o600)
    with written.open("r+b") as file:
        file.write(b"x")
    if removed:
        written.unlink()
    assert "while it ran, data/3.bin in the source changed" in tidy(source, tmp_path / "1", laid)
    assert "data/3.bin" in tidy(source, tmp_path / "2", other), "it may have read that"
    assert tidy(source, tmp_path / "3", lay_out(source, tmp_path / "3")) == ""
    assert not any((tmp_path / name).exists() for name in "123")


def test_files_of_somebody_else_are_symbolic_links(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    (source / "large.bin").write_bytes(bytes(SMALL + 1))
    monkeypatch.setattr(os, "link", refuse)  # fs.protected_hardlinks
    laid = lay_out(source, tmp_path / "work")
    assert (tmp_path / "work" / "large.bin").readlink() == source / "large.bin"
    assert tidy(source, tmp_path / "work", laid) == ""
    assert not (tmp_path / "work").exists()


def test_a_folder_that_nobody_needs_any_more_is_not_finished(source: Path, tmp_path: Path) -> None:
    for number in range(WIDE + 1):
        (source / f"{number}.png").touch()
    asked = count()
    lay_out(source, tmp_path / "work", is_stopped=lambda: next(asked) > 10)
    assert len(contents(tmp_path / "work")) < 12


def test_what_a_script_has_not_written_is_removed_at_its_end(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (source / "latest").symlink_to("out")
    laid = lay_out(source, work, "runs/*/last.pt", ["train.py"])
    assert tidy(source, work, laid) == ""
    assert contents(work) == {}
    assert [path.name for path in work.iterdir()] == ["runs"]


def test_a_link_that_a_script_has_pointed_elsewhere_stays(source: Path, tmp_path: Path) -> None:
    (source / "latest").symlink_to("out")
    (source / "large.bin").write_bytes(bytes(SMALL + 1))
    laid = lay_out(source, tmp_path / "work")
    for name in ("latest", "large.bin"):
        (tmp_path / "work" / name).unlink()
        (tmp_path / "work" / name).symlink_to("step_5")
    assert tidy(source, tmp_path / "work", laid) == ""
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["large.bin", "latest"]


def test_what_python_has_compiled_is_no_other_attempts(source: Path, tmp_path: Path) -> None:
    laid = lay_out(source, tmp_path / "1")
    (tmp_path / "1" / "data" / "__pycache__").mkdir()
    (tmp_path / "1" / "data" / "__pycache__" / "tool.cpython-311.pyc").write_text("compiled")
    before = contents(source)
    tidy(source, tmp_path / "1", laid)
    assert contents(source) == before
    assert not (tmp_path / "1").exists()


def test_links_stay_inside_where_they_are_inside(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (source / "out" / "latest").symlink_to("sub")
    (source / "more").symlink_to(tmp_path / "elsewhere")
    (source / "gone").symlink_to("nowhere")
    laid = lay_out(source, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "latest").resolve() == tmp_path / "work" / "out" / "sub"
    assert (tmp_path / "work" / "more").resolve() == tmp_path / "elsewhere"
    assert tidy(source, tmp_path / "work", laid) == ""
    assert not (tmp_path / "work").exists()


def test_many_small_files_are_links_but_not_those_that_come_first(
    source: Path, tmp_path: Path
) -> None:
    for folder in range(6):
        (source / "a" / str(folder)).mkdir(parents=True)
        for number in range(WIDE):
            (source / "a" / str(folder) / f"{number}.png").touch()
    (source / "z").mkdir()
    (source / "z" / "train.py").touch()
    (source / "z" / "history.csv").touch()
    laid = lay_out(source, tmp_path / "work", own=["z/train.py"])
    assert len(laid.known) == MOST
    assert {"z/train.py", "z/history.csv"} <= laid.known.keys()
    assert len(contents(tmp_path / "work")) == len(contents(source))


def checkpoint(folder: Path, name: str, content: bytes, at: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.pt").write_bytes(content)
    (folder / f"{name}.json").write_text(json.dumps({"at": at}))


def test_a_file_and_a_folder_are_put_back(tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", "1", b"bytes", "out/last.pt")
    assert put_back(tmp_path / "c", "1", tmp_path / "work") == "out/last.pt"
    assert (tmp_path / "work" / "out" / "last.pt").read_bytes() == b"bytes"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "state.json").write_text("{}")
    checkpoint(tmp_path / "c", "2", b"", "out/checkpoint-20")
    with (tmp_path / "c" / "2.pt").open("wb") as out:
        pack(tmp_path / "folder", out)
    assert put_back(tmp_path / "c", "2", tmp_path / "work") == "out/checkpoint-20"
    assert (tmp_path / "work" / "out" / "checkpoint-20" / "state.json").read_text() == "{}"
    assert put_back(tmp_path / "c", None, tmp_path / "work") == ""


@pytest.mark.parametrize("at", [None, 7, "/etc/passwd", "../../outside", ""])
def test_nothing_is_put_outside_and_nothing_of_another_kind(tmp_path: Path, at: object) -> None:
    checkpoint(tmp_path / "c", "1", b"bytes", at)
    with pytest.raises(ValueError, match="imports seerd"):
        put_back(tmp_path / "c", "1", tmp_path / "work")
