"""Trains adapters of a small language model on Python code. By hand: `python train.py`; tuned:
`seerd run spec.toml`.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from data import bits, code, loss_of, windows
from model import Adapter, adapted
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import seerd

STEPS = 10  # from report to report

trial = seerd.trial()

model = adapted(trial.config).to(trial.device)
trained = [weight for weight in model.parameters() if weight.requires_grad]
optimizer = torch.optim.AdamW(trained, trial.config["lr"])
trial.track(adapter=Adapter(model), optimizer=optimizer)
parallel = DistributedDataParallel(model) if trial.world > 1 else model

train = TensorDataset(windows(code("train")))
batch = trial.batch(16)
loader = DataLoader(train, batch_size=batch.micro, sampler=trial.sampler(len(train)))
held_out = windows(code("validate"))[:128].to(trial.device)


def batches() -> Iterator[torch.Tensor]:
    while True:
        for (text,) in loader:
            yield text.to(trial.device)


endless = batches()
while trial.running():
    for _ in range(STEPS):
        for text in islice(endless, batch.accumulate):
            (loss_of(parallel, text) / batch.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    trial.report(bits=bits(model, held_out))
