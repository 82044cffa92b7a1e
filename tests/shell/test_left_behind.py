"""Models that only a machine has: which is fetched, that it is whole, and where it is then."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from seerd.core.commands import Terminate
from seerd.core.events import Checkpoint
from seerd.core.state import State
from seerd.errors import ProviderError
from seerd.shell.left_behind import LeftBehind
from seerd.stores.base import Store
from seerd.stores.directory import DirectoryStore
from seerd.stores.s3.store import S3Store
from tests.core.test_alike import run_of
from tests.s3front import Front, drop

MOST_S = 60.0


def made(folder: Path, trial: str, name: str, metric: float | None, **other: Any) -> bytes:
    """A checkpoint as its trial has saved it on the machine."""
    at = folder / "trials" / trial / "checkpoints"
    at.mkdir(parents=True, exist_ok=True)
    data = f"{trial} {name}".encode()
    manifest = {"version": 1, "name": name, "epoch": 4, "metrics": {"accuracy": metric}}
    manifest |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), **other}
    (at / f"{name}.pt").write_bytes(data)
    (at / f"{name}.json").write_text(json.dumps(manifest, indent=2 if name == "2" else None))
    return data


class Machine:
    """A machine's files, and how LeftBehind reads them."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.folder = folder / "machine"
        self.read_most: dict[str, int] = {}
        store = DirectoryStore(folder / "store") if store is None else store
        self.left = LeftBehind(folder / "fetched", store, self.read)

    async def read(self, instance: str, path: str, to: Path, most: int) -> None:
        assert instance == "i"
        self.read_most[path] = most
        self._copy(path, to, most)

    def _copy(self, path: str, to: Path, most: int) -> None:
        data = b"".join(file.read_bytes() for file in sorted(self.folder.glob(path)))
        to.write_bytes(data[:most])

    def fetch(self, state: State, *left: tuple[str, int]) -> list[Checkpoint]:
        command = Terminate(id="9.0", instance="i", why="end", left=left)
        return asyncio.run(self.left.fetch(command, state))


def test_the_best_that_is_whole_is_fetched_with_no_more_bytes_than_it_has(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    data = made(machine.folder, "a", "1", 0.5)
    made(machine.folder, "a", "2", 0.9)
    made(machine.folder, "a", "3", None)
    made(machine.folder, "b", "4", 0.8)
    made(machine.folder, "b", "5", 1.0, sha256="none")
    (best,) = machine.fetch(run_of("a", "b").state, ("b", 2), ("a", 1))
    assert (best.trial, best.attempt, best.name, best.metric) == ("a", 1, "2", 0.9)
    assert (tmp_path / "fetched" / "a" / "2.pt").read_bytes() == b"a 2"
    assert machine.read_most["trials/a/checkpoints/2.pt"] == len(data)


def test_nothing_is_fetched_where_nothing_was_saved(tmp_path: Path) -> None:
    assert Machine(tmp_path).fetch(run_of("a").state, ("a", 1)) == []


def test_bytes_that_came_damaged_are_no_model(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    made(machine.folder, "a", "1", 0.5, sha256="0" * 64)
    with pytest.raises(ProviderError, match="1 of a came damaged"):
        machine.fetch(run_of("a").state, ("a", 1))


def test_one_that_is_stored_from_here_is_in_the_store_alone(tmp_path: Path, s3: Front) -> None:
    s3.fail("PUT .pt", drop)
    store = S3Store("s3://bucket/seerd", "r1", time.time() + 3600)
    machine = Machine(tmp_path, store)
    data = made(machine.folder, "a", "1", 0.5)
    (fetched,) = machine.fetch(run_of("a").state, ("a", 3))

    async def kept() -> tuple[Checkpoint, bool]:
        try:
            return await machine.left.keep(fetched, MOST_S)
        finally:
            await store.close()

    checkpoint, stored = asyncio.run(kept())
    assert (checkpoint.name, stored) == ("0003-999999", True)
    key = "seerd/r1/a/0003-999999.pt"
    assert boto3.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read() == data
    assert machine.left.store_of("a", checkpoint.name) is store
    assert list((tmp_path / "fetched").rglob("*.pt")) == []


def test_one_that_cannot_be_stored_either_is_handed_back_from_here(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    data = made(machine.folder, "a", "1", 0.5)
    (fetched,) = machine.fetch(run_of("a").state, ("a", 3))
    checkpoint, stored = asyncio.run(machine.left.keep(fetched, MOST_S))
    assert (checkpoint.name, stored) == ("0003-999999", False)
    store, to = machine.left.store_of("a", checkpoint.name), tmp_path / "best.pt"
    asyncio.run(store.fetch("a", checkpoint.name, checkpoint.sha256, to))
    assert to.read_bytes() == data
    assert asyncio.run(store.manifest("a", checkpoint.name)).metrics == {"accuracy": 0.5}
