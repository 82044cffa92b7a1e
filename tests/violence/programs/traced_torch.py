"""A training script with torch, under torchrun, that leaves the same trace as traced.py: every rank
a line for each thing that it does.
"""

import json
import os
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import seerd

trial = seerd.trial()
_, NAME, ATTEMPT = os.environ["SEERD_ATTEMPT"].split("/")


def trace(what):
    line = {
        "at": time.time(),
        "trial": NAME,
        "attempt": int(ATTEMPT),
        "pid": os.getpid(),
        "what": what,
    }
    line |= {"epoch": trial.epoch, "gpus": trial.gpus}
    descriptor = os.open(
        os.environ["VIOLENCE_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    os.write(descriptor, (json.dumps(line) + "\n").encode())
    os.close(descriptor)


model = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=trial.config["lr"] / 100)
trial.track(model=model, optimizer=optimizer)
parallel = DistributedDataParallel(model) if trial.world > 1 else model
trace("begin")
while trial.running():
    features = torch.randn(32, 64)
    optimizer.zero_grad()
    nn.functional.mse_loss(parallel(features), features.sum(1, keepdim=True)).backward()
    optimizer.step()
    time.sleep(0.2)
    trial.report(accuracy=1 - abs(trial.config["lr"] - 0.3) - 0.5 / (trial.epoch + 1))
    trace("epoch")
