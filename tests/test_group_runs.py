"""Several jobs share a run, as people use it: real processes, a killed daemon, a job that comes, one
that goes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.test_cli import PROGRAMS, Seerd, seerd  # noqa: F401 - a fixture

JOB = """
metric = {{ name = "{metric}", mode = "{mode}" }}
[train]
script = "./trainer.py"
launcher = "command"
env = {{ SEERD_TEST_EPOCH_S = "0.4", SEERD_TEST_METRIC = "{metric}" }}
[space]
lr = {{ low = 0.0, high = 1.0 }}
"""
GROUP = """
name = "both"
[limits]
deadline = "2m"
budget = "400gpu-s"
[cluster]
gpus = 4
[[job]]
spec = "one/spec.toml"
owner = "us"
weight = 3
[[job]]
spec = "two/spec.toml"
"""


def write(folder: Path, name: str, metric: str, mode: str = "max") -> Path:
    """Write the spec of one job, with its script."""
    own = folder / name
    own.mkdir()
    shutil.copy(PROGRAMS / "trainer.py", own)
    spec = own / "spec.toml"
    spec.write_text(f'name = "{name}"' + JOB.format(metric=metric, mode=mode))
    return spec


def test_jobs_share_a_run_come_and_go_and_each_hands_back_its_model(
    seerd: Seerd,  # noqa: F811
) -> None:
    write(seerd.folder, "one", "accuracy")
    write(seerd.folder, "two", "loss", "min")
    third = write(seerd.folder, "three", "accuracy")
    group = seerd.folder / "group.toml"
    group.write_text(GROUP)
    run = seerd.start("run", str(group), "--plain")
    seerd.wait_for(reports=12)
    same = [seerd.start("add", "last", str(third), "--name", "three") for _ in range(2)]
    said = sorted(process.communicate() for process in same)
    assert "has a job of this name already" in said[0][1]
    assert "three shares" in said[1][0]
    assert "1 GPU can train" in seerd("add", "last", str(third), "--budget", "1gpu-s", code=2)
    assert seerd.json("set", "last", "three", "weight=2")["weight"] == 2
    assert "has no job 'four'" in seerd("stop", "last", "four", code=2)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    known = seerd.reports()
    went_on = seerd.start("resume", "last", "--json")
    seerd.wait_for(reports=known + 12, jobs=("one", "two", "three"))
    assert seerd.json("set", "last", "three", "weight=1")["weight"] == 1
    for name in ("two", "one", "three"):
        assert f"{name} is over" in seerd("stop", "last", name)
    out, err = went_on.communicate()
    assert went_on.returncode == 0, err
    told = json.loads(out)
    parts = [part["gpu_min"] for part in (*told["jobs"], told["shared"])]
    assert 0 < told["gpu_min"] == pytest.approx(sum(parts), abs=0.01)
    assert all(part > 0 for part in parts[:3])
    best = seerd.run_folder() / "best"
    models = {name: json.loads((best / name / "config.json").read_text()) for name in NAMES}
    assert {name: one["trial"].partition(".")[0] for name, one in models.items()} == NAMES
    assert {name: one["metric_name"] for name, one in models.items()} == {
        "one": "accuracy",
        "two": "loss",
        "three": "accuracy",
    }
    assert seerd.json("replay", "last")["same"]
    assert not seerd.processes()


NAMES = {"one": "one", "two": "two", "three": "three"}


def test_a_run_of_one_job_takes_no_others(seerd: Seerd) -> None:  # noqa: F811
    other = write(seerd.folder, "other", "accuracy")
    seerd.write_spec(env='SEERD_TEST_EPOCH_S = "0.2"')
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=1)
    assert "is one job, and takes no others" in seerd("add", "last", str(other), code=2)
    run.send_signal(signal.SIGINT)
    run.communicate()
