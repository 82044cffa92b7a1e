"""A model that is sharded over the ranks, tracked."""

import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import seerd

trial = seerd.trial()
if trial.world == 1:
    torch.distributed.init_process_group("gloo")
batch = trial.batch(8)
torch.manual_seed(5)
x = torch.randn(64, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=batch.micro, sampler=trial.sampler(len(data)))
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
_, name, attempt = os.environ["SEERD_ATTEMPT"].split("/")
if (name, trial.world) != ("fsdp-plain", 1):
    fully_shard(model, mesh=init_device_mesh("cpu", (trial.world,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
trial.track(model=model, optimizer=optimizer)
while trial.running() and trial.epoch < 3 * int(attempt):
    for inputs, targets in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total = sum(
        getattr(one, "full_tensor", lambda one=one: one)().detach().abs().sum()
        for one in model.parameters()
    )
    trial.report(accuracy=float(total), ranks=trial.world)
