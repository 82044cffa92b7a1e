"""Readable transcripts of whole runs in the fault world: what AWS is asked, what agents are told,
what stands in the journal and what is handed back, each with its moment in virtual time.

`pytest tests/shell/test_run_transcripts.py --rewrite` accepts what comes out now; review the
difference before you commit it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seerd.agent.protocol import Ack
from seerd.agent.wire import decode
from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent
from seerd.shell.journal import Entry
from tests.faults.coordinator import Coordinator
from tests.faults.ec2 import Client
from tests.faults.machines import Door
from tests.faults.scenario import scenario
from tests.faults.wires import Wire
from tests.faults.world import Play

FOLDER = Path(__file__).parent / "transcripts"
SEEDS = (7, 38, 508, 512, 518, 526, 543, 560, 563)
"""Of the fault world: short runs that together pass through most of the shell."""
MOST = 48
"""Characters of a line's details; of longer ones the rest is a checksum."""
LIMITS_IN_USER_DATA = re.compile(r"this instance ends at (\d+)|^(most=\d+)$", re.MULTILINE)
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_is_carried_out_as_it_was(
    seed: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = "".join(f"{line}\n" for line in transcript(seed, tmp_path, monkeypatch))
    path = FOLDER / f"{seed}.txt"
    if request.config.getoption("--rewrite"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(got)
    assert got == path.read_text(), "if this is right: pytest tests/shell --rewrite"


def transcript(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Play the run of this seed, and return what happens in it."""
    whole = scenario(seed, parts=1)
    # Python's versions take different numbers of steps.
    kills = tuple(kill for kill in whole.kills if kill.step is None)
    world = Play(replace(whole, kills=kills), folder, told=False)
    lines: list[str] = []

    def note(what: str, fields: Mapping[str, Any]) -> None:
        told = {key: of for key, of in fields.items() if key not in {"kind", "at"}}
        details = written(told).replace(str(folder), "RUN")
        lines.append(f"{world.now:.3f} {what} {shortened(details)}".rstrip())

    call, write, ready, committed = Client._call, Wire.write, Door.ready, Coordinator.said_all

    async def called(client: Client, operation: str, **request: Any) -> dict[str, Any]:
        note(f"AWS {operation}", readable(request))
        return await call(client, operation, **request)

    def told(wire: Wire, data: bytes) -> None:
        order = decode(data)
        if not isinstance(order, Ack):  # how often depends on what else is committed
            note(f"agent: {order.kind}", msgspec.to_builtins(order))
        write(wire, data)

    async def waited_for(door: Door, machine: Any, patience_s: float, **more: Any) -> None:
        note(f"SSH {machine.name}", {"address": machine.address, "patience_s": patience_s})
        await ready(door, machine, patience_s, **more)

    def noted(coordinator: Coordinator, entries: list[Entry]) -> None:
        for entry in entries:
            note(f"event {entry.seq} {_kind(entry.event)}", msgspec.to_builtins(entry.event))
            for command in entry.commands:
                note(f"    {_kind(command)}", msgspec.to_builtins(command))
        committed(coordinator, entries)

    monkeypatch.setattr(Client, "_call", called)
    monkeypatch.setattr(Wire, "write", told)
    monkeypatch.setattr(Door, "ready", waited_for)
    monkeypatch.setattr(Coordinator, "said_all", noted)
    report = world.run()
    assert not report.wrong
    results = sorted(path for path in (folder / "best").rglob("*") if path.is_file())
    answers = sorted((folder / "requests").glob("*.reply"))
    return [*lines, *(f"{path.relative_to(folder)}: {kept(path)}" for path in [*results, *answers])]


def _kind(value: AnyEvent | AnyCommand) -> str:
    return type(value).__name__


def readable(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request to AWS without the keys that are made anew in each run."""
    if "UserData" not in request:
        return request
    limits = [end or most for end, most in LIMITS_IN_USER_DATA.findall(request["UserData"])]
    return {**request, "UserData": limits}


def written(value: Any) -> str:
    """Return a value in few characters: without quotes and what is empty, with the digits that
    count.
    """
    if isinstance(value, dict):
        held = {key: of for key, of in value.items() if of not in (None, "", [], {}, ())}
        return " ".join(f"{key}={written(of)}" for key, of in held.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def shortened(text: str) -> str:
    """Return the text, or where it is long its beginning and a checksum of all of it."""
    if len(text) <= MOST:
        return text
    return f"{text[:MOST]}... {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def kept(path: Path) -> str:
    """Return what is in a file that a run leaves."""
    content = path.read_bytes()
    return f"{len(content)} bytes" if path.suffix == ".pt" else written(json.loads(content))
