"""Real runs of scripts that wait for ever, or longer than their time: each is named while it lasts
and at the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes import kit

SPEC = """
metric = { name = "accuracy", mode = "max" }
limits = { deadline = "22s", budget = "4gpu-min" }

[train]
script   = "train.py"
launcher = "python"
args     = ["{lr}"]
report   = "accuracy {number}"

[space]
lr = { low = 0.01, high = 1.0 }

[policy]
p_max = 1
t_min = "4s"

[cluster]
gpus = 2
"""
DEAD_WORKER = """
import multiprocessing, os, signal, time

def work(number):
    time.sleep(0.5)
    if number == 9:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        pool.map(work, range(16), chunksize=1)
"""
NO_GUARD = """
import multiprocessing, time

time.sleep(0.5)  # in each of the processes that it starts for ever, too
multiprocessing.set_start_method("spawn", force=True)
pool = multiprocessing.Pool(1)
pool.map(abs, range(8))
"""
DEADLOCK = """
import threading

lock = threading.Lock()
lock.acquire()
lock.acquire()
"""
LONG_EPOCH = """
import sys, time

first = float(sys.argv[1]) > 0.8
while True:
    end = time.monotonic() + (100 if first else 1)
    while time.monotonic() < end:
        sum(range(1000))
        time.sleep(0.02)
    print("accuracy 0.5", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (
            DEAD_WORKER,
            "1 ended before; a multiprocessing.Pool waits for ever for a worker that was",
        ),
        (NO_GUARD, 'put what it does under if __name__ == "__main__":'),
        (DEADLOCK, " s it computed, read, wrote and reported nothing"),
    ],
)
def test_a_script_that_waits_for_ever_is_named(tmp_path: Path, script: str, named: str) -> None:
    said = tuned(tmp_path, script, "--set", "cluster.gpus=1", code=4)
    during, _, end = said.partition("trials save and exit")
    assert during.count(named) == 1
    assert named in end.partition("there is no model: ")[2]
    assert " has stopped after 1" in end


def test_a_trial_whose_epoch_is_longer_than_its_time_is_named(tmp_path: Path) -> None:
    said = tuned(tmp_path, LONG_EPOCH, code=0)
    assert (
        "s without a first report, and others have reported: it hangs, or its epoch takes" in said
    )


def tuned(folder: Path, script: str, *options: str, code: int) -> str:
    project = folder / "project"
    project.mkdir()
    (project / "spec.toml").write_text(SPEC)
    (project / "train.py").write_text(script)
    told = kit.seerd(folder, "run", "spec.toml", "--plain", *options)
    assert told.returncode == code, told.stderr
    return told.stdout + told.stderr
