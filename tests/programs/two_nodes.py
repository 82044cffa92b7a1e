"""Ranks that wait for each other at every report, over gloo. With SEERD_TEST_GUILTY that rank fails
after three reports, in every attempt. Without DDP and an optimizer, which import for a second.
"""

import os
import time

import torch

import seerd

trial = seerd.trial()
trial.track(model=torch.nn.Linear(4, 1))
began = trial.epoch
while trial.running():
    if trial.world > 1:
        torch.distributed.all_reduce(torch.ones(1))
    time.sleep(0.2)
    if str(trial.rank) == os.environ.get("SEERD_TEST_GUILTY") and trial.epoch >= began + 3:
        raise RuntimeError(f"rank {trial.rank} of {trial.world} has had enough")
    trial.report(accuracy=1 - abs(trial.config["lr"] - 0.3) - 0.5 / (trial.epoch + 1))
