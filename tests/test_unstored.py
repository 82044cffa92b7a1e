"""What a machine has and the store has not: a better model, and a checkpoint that holds none."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from seerd.runs.unstored import note
from seerd.shell.home import RunFolder
from tests.core.test_alike import run_of


@pytest.mark.parametrize("empty", [False, True])
def test_only_a_checkpoint_that_holds_a_model_is_a_better_one(
    tmp_path: Path, *, empty: bool
) -> None:
    run = run_of("a")
    run.state.facts = msgspec.structs.replace(run.state.facts, promises=True)
    run.state.jobs[""].empty, run.state.jobs[""].promised = empty, not empty
    kept = tmp_path / "instances" / "i-1" / "trials" / "a" / "checkpoints"
    kept.mkdir(parents=True)
    (kept / "0001-000005.pt").write_bytes(b"weights")
    manifest = {
        "version": 1,
        "name": "0001-000005",
        "epoch": 5,
        "metrics": {run.state.facts.metric: 0.5},
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "size": 7,
    }
    (kept / "0001-000005.json").write_text(json.dumps(manifest))
    told = note(RunFolder(tmp_path), run.state)
    assert [line.split(":")[0] for line in told] == (
        [] if empty else ["a model of a (accuracy 0.5, 5 reports) is better, and was not stored"]
    )
