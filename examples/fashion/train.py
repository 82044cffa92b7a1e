"""Trains a residual network on Fashion-MNIST. By hand: `python train.py`; tuned: `seerd run
spec.toml`.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from data import as_input, fashion
from model import build
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import seerd

IMAGES = 2816  # from report to report: 22 steps of 128, a twentieth of a pass

trial = seerd.trial()
config = trial.config

model = build().to(trial.device)
optimizer = torch.optim.SGD(
    model.parameters(), config["lr"], config["momentum"], weight_decay=config["weight_decay"]
)
trial.track(model=model, optimizer=optimizer)
parallel = DistributedDataParallel(model) if trial.world > 1 else model

train = TensorDataset(*fashion("train"))
batch = trial.batch(128)
sampler = trial.sampler(len(train))
loader = DataLoader(train, batch_size=batch.micro, sampler=sampler)
images, labels = (part[:2000] for part in fashion("validate"))


def accuracy() -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in zip(images.split(500), labels.split(500), strict=True):
            scores = model(as_input(x.to(trial.device)))
            right += int((scores.argmax(1) == y.to(trial.device)).sum())
    model.train()
    return right / len(labels)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield from loader


endless = batches()
while trial.running():
    for _ in range(IMAGES // batch.total):
        for x, y in islice(endless, batch.accumulate):
            loss = cross_entropy(parallel(as_input(x.to(trial.device))), y.to(trial.device))
            (loss / batch.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    trial.report(accuracy=accuracy())
