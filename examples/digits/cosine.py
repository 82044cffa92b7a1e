"""Trains as `train.py` does, with a learning rate that falls as a cosine to nothing where the
training ends. Tuned: `seerd run spec.toml --set train.script=cosine.py`. By hand, `python
cosine.py`, nothing is known of an end, and the rate stays as it is, unless `max_reports` is in the
spec's `[policy]`.
"""

import math

import torch
from data import digits
from model import build
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import seerd

PASSES = 5  # from report to report; one pass takes a few hundredths of a second

trial = seerd.trial()
config = trial.config

model = build(config["width"], config["dropout"]).to(trial.device)
if config["optimizer"] == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
else:
    optimizer = torch.optim.Adam(
        model.parameters(), lr=config["lr"], betas=(config["momentum"], 0.999)
    )
trial.track(model=model, optimizer=optimizer)
parallel = DistributedDataParallel(model) if trial.world > 1 else model

train = TensorDataset(*digits("train"))
batch = trial.batch(64)
loader = DataLoader(train, batch_size=batch.micro, sampler=trial.sampler(len(train)))
images, labels = (part.to(trial.device) for part in digits("validate"))


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def train_once() -> None:
    for step, (x, y) in enumerate(loader, 1):
        loss = cross_entropy(parallel(x.to(trial.device)), y.to(trial.device)) / batch.accumulate
        loss.backward()
        if step % batch.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


while trial.running():
    for group in optimizer.param_groups:
        group["lr"] = config["lr"] * (1 + math.cos(math.pi * trial.progress)) / 2
    for _ in range(PASSES):
        train_once()
    trial.report(accuracy=accuracy())
