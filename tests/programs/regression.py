"""Trains a small network with DDP, writing every global step's samples and loss, for comparison
between numbers of GPUs.

Environment: `TEST_OUT` where rank 0 writes JSON lines; `TEST_STEPS` global steps in all;
`TEST_UNIT` steps between two calls of `running()`; `TEST_DIE_AT` step after which it kills itself,
once it has published a checkpoint; `TEST_DROPOUT` probability.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import seerd

reported_to = Path(os.environ["SEERD_DIR"]) / "out.jsonl"
STEPS, UNIT = int(os.environ["TEST_STEPS"]), int(os.environ["TEST_UNIT"])
trial = seerd.trial()
model = nn.Sequential(
    nn.Linear(5, 16),
    nn.Tanh(),
    nn.Dropout(float(os.environ.get("TEST_DROPOUT", "0"))),
    nn.Linear(16, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=trial.config["lr"], momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
trial.track(model=model, optimizer=optimizer, schedule=schedule)
parallel = DistributedDataParallel(model) if trial.world > 1 else model
batch = trial.batch(16, per_gpu=4)
x = torch.randn(100, 5, generator=torch.Generator().manual_seed(1))
data = TensorDataset(torch.arange(100), x, x.sum(1, keepdim=True))
loader = DataLoader(
    data,
    batch_size=batch.micro,
    sampler=trial.sampler(len(data)),
    num_workers=int(os.environ.get("TEST_WORKERS", "0")),
)
done = trial._units * UNIT  # steps trained so far: every unit of work is UNIT steps


def micro_batches():
    while True:
        yield from loader


def gathered(value):
    if trial.world == 1:
        return [value]
    every = [None] * trial.world
    torch.distributed.all_gather_object(every, value)
    return every


stream = micro_batches()
while trial.running() and done < STEPS:
    for _ in range(UNIT):
        samples, total = [], 0.0
        for _ in range(batch.accumulate):
            index, features, target = next(stream)
            loss = nn.functional.mse_loss(parallel(features), target) / batch.accumulate
            loss.backward()
            samples += index.tolist()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        done += 1
        every = gathered((samples, total))
        if trial.rank == 0:
            line = {
                "step": done,
                "samples": sorted(s for part, _ in every for s in part),
                "loss": sum(t for _, t in every) / trial.world,
            }
            with open(os.environ["TEST_OUT"], "a") as out:
                out.write(json.dumps(line) + "\n")
        if done == int(os.environ.get("TEST_DIE_AT", "-1")):
            while '"kind": "checkpoint"' not in reported_to.read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    trial.report(accuracy=1.0 / done)
