"""Real runs of scripts that crash whatever their configuration: none is given up for that, and the
best model that was saved is handed back.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.mistakes import kit

SPEC = """
metric = { name = "accuracy", mode = "max" }
limits = { deadline = "24s", budget = "4gpu-min" }

[train]
script     = "train.py"
launcher   = "python"
args       = ["--lr", "{lr}"]
report     = 'accuracy {number}'
checkpoint = "last.json"
resume     = ["--resume", "{checkpoint}"]

[space]
lr = { low = 0.01, high = 1.0 }

[policy]
POLICY
p_max = 1
t_min = "4s"

[cluster]
gpus = 2
"""
SCRIPT = """
import argparse, json, os, socket, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--resume")
args = parser.parse_args()
BEGIN
epoch = began = json.load(open(args.resume))["epoch"] if args.resume else 0
while True:
    time.sleep(0.4)
    epoch += 1
    print(f"accuracy {(1 - 0.8 ** epoch) * args.lr:.4f}", flush=True)
    with open("part.json", "w") as part:
        json.dump({"epoch": epoch}, part)
    os.replace("part.json", "last.json")
    AFTER
"""
LEAKS = """if epoch - began >= 3:
        time.sleep(0.6)
        raise RuntimeError("DataLoader worker is killed by signal: Killed.")"""


def tuned(
    folder: Path, begin: str, after: str = "", policy: str = ""
) -> tuple[dict[str, Any], str]:
    """Run it; return what scripts are told at the end, and the log of the run."""
    project = folder / "project"
    project.mkdir()
    (project / "spec.toml").write_text(SPEC.replace("POLICY", policy))
    (project / "train.py").write_text(SCRIPT.replace("BEGIN", begin).replace("AFTER", after))
    told = kit.seerd(folder, "run", "spec.toml", "--json")
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout), kit.seerd(folder, "show", "last", "--json").stdout


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_port_that_all_trials_want_costs_no_configuration(tmp_path: Path, port: int) -> None:
    listens = f'socket.create_server(("127.0.0.1", {port}))'
    told, shown = tuned(tmp_path, f"server = {listens}")
    trials = json.loads(shown)["all_trials"]
    assert {trial["phase"] for trial in trials} <= {"survived", "not-started", "no-report"}
    assert {trial["crashes"] for trial in trials} == {0}
    assert sum(trial["reports"] > 0 for trial in trials) > 1, "they take turns"
    assert told["best"] is not None


def test_a_trial_that_crashes_again_and_again_goes_on_and_the_best_model_is_handed_back(
    tmp_path: Path,
) -> None:
    told, shown = tuned(tmp_path, "", LEAKS, 'name = "random"')
    trials = json.loads(shown)["all_trials"]
    assert max(trial["crashes"] for trial in trials) > 3
    assert "failed" not in {trial["phase"] for trial in trials}
    saved = [trial["best_saved"] for trial in trials if trial["best_saved"] is not None]
    assert told["best"]["metric"] == max(saved)
