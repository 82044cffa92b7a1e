"""What a run that is taken up again finds: against an agent that takes connections and does not
answer, and a real directory of checkpoints.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seerd.agent.clock import since_boot
from seerd.agent.host import boot_id
from seerd.agent.journal import AgentJournal
from seerd.agent.protocol import VERSION, Exited, Hello, Reported, Shutdown, Welcome
from seerd.agent.wire import decode, encode
from seerd.backends.base import Adopted, Connection, Loss
from seerd.backends.local.provider import LocalProvider
from seerd.clock import RunClock, unlimited, wall
from seerd.core.commands import Terminate
from seerd.core.events import Checkpoint, InstanceLost, TrialExited, TrialReported
from seerd.shell.agents import Conversation
from seerd.shell.daemon import Tasks
from seerd.shell.dispatch import Dispatch, Reattached
from seerd.shell.losses import Losses
from seerd.shell.policy import PolicyProcess
from seerd.shell.run_environment import RunEnvironment, Running
from seerd.shell.timings import TIMINGS, DaemonTimings
from seerd.shell.translate import InstanceOrders
from seerd.stores.directory import DirectoryStore
from tests.conftest import small_facts
from tests.shell.place import JOB, Core, holds


class Mute:
    """One instance that is there; its agent says nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None:
        pass

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        return list(known), []

    async def connect(self, instance: str) -> Connection:
        return await asyncio.open_unix_connection(str(self._path))

    def journal(self, instance: str) -> None: ...

    async def loss(self) -> Loss:
        return await asyncio.get_running_loop().create_future()

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


async def found(folder: Path, timings: DaemonTimings, off_in_s: float = math.inf) -> Reattached:
    server = await asyncio.start_unix_server(silence, str(folder / "s"))
    core = Core(RunClock(0.0), attempts=[Running("t1", 1, 0, "000060-00000060")])
    mute: Any = Mute(folder / "s")
    policy = PolicyProcess(small_facts().problem)
    store = DirectoryStore(folder / "store")
    environment = RunEnvironment(
        *(mute, store, policy, JOB, "r1", "accuracy", folder), timings=timings
    )
    try:
        async with Tasks() as tasks:
            carrying = Dispatch(environment, core, tasks)
            await carrying.open()
            return await carrying.reattach(["local-1"], [], lambda: off_in_s)
    finally:
        await carrying.close()
        server.close()


class Gate:
    """The way to an agent that can be gone when `reachable`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reachable = asyncio.Event()

    async def connect(self, instance: str) -> Connection:
        await self.reachable.wait()
        return await asyncio.open_unix_connection(str(self._path))

    async def end_agent(self, instance: str, grace_s: float) -> None:
        raise AssertionError("it speaks our version")


async def told_to_end(folder: Path) -> float:
    """How long it takes to have an agent end that can be connected to only after it was to be
    told.
    """
    gate: Any = Gate(folder / "s")

    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = decode(line)
            if isinstance(message, Hello):
                writer.write(encode(Welcome(VERSION, "1", 4, 0, time.time(), [], "one")))
            elif isinstance(message, Shutdown):
                break
        writer.close()

    server = await asyncio.start_unix_server(agent, str(folder / "s"))
    policy = PolicyProcess(small_facts().problem)
    environment = RunEnvironment(
        gate, DirectoryStore(folder), policy, JOB, "r1", "accuracy", folder
    )
    core = Core(RunClock(0.0))
    async with Tasks() as tasks:
        orders, losses = (
            InstanceOrders("local-1", environment, core),
            Losses(environment, core, tasks),
        )
        conversation = Conversation(orders, losses, tasks)
        taking_up = asyncio.create_task(conversation.start())
        await asyncio.sleep(0)
        began = time.monotonic()
        ending = asyncio.create_task(conversation.shut_down("9.0"))
        await asyncio.sleep(0)
        gate.reachable.set()
        await ending
        await asyncio.gather(taking_up, return_exceptions=True)
    server.close()
    return time.monotonic() - began


def test_an_agent_that_is_only_just_being_connected_to_is_told_to_end() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(told_to_end(Path(folder))) < TIMINGS.answer_s / 2


def test_what_an_agent_that_does_not_answer_yet_has_stored_is_known() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sha256 = save(Path(folder) / "store" / "t1", "000099-00000099", 99)
        got = asyncio.run(found(Path(folder), DaemonTimings(reattach_s=0.1)))
    assert got.alive == ("local-1",)
    assert [(one.trial, one.attempt, one.name, one.reports, one.sha256) for one in got.saved] == [
        ("t1", 1, "000099-00000099", 99, sha256)
    ]
    assert isinstance(got.saved[0], Checkpoint)


BEHIND_S = 1000.0
"""How far the time of agents is behind the wall clock here."""
AGO_S = 30.0
"""How long ago, by their time, they had their reports."""


def note(journal: AgentJournal, *reports: int) -> None:
    for epoch in reports:
        at = wall() - BEHIND_S - AGO_S
        journal.add([Reported(0, at, "t1", 1, epoch, {"accuracy": 0.5}, 1.0)])


def test_an_agent_that_does_not_answer_is_not_waited_for_when_a_limit_has_come(
    tmp_path: Path,
) -> None:
    began, timings = time.monotonic(), DaemonTimings(reattach_s=60.0, overdue_s=0.1)
    assert asyncio.run(found(tmp_path, timings, off_in_s=-5.0)).alive == ("local-1",)
    assert time.monotonic() - began < 30.0


async def heard(folder: Path, epochs: int) -> list[Any]:
    """The events of an agent that has noted so many reports and then its trial's end, and that
    does not come up again: what is heard when the run is resumed, and when it is given back.
    """
    (folder / "local-1").mkdir()
    kept = {"boot": boot_id(), "zero": wall() - BEHIND_S - since_boot()}
    (folder / "local-1" / "clock.json").write_text(json.dumps(kept))
    journal = AgentJournal(folder / "local-1" / "journal.jsonl")
    note(journal, *range(1, epochs))
    silent = folder / "agent.pyz"
    silent.write_text("import time; time.sleep(600)")
    here = LocalProvider(
        *(folder, "r1", silent, 1), cuda=False, lease_s=60.0, grace_s=1.0, start_s=0.1, end_s=0.1
    )
    store, policy = DirectoryStore(folder / "store"), PolicyProcess(small_facts().problem)
    environment = RunEnvironment(
        *(here, store, policy, JOB, "r1", "accuracy", folder), timings=DaemonTimings(reattach_s=0.1)
    )
    core = Core(RunClock(0.0))
    try:
        async with Tasks() as tasks:
            carrying = Dispatch(environment, core, tasks)
            await carrying.open()
            await carrying.reattach(["local-1"], [])
            assert [event.reports for event in core.events] == list(range(1, epochs))
            note(journal, epochs)
            journal.add([Exited(0, time.time(), "t1", 1, "asked", 0)])
            carrying.carry_out([Terminate(id="9.0", why="over", instance="local-1")])
            await holds(lambda: isinstance(core.events[-1], InstanceLost))
    finally:
        await carrying.close()
        for process in here.spawned["local-1"]:
            process.kill()
            process.wait()
        journal.close()
    return core.events


def test_what_an_agent_on_this_machine_had_noted_is_heard_though_it_does_not_come_up(
    tmp_path: Path,
) -> None:
    """As after a long absence on a busy machine: its lease had ended, and the next agent starts too
    late for the run's deadline.
    """
    *facts, last, lost = asyncio.run(heard(tmp_path, 5))
    assert [event.reports for event in facts if isinstance(event, TrialReported)] == [1, 2, 3, 4, 5]
    assert len(facts) == 5, "each of them once"
    assert all(fact.at - 90.0 < fact.happened <= fact.at - AGO_S for fact in facts), (
        "by the agent's clock"
    )
    assert isinstance(last, TrialExited)
    assert isinstance(lost, InstanceLost)
