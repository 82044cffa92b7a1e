"""Trains a small U-Net to tell which pixel is of which shape. By hand: `python train.py`; tuned:
`seerd run spec.toml`.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from data import shapes
from model import UNet, overlap
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import seerd

STEPS = 8  # from report to report

trial = seerd.trial()
config = trial.config

model = UNet(config["width"]).to(trial.device)
optimizer = torch.optim.SGD(
    model.parameters(), config["lr"], config["momentum"], weight_decay=config["weight_decay"]
)
trial.track(model=model, optimizer=optimizer)
parallel = DistributedDataParallel(model) if trial.world > 1 else model

train = TensorDataset(*shapes("train"))
batch = trial.batch(16)
loader = DataLoader(train, batch_size=batch.micro, sampler=trial.sampler(len(train)))
pictures, classes = (part.to(trial.device) for part in shapes("validate"))


def overlap_now() -> float:
    model.eval()
    with torch.no_grad():
        found = overlap(torch.cat([model(part) for part in pictures.split(32)]), classes)
    model.train()
    return found


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        for x, y in loader:
            yield x.to(trial.device), y.to(trial.device)


endless = batches()
while trial.running():
    for _ in range(STEPS):
        for x, y in islice(endless, batch.accumulate):
            (cross_entropy(parallel(x), y) / batch.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    trial.report(overlap=overlap_now())
