"""Trains a small transformer on the text of Python's help. By hand: `python train.py`; tuned:
`seerd run spec.toml`.
"""

import math
from collections.abc import Iterator
from itertools import islice

import torch
from data import LETTERS, letters, windows
from model import LENGTH, build
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import seerd

STEPS = 20  # from report to report

trial = seerd.trial()
config = trial.config

model = build(len(LETTERS), config).to(trial.device)
optimizer = torch.optim.AdamW(model.parameters(), config["lr"], weight_decay=config["weight_decay"])
trial.track(model=model, optimizer=optimizer)
parallel = DistributedDataParallel(model) if trial.world > 1 else model

train = TensorDataset(windows(letters("train"), LENGTH))
batch = trial.batch(32)
loader = DataLoader(train, batch_size=batch.micro, sampler=trial.sampler(len(train)))
held_out = windows(letters("validate"), LENGTH)[:256].to(trial.device)


def loss_of(network: torch.nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Nats per letter."""
    return cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def bits() -> float:
    """Bits per letter that was not trained on."""
    model.eval()
    with torch.no_grad():
        found = loss_of(model, held_out).item() / math.log(2)
    model.train()
    return found


def batches() -> Iterator[torch.Tensor]:
    while True:
        for (text,) in loader:
            yield text.to(trial.device)


endless = batches()
while trial.running():
    for _ in range(STEPS):
        for text in islice(endless, batch.accumulate):
            (loss_of(parallel, text) / batch.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    trial.report(bits=bits())
