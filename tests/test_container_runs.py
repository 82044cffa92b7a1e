"""Runs whose trials are in containers, from the spec to the model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import Command
from tests.podman import IMAGE, Podman, podman_here

SPEC = f"""
name = "inside"
metric = {{ name = "score", mode = "max" }}
[train]
script = "train.py"
launcher = "python"
container = "{IMAGE}"
setup = ["echo set up >made"]
secrets = ["TOKEN"]
[space]
x = [1, 2, 3]
[policy]
name = "grid"
max_reports = 3
[limits]
deadline = "5m"
budget = "20gpu-min"
[cluster]
gpus = 2
"""
SECRET = "a-token-of-theirs-71d0"
SCRIPT = f"""
import hashlib, os
import seerd
trial = seerd.trial()
assert os.environ["MADE_BY"] == "image" and "WRITTEN_OUTSIDE" not in os.environ
digest = hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest()
assert digest == "{hashlib.sha256(SECRET.encode()).hexdigest()}"
while trial.running() and trial.epoch < 3:
    trial.report(score=trial.config["x"] + trial.epoch)
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with podman_here() as podman:
        yield podman


def test_a_run_in_containers_ends_as_any_other_and_leaves_none(
    tmp_path: Path, podman: Podman
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "train.py").write_text(SCRIPT)
    home = tmp_path / "home"
    own = {"SEERD_HOME": str(home), "TOKEN": SECRET, "WRITTEN_OUTSIDE": "1"}
    env = {**os.environ, **podman.env, **own}
    out, err = Command(["doctor", "spec.toml"], tmp_path, env).communicate()
    assert "podman runs trials in containers" in out, out + err
    run = Command(["run", "spec.toml", "--plain"], tmp_path, env)
    out, err = run.communicate()
    assert run.returncode == 0, out + err
    assert "score 5" in out, out + err
    assert "start in the usual way" not in out + err
    assert "without anything imported" not in out + err
    assert podman("ps", "--all", "--quiet") == ""
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []
