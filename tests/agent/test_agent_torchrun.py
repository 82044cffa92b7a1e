"""The agent with real torchrun: ranks, logs, who was guilty, and what torchrun leaves behind when
it is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from bench.testbed.agents import Client, Rig
from seerd.agent.protocol import Checkpointed, Complained, Reported, Started
from tests.agent.agent_forks import ForkedAgent
from tests.agent.conftest import BARE_TORCH

Runs = Callable[[str], tuple[Rig, Client]]

TELLS = """
import json, os, sys, time
rank = int(os.environ["RANK"])
def tell(epoch, **metrics):
    with open(os.path.join(os.environ["SEERD_DIR"], "out.jsonl"), "a") as out:
        out.write(json.dumps({"kind": "report", "epoch": epoch, "metrics": metrics}) + "\\n")
"""
SUMS_RANKS = (
    TELLS
    + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
print("rank", rank, "of", dist.get_world_size(), "threads", torch.get_num_threads())
if rank == 0:
    tell(1, total=float(total), world=dist.get_world_size())
dist.barrier()
if rank == 1 and os.environ["SEERD_ATTEMPT"].split("/")[1] == "fails":
    raise ValueError("rank 1 has had enough")
dist.barrier()
dist.destroy_process_group()
"""
)
TELLS_ITS_PORT = (
    TELLS
    + """
tell(1, port=int(os.environ["MASTER_PORT"]))
while not os.path.exists(os.path.join(os.environ["SEERD_DIR"], "stop")):
    time.sleep(0.02)
"""
)


@pytest.fixture(scope="module")
def warm(bundle: Path, fork: Callable[..., ForkedAgent] | None) -> Iterator[Runs]:
    """An agent whose starts are forks of one process that has imported torch, for the trials of this
    script.
    """
    with ExitStack() as stack:
        top = Path(stack.enter_context(TemporaryDirectory(prefix="agent-")))
        rig = Rig(bundle, top / "i", top / "source", top / "store", fork=fork)
        rig.source.mkdir()
        rig.env["PYTHONPATH"] = BARE_TORCH
        stack.callback(rig.end)
        client = rig.ready(rig.job(launcher="torchrun", preload=["torch"]))

        def runs(script: str) -> tuple[Rig, Client]:
            (rig.source / "train.py").write_text(script)
            return rig, client

        yield runs


def test_two_ranks_train_together_and_each_has_its_log(rig):
    client = rig.ready(rig.job(SUMS_RANKS, launcher="torchrun"))
    client.start(gpus=(0, 1))
    assert client.exit_of().cause == "finished"
    assert client.until(Reported).metrics == {"total": 3.0, "world": 2}
    logs = {
        path.parent.name: path.read_text()
        for path in rig.attempt().glob("logs/*/attempt_0/*/stdout.log")
    }
    assert logs == {"0": "rank 0 of 2 threads 1\n", "1": "rank 1 of 2 threads 1\n"}


def test_the_guilty_rank_is_named_and_quoted(warm):
    _, client = warm(SUMS_RANKS)
    client.start("fails", gpus=(0, 1))
    end = client.exit_of("fails")
    assert (end.cause, end.code, end.rank) == ("crashed", 1, 1)
    assert end.tail[-1].endswith("ValueError: rank 1 has had enough")


def test_attempts_that_start_together_have_ports_of_their_own_and_die_alone(warm):
    rig, client = warm(TELLS_ITS_PORT)
    trials = ("t1", "t2", "t3")
    for gpu, trial in enumerate(trials):
        client.start(trial, gpus=(gpu,))
    ports = {
        client.until(Reported, lambda fact, trial=trial: fact.trial == trial).metrics["port"]
        for trial in trials
    }
    assert len(ports) == len(trials)
    launcher = client.until(Started, lambda fact: fact.trial == "t1").pid
    workers = [process for process in rig.processes_of("t1") if process.pid != launcher]
    assert workers
    os.kill(launcher, signal.SIGKILL)
    end = client.exit_of("t1")
    assert (end.cause, end.code) == ("crashed", -signal.SIGKILL)
    assert not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in workers
    )
    assert all(rig.processes_of(trial) for trial in trials[1:])
    for trial in trials[1:]:
        client.stop(trial, grace_s=60.0)
    assert {client.exit_of(trial).cause for trial in trials[1:]} == {"asked"}


def test_ranks_that_ended_before_torchrun_was_killed_leave_no_zombie(warm):
    script = (
        "import seerd, time\ntrial = seerd.trial()\n"
        "while trial.running():\n    time.sleep(0.02)\n    trial.report(accuracy=0.5)\n"
    )
    rig, client = warm(script)
    (agent,) = rig.processes
    for trial in ("ends1", "ends2", "ends3"):
        client.start(trial)
        client.until(Reported, lambda fact, trial=trial: fact.trial == trial)
        client.stop(trial, grace_s=60.0)
        assert client.exit_of(trial).cause == "asked"
    left = psutil.Process(agent.pid).children()
    assert [one for one in left if one.status() == psutil.STATUS_ZOMBIE] == []


LOADS = """
import time, seerd, torch, torch.utils.data as data
trial = seerd.trial()
evaluation = data.DataLoader(data.TensorDataset(torch.ones(64, 1)), batch_size=64)
training = data.DataLoader(data.TensorDataset(torch.ones(64, 1)), batch_size=8, shuffle=True)
trial.track(model=torch.nn.Linear(1, 1))
while trial.running():
    next(iter(training))
    time.sleep(0.05)
    trial.report(accuracy=0.5)
"""


def test_a_trial_that_takes_more_samples_at_a_step_on_more_gpus_is_told(warm):
    _, client = warm(LOADS)
    client.start("loads")
    saved = client.until(Checkpointed, lambda fact: fact.trial == "loads")
    client.stop("loads", grace_s=60.0)
    assert client.exit_of("loads").cause == "asked"
    complaints = [fact for fact in client.facts if isinstance(fact, Complained)]
    assert {fact.what for fact in complaints if fact.trial == "loads"} <= {"promised"}
    client.start("loads", attempt=2, gpus=(0, 1), checkpoints=(saved.name,))
    told = client.until(Complained, lambda fact: (fact.trial, fact.attempt) == ("loads", 2))
    assert told.what == "warning"
    assert "one step takes 16 samples on 2 GPUs, and took 8 before" in told.why
    client.stop("loads", attempt=2, grace_s=60.0)
    assert client.exit_of("loads", attempt=2).cause == "asked"
