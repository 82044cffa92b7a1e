"""Journals of earlier versions must still replay: every line is an event and the commands that followed from it.

A new file is made from a run's journal when a version is released; files are never changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seerd.core.codec import decode_commands, decode_event, encode_commands
from seerd.core.events import RunStarted
from seerd.core.lifecycle import RunPhase
from seerd.core.state import new_state
from seerd.core.step import step

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_old_run_still_replays(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = decode_event(json.dumps(rows[0]["event"]).encode())
    assert isinstance(first, RunStarted)
    state = new_state(first.facts)
    for row in rows:
        commands = step(state, decode_event(json.dumps(row["event"]).encode()))
        assert encode_commands(commands) == encode_commands(decode_commands(json.dumps(row["commands"]).encode()))
    assert state.phase is RunPhase.OVER
    assert state.result.published is not None
