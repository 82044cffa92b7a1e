"""Folders as one file: whole, or refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seerd.agent.folders import LISTING, FolderContents, is_packed, pack, unpack
from seerd.agent.folders import contents as contents_of
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
    return {name: (folder / name).read_bytes() for name in contents_of(folder).files}


def test_a_folder_comes_back_as_it_was(tmp_path: Path, packed: Path) -> None:
    assert is_packed(packed)
    write(tmp_path / "there", {"old": b"left over"})
    unpack(packed, tmp_path / "there")
    assert contents(tmp_path / "there") == FILES
    source, copy = (tmp_path / name / "model.bin" for name in ("folder", "there"))
    assert copy.stat().st_mtime == source.stat().st_mtime


def packed_links(tmp_path: Path, links: dict[str, str | Path]) -> FolderContents:
    """What is in a folder with these links and one file, also after it was packed and unpacked."""
    write(tmp_path / "folder", {"step_5/deep/state": b"five"})
    for name, to in links.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).symlink_to(to)
    with (tmp_path / "packed").open("wb") as out:
        found = pack(tmp_path / "folder", out)
    shutil.rmtree(tmp_path / "folder")
    unpack(tmp_path / "packed", tmp_path / "there" / "deep")
    return found


def test_links_that_stay_inside_are_links(tmp_path: Path) -> None:
    inside = {
        "latest": "step_5",
        "state": "latest/deep/state",
        "step_5/up": "../step_5/deep",
        "step_5/absolute": tmp_path / "folder" / "step_5" / "deep",
        "to_be": "step_6",
        "snapshots/main/state": "../../step_5/deep/state",  # 11happy/cpx#9
    }
    assert packed_links(tmp_path, inside).out == []
    there = tmp_path / "there" / "deep"
    for name in ("latest/deep", "step_5/up", "step_5/absolute"):
        assert (there / name / "state").read_bytes() == b"five"
    assert (there / "state").read_bytes() == b"five"
    assert {name for name in inside if (there / name).is_symlink()} == inside.keys()
    shutil.move(there, tmp_path / "moved")
    assert (tmp_path / "moved" / "step_5" / "absolute" / "state").read_bytes() == b"five"


@pytest.mark.parametrize("to", ["..", "../..", "/etc", ".", "step_5/../.."])
def test_links_that_lead_out_or_to_where_they_are_are_named_and_left_out(
    tmp_path: Path, to: str
) -> None:
    assert "a/link" in packed_links(tmp_path, {"a/link": to, "through": "a/link"}).out
    assert not (tmp_path / "there" / "deep" / "a" / "link").exists()


def test_a_link_out_of_the_folder_counts_as_its_file(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"weights")
    assert packed_links(tmp_path, {"model.bin": tmp_path / "blob"}).out == ["model.bin"]
    assert not (tmp_path / "there" / "deep" / "model.bin").is_symlink()
    assert (tmp_path / "there" / "deep" / "model.bin").read_bytes() == b"weights"


def packed_by_hand(packed: Path, files: list[str], links: dict[str, str]) -> None:
    """Write what `pack` would of a folder with these files, of one byte each, and links."""
    digest = hashlib.sha256(b"x").hexdigest()
    listed = [{"path": name, "size": 1, "sha256": digest} for name in files]
    listing = json.dumps({"files": listed, "links": links}).encode()
    with tarfile.open(packed, "w") as tar:
        for name, content in ((LISTING, listing), *((name, b"x") for name in files)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, to in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)


PARTS = ["a", "b", "c", ".", ""]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map(tuple)


def through(name: tuple[str, ...]) -> dict[tuple[str, ...], list[str]]:
    """Links of which the last is below another, whose path is written like this."""
    return {
        ("x", "q"): ["..", "k"],
        name: ["..", "..", "x"],
        ("a", "b", "d", "e"): ["..", "..", "..", "z"],
    }


@given(st.dictionaries(NAMES, st.lists(st.sampled_from([*PARTS, ".."]), max_size=4)))
@example({("a", "b"): ["..", "..", "c"]})
@example({("a",): ["b", "..", "..", "c"], ("b",): ["c"]})
@example({("..", "a"): ["b"]})
@example({("a",): ["", "etc"]})
@example({("a",): ["a", "", "a"]})
@example(through(("a", "b", "d", ".")))
@example(through(("a", "b", "", "d")))
def test_no_list_of_links_leads_out(
    tmp_path_factory: pytest.TempPathFactory, links: dict[tuple[str, ...], list[str]]
) -> None:
    top = tmp_path_factory.mktemp("links")
    told = {"/".join(name): "/".join(to) for name, to in links.items()}
    packed_by_hand(top / "packed", [], told)
    try:
        unpack(top / "packed", top / "x" / "there")
    except CheckpointError:
        assert not (top / "x" / "there").exists()
        return
    inside = str((top / "x" / "there").resolve())
    for above, folders, names in os.walk(inside):
        for name in (*folders, *names):
            assert os.path.realpath(f"{above}/{name}").startswith(inside + os.sep)


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
    packed_by_hand(tmp_path / "packed", [name], {})
    with pytest.raises(CheckpointError, match="no path inside"):
        unpack(tmp_path / "packed", tmp_path / "there")


@pytest.mark.parametrize(
    ("files", "links"),
    [
        (["a", "a/b"], {}),
        (["a/b", "a"], {}),
        (["a"], {"a/b": "c"}),
        (["a"], {"a": "c"}),
        (["a/b"], {"a": "c"}),
    ],
)
def test_a_list_that_no_folder_has_is_damaged(
    tmp_path: Path, files: list[str], links: dict[str, str]
) -> None:
    packed_by_hand(tmp_path / "packed", files, links)
    with pytest.raises(CheckpointError):
        unpack(tmp_path / "packed", tmp_path / "there")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip", b"x" * 2000])
def test_other_files_are_no_folders(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert not is_packed(tmp_path / "file")
