"""Checkpoints between an attempt and the store: whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest

from seerd.agent import KEPT, transfer
from seerd.agent.manifest import CheckpointError, Comparison, Manifest, is_safe
from seerd.agent.transfer import Directory, NotNowError
from seerd.core.rules import Rules
from seerd.errors import StoreError
from seerd.stores.directory import DirectoryStore

GOAL = Comparison("accuracy", "max")


def store(local: Path, to: Path, name: str, goal: Comparison) -> Manifest:
    return Directory(to, goal).put(local, name)[1]


def fetch(source: Path, to: Path, names: list[str]) -> str | None:
    return Directory(source, GOAL).fetch(to, names)


def save(folder: Path, name: str, data: bytes = b"weights", **other: object) -> Path:
    """A checkpoint as the training side writes it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.pt").write_bytes(data)
    manifest = {"version": 1, "name": name, "epoch": 4, "metrics": {"accuracy": 0.9}}
    manifest |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), **other}
    (folder / f"{name}.json").write_text(json.dumps(manifest))
    return folder / f"{name}.pt"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_stored_checkpoint_is_whole_and_named_last(tmp_path, monkeypatch):
    save(tmp_path / "local", "000004-00000040")
    steps: list[str] = []
    replace = os.replace
    monkeypatch.setattr(transfer.os, "replace", lambda a, b: (steps.append(b.name), replace(a, b)))
    manifest = store(tmp_path / "local", tmp_path / "store" / "t1", "000004-00000040", GOAL)
    assert steps == ["000004-00000040.pt", "000004-00000040.json"]
    assert (manifest.epoch, manifest.size, manifest.metrics) == (4, 7, {"accuracy": 0.9})
    assert names(tmp_path / "store" / "t1") == ["000004-00000040.json", "000004-00000040.pt"]


def test_of_a_script_that_reports_each_step_the_newest_checkpoints_stay_in_the_store(tmp_path):
    newest = ["1000000-01000000", "1000001-01000001"]
    for name in ("999999-00999999", *newest):
        save(tmp_path / "local", name, epoch=int(name[:-9]), metrics={})
        store(tmp_path / "local", tmp_path / "store", name, GOAL)
    assert {path.stem for path in (tmp_path / "store").iterdir()} == set(newest)
    found = asyncio.run(DirectoryStore(tmp_path).newer("store", 1, "999999-00999999"))
    assert [manifest.name for manifest in found] == newest


def no_link(*_: object) -> None:
    raise OSError


def test_where_no_link_is_possible_it_is_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer.os, "link", no_link)
    save(tmp_path / "local", "a")
    store(tmp_path / "local", tmp_path / "store", "a", GOAL)
    assert (tmp_path / "store" / "a.pt").read_bytes() == b"weights"
    assert (tmp_path / "store" / "a.pt").stat().st_nlink == 1


def test_the_best_model_is_linked_and_compared_again_if_anybody_has_written_to_it(tmp_path):
    pt, to = save(tmp_path / "local", "a"), tmp_path / "best" / "checkpoint.pt"
    os.utime(pt, ns=(0, pt.stat().st_mtime_ns - 10**9))
    manifest = store(tmp_path / "local", tmp_path / "store" / "t1", "a", GOAL)
    made = DirectoryStore(tmp_path / "store")
    asyncio.run(made.fetch("t1", "a", manifest.sha256, to))
    assert to.samefile(tmp_path / "store" / "t1" / "a.pt"), "however large, it takes no time"
    with to.open("r+b") as file:
        file.write(b"W")
    with pytest.raises(StoreError, match="damaged"):
        asyncio.run(made.fetch("t1", "a", manifest.sha256, to))


def test_checkpoints_of_a_trial_that_the_journal_lacks_are_kept_where_no_other_takes_them(tmp_path):
    for trial in ("t1", "t2"):
        save(tmp_path / trial, "a")
    os.utime(tmp_path / "t2" / "a.json", (1000, 2000))
    made = DirectoryStore(tmp_path)
    assert asyncio.run(made.set_aside({"t1"})) == {"t2": pytest.approx(2000.0)}
    assert [one.name for one in asyncio.run(made.newer("t1", 1, ""))] == ["a"]
    assert asyncio.run(made.newer("t2", 1, "")) == []
    assert names(tmp_path) == [".t2-lost-2000", "t1"]
    assert names(tmp_path / ".t2-lost-2000") == ["a.json", "a.pt"]
    assert asyncio.run(made.set_aside({"t1"})) == {}
    assert asyncio.run(DirectoryStore(tmp_path / "nowhere").set_aside(())) == {}


@pytest.mark.parametrize("can_link", [True, False])
def test_what_takes_too_long_at_the_end_is_given_up(tmp_path, monkeypatch, can_link):
    if not can_link:
        monkeypatch.setattr(transfer.os, "link", no_link)
    save(tmp_path / "local", "a", bytes(1 << 20))
    directory = Directory(tmp_path / "store", GOAL, cut_s=0.0)
    directory.cut()
    with pytest.raises(NotNowError, match="no time left"):
        directory.put(tmp_path / "local", "a")
    assert not (tmp_path / "store" / "a.json").exists()


def test_the_store_keeps_the_newest_two_once_a_new_one_is_whole(tmp_path):
    for name in ("1", "2", "3"):
        save(tmp_path / "local", name)
        store(tmp_path / "local", tmp_path / "store", name, GOAL)
    assert names(tmp_path / "store") == ["2.json", "2.pt", "3.json", "3.pt"]
    save(tmp_path / "local", "4", size=1)
    with pytest.raises(CheckpointError):
        store(tmp_path / "local", tmp_path / "store", "4", GOAL)
    assert names(tmp_path / "store") == ["2.json", "2.pt", "3.json", "3.pt"]


@pytest.mark.parametrize(("mode", "best"), [("max", "2"), ("min", "1")])
def test_the_best_stays_beside_the_newest_two(tmp_path, mode, best):
    metrics = {"1": 0.2, "2": 0.9, "3": None, "4": 0.5, "5": 0.6}
    for name, metric in metrics.items():
        save(tmp_path / "local", name, metrics={"accuracy": metric})
        store(tmp_path / "local", tmp_path / "store", name, Comparison("accuracy", mode))
    stay = {path.stem for path in (tmp_path / "store").iterdir()}
    assert stay == {best, "4", "5"}


def test_of_equal_ones_the_newest_is_the_best(tmp_path):
    for name in ("1", "2", "3"):
        save(tmp_path / "local", name, metrics={"accuracy": 0.5})
        store(tmp_path / "local", tmp_path / "store", name, GOAL)
    assert names(tmp_path / "store") == ["2.json", "2.pt", "3.json", "3.pt"]


def test_what_was_stored_just_now_stays_even_if_others_have_later_names(tmp_path):
    for name in ("5", "6", "4"):
        save(tmp_path / "local", name)
        store(tmp_path / "local", tmp_path / "store", name, GOAL)
    assert "4.json" in names(tmp_path / "store")


def test_a_directory_that_cannot_be_written_is_tried_again_after_a_while(tmp_path):
    save(tmp_path / "local", "1")
    (tmp_path / "store").write_text("no folder")
    checkpoint_store = Directory(tmp_path / "store" / "t1", GOAL)
    with pytest.raises(NotNowError, match="1 cannot be copied"):
        checkpoint_store.put(tmp_path / "local", "1")
    assert not checkpoint_store.ready()
    (tmp_path / "store").unlink()
    while not checkpoint_store.ready():
        pass
    assert checkpoint_store.put(tmp_path / "local", "1")[0] == "1"
    save(tmp_path / "local", "2", size=1)
    with pytest.raises(CheckpointError) as damaged:
        checkpoint_store.put(tmp_path / "local", "2")
    assert not isinstance(damaged.value, NotNowError)
    assert checkpoint_store.ready()


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "{}",
        '"x"',
        "[" * 3000,
        "x" * 70_000,
        '{"name": "b", "epoch": 1, "metrics": {}, "sha256": "", "size": 7}',
        '{"name": "a", "epoch": "1", "metrics": {}, "sha256": "", "size": 7}',
        '{"name": "a", "epoch": 1, "metrics": {}, "sha256": "0000", "size": 7}',
        '{"name": "a", "epoch": 1, "metrics": {}, "sha256": "' + "0" * 64 + '", "size": 7}',
    ],
)
def test_a_checkpoint_that_is_not_what_its_manifest_says_is_not_stored(tmp_path, manifest):
    save(tmp_path / "local", "a")
    (tmp_path / "local" / "a.json").write_text(manifest)
    with pytest.raises(CheckpointError):
        store(tmp_path / "local", tmp_path / "store", "a", GOAL)
    assert not (tmp_path / "store" / "a.json").exists()


def test_nothing_that_could_block_is_read(tmp_path):
    save(tmp_path / "local", "a").unlink()
    os.mkfifo(tmp_path / "local" / "a.pt")
    os.mkfifo(tmp_path / "local" / "b.json")
    for name in ("a", "b"):
        with pytest.raises(CheckpointError):
            store(tmp_path / "local", tmp_path / "store", name, GOAL)


def test_the_newest_of_the_named_is_fetched(tmp_path):
    save(tmp_path / "store", "1")
    save(tmp_path / "store", "2", b"newer")
    assert fetch(tmp_path / "store", tmp_path / "local", ["2", "1"]) == "2"
    assert names(tmp_path / "local") == ["2.json", "2.pt"]


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(b"weightx"), lambda path: path.unlink()]
)
def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path, damage):
    save(tmp_path / "store", "1")
    damage(save(tmp_path / "store", "2"))
    assert fetch(tmp_path / "store", tmp_path / "local", ["2", "1"]) == "1"
    assert fetch(tmp_path / "store", tmp_path / "local", ["2"]) is None


def test_a_good_local_copy_spares_the_fetch_and_a_damaged_one_does_not(tmp_path):
    save(tmp_path / "local", "1")
    assert fetch(tmp_path / "nowhere", tmp_path / "local", ["1"]) == "1"
    (tmp_path / "local" / "1.pt").write_bytes(b"damaged")
    save(tmp_path / "store", "1")
    assert fetch(tmp_path / "store", tmp_path / "local", ["1"]) == "1"
    assert (tmp_path / "local" / "1.pt").read_bytes() == b"weights"


def test_only_what_is_named_can_be_restored(tmp_path):
    for name in ("1", "2"):
        save(tmp_path / "local", name)
    fetch(tmp_path / "store", tmp_path / "local", ["1"])
    assert names(tmp_path / "local") == ["1.json", "1.pt"]
    fetch(tmp_path / "store", tmp_path / "local", [])
    assert names(tmp_path / "local") == []


@pytest.mark.parametrize("name", ["t0001", "000004-00000120", "a.b_c", "x" * 64])
def test_names_that_may_be_part_of_a_path(name):
    assert is_safe(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "a/b", "/a", "a\n", "a\0", "x" * 65, "ä", None, 1, ["a"]]
)
def test_names_that_may_not(name):
    assert not is_safe(name)


def test_the_core_keeps_as_many_checkpoints_as_agents_do() -> None:
    """It imports nothing of theirs, and has a rule of its own."""
    assert Rules().kept_checkpoints == KEPT
