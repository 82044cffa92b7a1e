"""A loop as in docs/frameworks.md, with Accelerate."""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import seerd

trial = seerd.trial()
accelerator = Accelerator(cpu=True)
batch = trial.batch(8, per_gpu=4)
torch.manual_seed(5)
x = torch.randn(64, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=batch.micro, sampler=trial.sampler(len(data)))
model = torch.nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
trial.track(model=accelerator.unwrap_model(model), optimizer=optimizer.optimizer)
while trial.running() and trial.epoch < 6:
    for step, (inputs, targets) in enumerate(loader, 1):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss / batch.accumulate)
        if step % batch.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    weights = [value for one in model.parameters() for value in one.flatten().tolist()]
    trial.report(accuracy=sum(map(abs, weights)), ranks=accelerator.num_processes)
    if trial.epoch == 3 and trial.gpus == 1 and "whole" not in os.environ["SEERD_ATTEMPT"]:
        break
