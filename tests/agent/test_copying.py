"""Copies of files."""

from __future__ import annotations

import os
import shutil
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
