"""What arrives on an instance: only what was missing, whole or not at all, and nowhere but where it
belongs.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.receive import KEEP_S, Cache, FileEntry, PushError, Received, build, checked

EMPTY = hashlib.sha256(b"").hexdigest()


def entry(path: str, data: bytes = b"", executable: bool = False) -> FileEntry:
    return FileEntry(path, hashlib.sha256(data).hexdigest(), len(data), executable)


def filled(folder: Path, *contents: bytes) -> Cache:
    cache = Cache(folder)
    for data in contents:
        cache.take(io.BytesIO(data), hashlib.sha256(data).hexdigest(), len(data))
    return cache


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "", "a/.", "..", "a\0b", "a/"],
    ids=repr,
)
def test_a_path_that_leads_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(PushError, match="leads out of the folder"):
        checked([entry("fine"), entry(path)])


@given(st.lists(st.text(alphabet="./ab\0", max_size=8), max_size=4))
def test_what_is_accepted_stays_inside_and_can_be_built(paths: list[str]) -> None:
    try:
        checked([entry(path) for path in paths])
    except PushError:
        return
    top = Path("/top")
    inside = [Path(os.path.normpath(top / path)) for path in paths]
    assert all(top in path.parents for path in inside)
    assert not {parent for path in inside for parent in path.parents} & set(inside)
    assert len(set(inside)) == len(paths)


@pytest.mark.parametrize("sha256", ["../../x", EMPTY.upper(), EMPTY[:-1], ""])
def test_what_is_no_checksum_never_becomes_a_path(sha256: str) -> None:
    with pytest.raises(PushError, match="checksum"):
        checked([FileEntry("a", sha256, 0, False)])


def test_a_path_may_not_be_file_and_folder() -> None:
    with pytest.raises(PushError, match="twice"):
        checked([entry("a"), entry("a/b")])


def test_the_folder_becomes_exactly_what_was_sent(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache", b"one", b"two")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "removed.py").write_text("gone")
    build(
        cache,
        [entry("run.sh", b"one", True), entry("deep/down/two.py", b"two")],
        tmp_path / "source",
    )
    assert files(tmp_path / "source") == {"run.sh": b"one", "deep/down/two.py": b"two"}
    assert os.access(tmp_path / "source" / "run.sh", os.X_OK)
    assert not (tmp_path / "source" / "deep" / "down" / "two.py").stat().st_mode & 0o111
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "source"]


def test_a_trial_that_writes_into_its_source_does_not_change_the_cache(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache", b"one")
    build(cache, [entry("a", b"one")], tmp_path / "source")
    (tmp_path / "source" / "a").write_bytes(b"two")
    assert cache.missing([entry("a", b"one")]) == []


def test_only_what_is_missing_is_asked_for_and_each_content_once(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache", b"here")
    wanted = [entry("a", b"here"), entry("b", b"new"), entry("c", b"new")]
    assert cache.missing(wanted) == [wanted[1].sha256]


def test_a_file_that_was_damaged_in_the_cache_is_missing(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache", b"here")
    for path in (tmp_path / "cache").rglob(entry("a", b"here").sha256):
        path.write_bytes(b"heer")
    assert cache.missing([entry("a", b"here")]) == [entry("a", b"here").sha256]
    with pytest.raises(PushError, match="changed in the cache"):
        build(cache, [entry("a", b"here")], tmp_path / "source")
    assert not (tmp_path / "source").exists()


@pytest.mark.parametrize("sent", [b"hal", b"helf"], ids=["torn", "wrong"])
def test_what_does_not_arrive_whole_leaves_nothing(tmp_path: Path, sent: bytes) -> None:
    cache = Cache(tmp_path / "cache")
    with pytest.raises(PushError, match="did not arrive as it was sent"):
        cache.take(io.BytesIO(sent), entry("a", b"half").sha256, 4)
    assert files(tmp_path / "cache") == {}


def test_a_torn_build_is_done_again(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache", b"one")
    for left in (".source.new", ".source.old"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "half").write_text("half")
    build(cache, [entry("a", b"one")], tmp_path / "source")
    assert files(tmp_path / "source") == {"a": b"one"}


def test_what_no_run_has_used_for_a_month_is_forgotten(tmp_path: Path) -> None:
    cache = filled(tmp_path / "cache", b"old", b"used", b"new")
    long_ago = time.time() - KEEP_S - 60
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and path.read_bytes() != b"new":
            os.utime(path, (long_ago, long_ago))
    assert cache.missing([entry("b", b"used")]) == []
    cache.prune()
    assert sorted(files(tmp_path / "cache").values()) == [b"new", b"used"]


PARTS = st.dictionaries(
    st.sampled_from(["one", "two", "three"]),
    st.dictionaries(
        st.sampled_from(["train.py", "deep/data.py"]), st.binary(max_size=2), min_size=1
    ),
    min_size=1,
)


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_a_folder_in_which_trials_run_gets_more_and_loses_nothing(
    pushed: list[dict[str, dict[str, bytes]]],
) -> None:
    """Only a folder that was sent before with other files is made anew."""
    with tempfile.TemporaryDirectory() as folder:
        top, had = Path(folder), dict[str, dict[str, bytes]]()
        source = Received(top / "source")
        for number, parts in enumerate(pushed):
            before = {part: (top / "source" / part).stat().st_ino for part in had}
            contents = [data for its in parts.values() for data in its.values()]
            sent = [
                entry(f"{part}/{name}", data)
                for part, its in parts.items()
                for name, data in its.items()
            ]
            source.become(str(number), sent, filled(top / "cache", *contents))
            same = [part for part in had if parts.get(part, had[part]) == had[part]]
            assert {p: (top / "source" / p).stat().st_ino for p in same} == {
                p: before[p] for p in same
            }
            had |= parts
            assert files(top / "source") == {
                f"{part}/{name}": data for part, its in had.items() for name, data in its.items()
            }
            assert source.made().tree == str(number)


def test_what_was_torn_while_it_became_more_is_made_whole(tmp_path: Path) -> None:
    source = Received(tmp_path / "source")
    one, two = entry("one/a", b"one"), entry("two/a", b"two")
    source.become("first", [one], filled(tmp_path / "cache", b"one"))
    (tmp_path / "source" / "one" / "made").write_text("by a trial")
    with pytest.raises(FileNotFoundError):
        source.become("second", [one, two], Cache(tmp_path / "empty"))
    assert source.made().tree == ""
    source.become("second", [one, two], filled(tmp_path / "cache", b"one", b"two"))
    assert source.made().tree == "second"
    assert files(tmp_path / "source") == {
        "one/a": b"one",
        "one/made": b"by a trial",
        "two/a": b"two",
    }
