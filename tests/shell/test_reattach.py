"""What a run that is taken up again finds: against an agent that takes connections and does not answer, and a real directory of checkpoints."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.protocol import Job
from seerd.core.events import Saved
from seerd.shell import dispatch
from seerd.shell.clock import RunClock
from seerd.shell.dispatch import Dispatch, Found
from seerd.shell.providers.base import Connection, Loss, never
from seerd.shell.stores.directory import DirectoryStore
from seerd.shell.world import Core, Running, World

JOB = Job("source", "train.py", [], "python", "python3", {}, [], "store", "accuracy", "max", [1], 1, 10.0)


class Mute:
    """One instance that is there; its agent says nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        pass

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> list[str]:
        return list(known)

    async def connect(self, instance: str) -> Connection:
        return await asyncio.open_unix_connection(str(self._path))

    async def loss(self) -> Loss:
        return await never()

    async def close(self) -> None:
        pass


def save(folder: Path, name: str, epoch: int) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    data = name.encode()
    sha256 = hashlib.sha256(data).hexdigest()
    (folder / f"{name}.pt").write_bytes(data)
    manifest = {
        "version": 1,
        "name": name,
        "epoch": epoch,
        "metrics": {"accuracy": 0.9},
        "sha256": sha256,
        "size": len(data),
    }
    (folder / f"{name}.json").write_text(json.dumps(manifest))
    return sha256


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readline():
        pass
    writer.close()


async def found(folder: Path) -> Found:
    server = await asyncio.start_unix_server(silence, str(folder / "s"))
    core = Core(
        emit=lambda _: None,
        crash=lambda _: None,
        pending=lambda _: [],
        running=lambda _: [Running("t1", 1, 0, "000060-00000060")],
        known=lambda _: (0, ""),
        lease=lambda: (60.0, 1.0),
    )
    world = World(Mute(folder / "s"), DirectoryStore(folder / "store"), JOB, "r1", "accuracy", folder)  # type: ignore[arg-type]
    carrying = Dispatch(world, core, RunClock(0.0))
    await carrying.open()
    try:
        return await carrying.reattach(["local-1"], [])
    finally:
        await carrying.close()
        server.close()


def test_what_an_agent_that_does_not_answer_yet_has_stored_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "REATTACH_S", 0.1)
    with tempfile.TemporaryDirectory() as folder:
        sha256 = save(Path(folder) / "store" / "t1", "000099-00000099", 99)
        got = asyncio.run(found(Path(folder)))
    assert got.alive == ("local-1",)
    assert [(one.trial, one.attempt, one.name, one.epoch, one.sha256) for one in got.saved] == [
        ("t1", 1, "000099-00000099", 99, sha256)
    ]
    assert isinstance(got.saved[0], Saved)
