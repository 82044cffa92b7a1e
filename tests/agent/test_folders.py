"""Folders as one file: whole, or refused."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.folders import LISTING, files_of, is_packed, pack, unpack
from seerd.agent.manifest import CheckpointError

FILES = {"model.bin": b"weights" * 1000, "state/rank-0.pt": b"zero", "state/deep/empty": b""}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    write(tmp_path / "folder", FILES)
    with (tmp_path / "packed").open("wb") as out:
        pack(tmp_path / "folder", out)
    return tmp_path / "packed"


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_of(folder)}


def test_a_folder_comes_back_as_it_was(tmp_path: Path, packed: Path) -> None:
    assert is_packed(packed)
    write(tmp_path / "there", {"old": b"left over"})
    unpack(packed, tmp_path / "there")
    assert contents(tmp_path / "there") == FILES
    source, copy = (tmp_path / name / "model.bin" for name in ("folder", "there"))
    assert copy.stat().st_mtime == source.stat().st_mtime


def test_a_link_counts_as_its_file(tmp_path: Path) -> None:
    write(tmp_path / "folder", {"epoch=3.ckpt": b"three"})
    (tmp_path / "folder" / "last.ckpt").symlink_to("epoch=3.ckpt")
    with (tmp_path / "packed").open("wb") as out:
        pack(tmp_path / "folder", out)
    unpack(tmp_path / "packed", tmp_path / "there")
    assert contents(tmp_path / "there") == {"epoch=3.ckpt": b"three", "last.ckpt": b"three"}
    assert not (tmp_path / "there" / "last.ckpt").is_symlink()


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_one_wrong_bit_never_becomes_a_wrong_file(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    top = tmp_path_factory.mktemp("bits")
    write(top / "folder", {"a": b"0123456789", "b/c": b"x" * 600})
    out = io.BytesIO()
    pack(top / "folder", out)
    data = bytearray(out.getvalue())
    data[at % len(data)] ^= 1 << bit
    (top / "packed").write_bytes(data)
    try:
        unpack(top / "packed", top / "there")
    except CheckpointError:
        assert not (top / "there").exists()
    else:
        assert contents(top / "there") == contents(top / "folder")


def test_half_a_file_is_refused(tmp_path: Path, packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:6000])
    with pytest.raises(CheckpointError):
        unpack(packed, tmp_path / "there")


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    digest = "0" * 64
    listing = json.dumps({"files": [{"path": name, "size": 1, "sha256": digest}]}).encode()
    with tarfile.open(tmp_path / "packed", "w") as tar:
        for each, content in ((LISTING, listing), (name, b"x")):
            entry = tarfile.TarInfo(each)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(CheckpointError, match="no path inside"):
        unpack(tmp_path / "packed", tmp_path / "there")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip", b"x" * 2000])
def test_other_files_are_no_folders(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert not is_packed(tmp_path / "file")
