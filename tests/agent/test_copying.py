"""Copies of files."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seerd.agent import copying
from seerd.agent.copying import copy_file


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_a_file_is_not_copied_onto_itself(
    tmp_path: Path, link: Callable[[Path, Path], None] | None
) -> None:
    source, to = tmp_path / "source", tmp_path / ("source" if link is None else "to")
    source.write_text("weights")
    if link is not None:
        link(source, to)
    with pytest.raises(shutil.SameFileError, match="one file"):
        copy_file(source, to)
    with pytest.raises(shutil.SameFileError):
        copy_file(to, source)
    assert source.read_text() == "weights"


@pytest.mark.parametrize(("platform", "begins"), [("linux", 0), ("darwin", 1 << 20)])
def test_all_is_copied_where_a_hole_may_be_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, begins: int
) -> None:
    def only_holes(*_: object) -> int:
        raise OSError(errno.ENXIO, "no data")  # as APFS says of what is not on the disk yet

    with (tmp_path / "source").open("wb") as file:
        file.seek(begins)
        file.write(b"x" * 5000)
    monkeypatch.setattr(os, "lseek", only_holes)
    monkeypatch.setattr(sys, "platform", platform)
    copy_file(tmp_path / "source", tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == bytes(begins) + b"x" * 5000


def test_data_between_holes_is_copied_and_on_linux_they_stay_holes(tmp_path: Path) -> None:
    source, to = tmp_path / "source", tmp_path / "to"
    with source.open("wb") as file:
        for at in (1 << 20, 8 << 20):
            file.seek(at)
            file.write(b"x" * 4096)
        file.truncate(16 << 20)
    copied: list[int] = []
    copy_file(source, to, lambda size: bool(copied.append(size)))
    assert to.read_bytes() == source.read_bytes()
    if sys.platform == "linux":
        assert sum(copied) < 4 << 20
        assert to.stat().st_blocks * 512 < 4 << 20


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25])
@pytest.mark.parametrize("how", ["by the system", "by reading", "refused", "nothing moved"])
def test_a_file_is_copied_piece_by_piece_and_flushed_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, how: str
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EXDEV, "not here")

    if how == "by reading":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif how != "by the system":
        moves = refused if how == "refused" else (lambda *_: 0)
        monkeypatch.setattr(os, "copy_file_range", moves, raising=False)
    flushed: list[int] = []
    monkeypatch.setattr(copying, "PIECE", 10)
    monkeypatch.setattr(os, "fsync", flushed.append)
    data = bytes(range(size))
    (tmp_path / "source").write_bytes(data)
    (tmp_path / "to").write_bytes(b"what was there before, and longer than the new one")
    pieces: list[int] = []
    copy_file(
        tmp_path / "source", tmp_path / "to", lambda moved: pieces.append(moved) or size == 25
    )  # type: ignore[func-returns-value]
    assert (tmp_path / "to").read_bytes() == data
    assert pieces == [min(10, size - at) for at in range(0, size, 10)]
    assert len(flushed) == (3 if size == 25 else 0)


def test_a_file_that_becomes_shorter_is_copied_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PIECE", 10)
    (tmp_path / "source").write_bytes(b"x" * 25)
    shorten = lambda _: bool(os.truncate(tmp_path / "source", 12))  # noqa: E731
    copy_file(tmp_path / "source", tmp_path / "to", shorten)
    assert (tmp_path / "to").read_bytes() == b"x" * 12
