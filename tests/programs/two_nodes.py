"""DDP over gloo, as small as it can be. With SEERD_TEST_GUILTY that rank fails after three reports,
in every attempt.
"""

import os
import time

import torch
from torch import nn

import seerd

trial = seerd.trial()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trial.track(model=model, optimizer=optimizer)
parallel = nn.parallel.DistributedDataParallel(model) if trial.world > 1 else model
began = trial.epoch
while trial.running():
    loss = parallel(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.2)
    if str(trial.rank) == os.environ.get("SEERD_TEST_GUILTY") and trial.epoch >= began + 3:
        raise RuntimeError(f"rank {trial.rank} of {trial.world} has had enough")
    trial.report(accuracy=1 - abs(trial.config["lr"] - 0.3) - 0.5 / (trial.epoch + 1))
