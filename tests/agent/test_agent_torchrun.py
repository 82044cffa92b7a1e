"""The agent with real torchrun: ranks, logs, who was guilty, and what torchrun leaves behind when
it is killed.
"""

from __future__ import annotations

import os
import signal

import psutil

from seerd.agent.protocol import Checkpointed, Complained, Reported, Started

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
if rank == 1 and os.environ.get("FAIL"):
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


def test_the_guilty_rank_is_named_and_quoted(rig):
    client = rig.ready(
        rig.job(SUMS_RANKS, launcher="torchrun", preload=["torch"], env={"FAIL": "1"})
    )
    client.start(gpus=(0, 1))
    end = client.exit_of()
    assert (end.cause, end.code, end.rank) == ("crashed", 1, 1)
    assert end.tail[-1].endswith("ValueError: rank 1 has had enough")


def test_attempts_that_start_together_have_ports_of_their_own_and_die_alone(rig):
    client = rig.ready(rig.job(TELLS_ITS_PORT, launcher="torchrun", preload=["torch"]))
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


def test_ranks_that_ended_before_torchrun_was_killed_leave_no_zombie(rig):
    script = (
        "import seerd, time\ntrial = seerd.trial()\n"
        "while trial.running():\n    time.sleep(0.02)\n    trial.report(accuracy=0.5)\n"
    )
    client = rig.ready(rig.job(script, launcher="torchrun", preload=["torch"]))
    (agent,) = rig.processes
    for trial in ("t1", "t2", "t3"):
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


def test_a_trial_that_takes_more_samples_at_a_step_on_more_gpus_is_told(rig):
    client = rig.ready(rig.job(LOADS, launcher="torchrun", preload=["torch"]))
    client.start()
    saved = client.until(Checkpointed)
    client.stop(grace_s=60.0)
    assert client.exit_of().cause == "asked"
    assert not [fact for fact in client.facts if isinstance(fact, Complained)]
    client.start(attempt=2, gpus=(0, 1), checkpoints=(saved.name,))
    told = client.until(Complained, lambda fact: fact.attempt == 2)
    assert told.what == "warning"
    assert "one step takes 16 samples on 2 GPUs, and took 8 before" in told.why
    client.stop(attempt=2, grace_s=60.0)
    assert client.exit_of(attempt=2).cause == "asked"
