"""The folder of one attempt of a script that does not import seerd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seerd.agent.folders import pack
from seerd.agent.workplace import lay_out, put_back, remove_saved


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
    lay_out(source, work, "out/last.pt")
    assert not (work / "left").exists()
    remove_saved(work, "*")
    assert (source / "data" / "train.csv").exists()


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
