"""Copies of files."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
