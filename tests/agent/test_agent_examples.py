"""Scripts as people write them: the examples of docs/training-side.md, and how ranks end."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seerd.agent.protocol import Checkpointed
from seerd.training.trial import Trial
from tests.agent.conftest import BARE_TORCH

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training-side.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE)
SPEC = """
[space]
lr = { low = 1e-4, high = 1.0, log = true }
layers = [3, 5]
[policy]
max_reports = 4
"""
NAMES = ("alone", "cosine", "reads", "splits", "learns")
TWO_GPUS = (0, 1)
ENDS = """
import os, sys, seerd
trial = seerd.trial()
notes = open(f"notes-{trial.rank}.txt", "w")
trial.running()
trial.report(accuracy=1.0)
notes.write("written\\n")
if os.environ["SEERD_ATTEMPT"].split("/")[1] == "exits":
    sys.exit(3)
try: sys.exit(3)
except SystemExit: pass
"""


def test_every_public_function_has_an_example() -> None:
    functions = {
        name for name, _ in inspect.getmembers(Trial, inspect.isfunction) if name[0] != "_"
    }
    scripts = "".join(script for script, _ in EXAMPLES)
    assert functions == {"track", "batch", "see_batch", "sampler", "running", "report"}
    assert {name for name in functions if f"trial.{name}(" in scripts} == functions


@pytest.mark.parametrize(("script", "printed"), EXAMPLES)
def test_an_example_prints_by_hand_what_the_page_shows(
    tmp_path: Path, script: str, printed: str
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "train.py").write_text(script)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SEERD")}
    env["PYTHONPATH"] = f"{ROOT}:{BARE_TORCH}"
    command = [sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (printed, "")


def test_the_examples_run_under_an_agent_on_two_gpus_and_are_saved_at_their_end(rig: Any) -> None:
    """Each is a trial of its own, with a name that says which."""
    job = rig.job(
        "import os, runpy\nrunpy.run_path(os.environ['SEERD_ATTEMPT'].split('/')[1])",
        launcher="torchrun",
        preload=["torch"],
    )
    client = rig.ready(job)
    for name, (script, _) in zip(NAMES, EXAMPLES, strict=True):
        (rig.source / name).write_text(script)
        client.start(name, gpus=TWO_GPUS)
        end = client.exit_of(name)
        assert (end.cause, end.tail) == ("finished", [])
        assert client.until(Checkpointed, lambda fact, name=name: fact.trial == name)


def test_ranks_end_as_their_script_says_and_what_they_wrote_is_there(rig: Any) -> None:
    client = rig.ready(rig.job(ENDS, launcher="torchrun"))
    for trial, cause in (("exits", "crashed"), ("catches", "finished")):
        client.start(trial, gpus=TWO_GPUS)
        assert client.exit_of(trial).cause == cause
        notes = [rig.attempt(trial) / f"work/notes-{rank}.txt" for rank in (0, 1)]
        assert [path.read_text() for path in notes] == ["written\n"] * 2
