"""Real runs whose trials share a GPU that is not there: real agents and processes on the fake
device, with torch's bound of memory.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from seerd.agent.gpu_leases import ELSEWHERE
from seerd.core.commands import StartTrial
from seerd.core.events import TrialReported
from seerd.core.verdicts import Enlarged, Failed
from seerd.shell.journal import Journal
from tests.commands import run_command

ROOT = Path(__file__).parent.parent
GIB = 1 << 30
SPEC = """
name = "parts"
metric = { name = "accuracy", mode = "max" }
limits = { deadline = "5m", budget = "20gpu-min" }

[train]
script   = "train.py"
launcher = "python"
env      = { PYTHONPATH = "FAKE_TORCH:ROOT", FAKE_GPU = "GPU_FILE" }

[space]
pieces = [6, 10]

[policy]
name = "grid"
p_min = "1/4"
p_max = 1
t_min = "5s"

[cluster]
parts = 4
"""
SCRIPT = """
import seerd, time
from torch import cuda
trial = seerd.trial()
for _ in range(trial.config["pieces"]):
    cuda.allocate(512 << 20)
while trial.running() and trial.epoch < 3:
    trial.report(accuracy=trial.config["pieces"] / 100)
    time.sleep(0.1)
"""


def test_a_trial_that_lacks_memory_on_its_part_goes_on_with_twice_the_part(
    tmp_path: Path,
) -> None:
    """Of 16 GiB a quarter has room for 6 pieces of 512 MiB, and a half for 14."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "fake").mkdir()
    shutil.copy(ROOT / "bench" / "on_gpu" / "nvidia-smi", tmp_path / "bin")
    gpu = tmp_path / "gpu.json"
    gpu.write_text(json.dumps({"total": 16 * GIB, "processes": {}}))
    places = {"FAKE_TORCH": ROOT / "tests" / "fake_torch", "ROOT": ROOT, "GPU_FILE": gpu}
    spec = SPEC
    for name, path in places.items():
        spec = spec.replace(name, str(path), 1)
    (tmp_path / "spec.toml").write_text(spec)
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {
        **os.environ,
        "SEERD_HOME": str(tmp_path / "home"),
        ELSEWHERE: str(tmp_path / "leases"),
        "BENCH_FAKE": str(tmp_path / "fake"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }
    env.pop("CUDA_VISIBLE_DEVICES", None)
    told = run_command(["run", "spec.toml", "--plain"], tmp_path, env)
    (run,) = (tmp_path / "home").glob("parts-*")
    with Journal.open(run / "journal.db", read_only=True) as journal:
        entries = list(journal.entries())
    decided = [one for entry in entries for one in entry.decided]
    enlarged = [one for one in decided if isinstance(one, Enlarged)]
    starts = [one for one in decided if isinstance(one, StartTrial)]
    reported = {one.event.metric for one in entries if isinstance(one.event, TrialReported)}
    assert [one.gpus for one in enlarged] == [2], told.stdout + told.stderr
    assert [one for one in decided if isinstance(one, Failed)] == []
    hungry = enlarged[0].trial
    assert [(len(one.gpus), one.why) for one in starts if one.trial == hungry] == [
        (1, "first"),
        (2, "small"),
    ]
    (other,) = (one for one in starts if one.trial != hungry)
    assert len(other.gpus) == 1
    assert reported == {0.06, 0.1}
    lack = f"{hungry} ended with exit status 1 for lack of memory on its part of a GPU"
    assert f"{lack}; it will go on with 1/2 GPU: " in told.stdout
