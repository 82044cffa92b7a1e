"""What every store promises, with agents at its other end: a checkpoint is whole or not there, and
used only if it was confirmed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from seerd.agent.manifest import CheckpointError, Comparison
from seerd.agent.presigned_urls import PresignedUrls
from seerd.agent.protocol import Ask
from seerd.agent.remote_store import CheckpointStore, RemoteStore
from seerd.agent.transfer import Directory
from seerd.errors import StoreError
from seerd.stores.base import Store
from seerd.stores.by_address import by_address


@dataclass
class Kind:
    """A kind of store: to make one, to look at and to damage what is in it."""

    make: Callable[[], Store]
    there: Callable[[], set[str]]
    write: Callable[[str, bytes], None]
    remove: Callable[[str], None]


@pytest.fixture(params=["directory", "s3"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "directory":
        folder = tmp_path / "store"
        yield Kind(
            lambda: by_address(str(folder)).store("r1", time.time() + 3600, None),
            lambda: {path.name for path in folder.glob("t1/*")},
            lambda name, data: (folder / "t1" / name).write_bytes(data) and None,
            lambda name: (folder / "t1" / name).unlink(),
        )
        return
    request.getfixturevalue("s3")
    client, where = boto3.client("s3"), {"Bucket": "bucket"}
    yield Kind(
        lambda: by_address("s3://bucket/seerd").store("r1", time.time() + 3600, None),
        lambda: {
            o["Key"].rpartition("/")[2] for o in client.list_objects_v2(**where).get("Contents", [])
        },
        lambda name, data: (
            client.put_object(**where, Key=f"seerd/r1/t1/{name}", Body=data) and None
        ),
        lambda name: client.delete_object(**where, Key=f"seerd/r1/t1/{name}") and None,
    )


def test_an_address_says_how_agents_reach_the_store_and_an_unknown_one_is_named() -> None:
    assert not by_address("/there").by_urls
    assert by_address("/there").what_stays() == ""
    assert by_address("s3://bucket/seerd").by_urls
    assert "s3://bucket/seerd stay" in by_address("s3://bucket/seerd").what_stays()
    with pytest.raises(StoreError, match='gs://b is no place for checkpoints: "s3://bucket'):
        by_address("gs://b")


class Both:
    """A daemon with its store, and an agent."""

    def __init__(self, kind: Kind, local: Path) -> None:
        self.kind = kind
        self.local = local

    def daemon(self, work: Callable[[Store], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            store = self.kind.make()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def agent(self, first: int = 1, checkpoints: tuple[str, ...] = ()) -> CheckpointStore:
        address = self.kind.make().address
        grant = self.daemon(lambda store: store.presign("t1", 1, first, checkpoints))
        assert (grant is None) == bool(address)
        if grant is None:
            return Directory(Path(address) / "t1", Comparison("accuracy", "max"))
        urls = PresignedUrls("t1", 1, lambda _: False)
        urls.take(grant)
        return RemoteStore(urls)

    def save(self, name: str, data: bytes, **other: Any) -> None:
        self.local.mkdir(exist_ok=True)
        (self.local / f"{name}.pt").write_bytes(data)
        about = {
            "name": name,
            "epoch": 1,
            "metrics": {},
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
        }
        (self.local / f"{name}.json").write_text(json.dumps({**about, **other}))

    def put(self, name: str, data: bytes, first: int = 1) -> tuple[str, str]:
        """Saved and stored: its name in the store, and its checksum."""
        self.save(name, data)
        there, manifest = self.agent(first).put(self.local, name)
        self.daemon(lambda store: store.keep("t1", [there]))
        return there, manifest.sha256


@pytest.fixture
def both(kind: Kind, tmp_path: Path) -> Both:
    made = Both(kind, tmp_path / "local")
    made.daemon(lambda store: store.open())
    return made


def test_what_an_agent_puts_the_daemon_fetches(both, tmp_path):
    name, sha256 = both.put("000001-1", b"weights")
    both.daemon(lambda store: store.fetch("t1", name, sha256, tmp_path / "best" / "checkpoint.pt"))
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["checkpoint.pt"]
    assert (tmp_path / "best" / "checkpoint.pt").read_bytes() == b"weights"


@pytest.mark.parametrize("data", [b"weightx", b"", b"weights and more"])
def test_the_daemon_takes_nothing_but_what_was_confirmed(both, tmp_path, data):
    name, sha256 = both.put("000001-1", b"weights")
    both.kind.remove(f"{name}.pt")
    both.kind.write(f"{name}.pt", data)
    with pytest.raises(StoreError, match="damaged"):
        both.daemon(
            lambda store: store.fetch("t1", name, sha256, tmp_path / "best" / "checkpoint.pt")
        )
    assert list((tmp_path / "best").iterdir()) == []


def test_the_daemon_is_told_what_is_missing(both, tmp_path):
    name, sha256 = both.put("000001-1", b"weights")
    both.kind.remove(f"{name}.pt")
    with pytest.raises(StoreError, match=name):
        both.daemon(lambda store: store.fetch("t1", name, sha256, tmp_path / "checkpoint.pt"))
    assert not (tmp_path / "checkpoint.pt").exists()


def test_the_daemon_reads_what_a_checkpoint_says_of_itself(both):
    both.save("000001-1", b"weights", metrics={"f1": 0.5, "loss": None}, versions={"torch": "2"})
    name, _ = both.agent().put(both.local, "000001-1")
    found = both.daemon(lambda store: store.manifest("t1", name))
    assert (found.metrics, found.versions) == ({"f1": 0.5, "loss": None}, {"torch": "2"})
    assert both.kind.make().place("t1", name).endswith(f"t1/{name}.pt")
    both.kind.write(f"{name}.json", b"{}")
    with pytest.raises(StoreError, match="damaged"):
        both.daemon(lambda store: store.manifest("t1", name))
    both.kind.remove(f"{name}.json")
    with pytest.raises(StoreError, match=name):
        both.daemon(lambda store: store.manifest("t1", name))


@pytest.mark.parametrize("versions", [[], {"torch": 2}, {str(n): "1" for n in range(17)}])
def test_versions_that_are_none_make_no_checkpoint(both, versions):
    both.save("000001-1", b"weights", versions=versions)
    with pytest.raises(CheckpointError):
        both.agent().put(both.local, "000001-1")


def test_a_checkpoint_that_is_not_what_it_says_never_exists(both):
    both.save("000001-1", b"weights", size=8)
    with pytest.raises(CheckpointError):
        both.agent().put(both.local, "000001-1")
    assert not any(name.endswith(".json") for name in both.kind.there())


def test_the_next_attempt_has_the_newest_under_its_own_name_and_no_other(both, tmp_path):
    first, _ = both.put("000001-1", b"old")
    second, _ = both.put("000002-2", b"new", first=2)
    shutil.rmtree(both.local)
    assert both.agent(3, (second, first)).fetch(tmp_path / "next", [second, first]) == "000002-2"
    assert {path.name for path in (tmp_path / "next").iterdir()} == {"000002-2.json", "000002-2.pt"}


@pytest.mark.parametrize("lost", ["pt", "json"])
def test_a_newest_that_is_half_gone_falls_back_to_the_one_before(both, tmp_path, lost):
    names = []
    for number in (1, 2):
        both.save(f"00000{number}-1", b"weights")
        names.insert(0, both.agent(number).put(both.local, f"00000{number}-1")[0])
    both.kind.remove(f"{names[0]}.{lost}")
    shutil.rmtree(both.local)
    assert both.agent(3, tuple(names)).fetch(tmp_path / "next", names) == "000001-1"


def test_a_question_for_parts_is_never_an_error(both):
    answer = both.daemon(lambda store: store.parts(Ask("t1", 1, "0001-000001", 1 << 60)))
    assert (answer.name, answer.urls) == ("0001-000001", [])


def test_keeping_the_newest_two_leaves_them(both):
    there = []
    for number in (1, 2, 3):
        both.save(f"00000{number}-1", b"weights")
        there.append(both.agent(number).put(both.local, f"00000{number}-1")[0])
    both.daemon(lambda store: store.keep("t1", there[1:]))
    assert both.kind.there() == {
        f"{name}.{suffix}" for name in there[1:] for suffix in ("pt", "json")
    }


def test_what_nobody_told_of_is_found_oldest_first_and_rubbish_is_passed_over(both):
    told, _ = both.put("000001-1", b"weights")
    both.save("000002-2", b"more", epoch=2, metrics={"accuracy": 0.5, "loss": None})
    later, _ = both.agent(2).put(both.local, "000002-2")
    both.save("000003-3", b"most", epoch=3)
    last, manifest = both.agent(3).put(both.local, "000003-3")
    for name in ("0001-000008.json", "0001-000009.json"):
        both.kind.write(name, b"[" * 100_000 if "8" in name else b'{"epoch": -1}')
    found = both.daemon(lambda store: store.newer("t1", 1, told))
    assert [(one.name, one.epoch, dict(one.metrics)) for one in found] == [
        (later, 2, {"accuracy": 0.5, "loss": None}),
        (last, 3, {}),
    ]
    assert (found[-1].sha256, found[-1].size) == (manifest.sha256, 4)
    assert both.daemon(lambda store: store.newer("t1", 1, last)) == []
    assert both.daemon(lambda store: store.newer("t2", 1, "")) == []
