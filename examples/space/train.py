"""Trains one configuration of a space with conditions on handwritten digits. By hand: `python
train.py`; tuned: `seerd run spec.toml`.
"""

from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import seerd

TRAIN = 1400  # of 1797 images; the others validate

trial = seerd.trial()
config = trial.config

sizes = [64, *[config["width"]] * config["layers"]]
hidden = [
    (nn.Linear(size, after), nn.ReLU(), nn.Dropout(config["dropout"]))
    for size, after in pairwise(sizes)
]
model = nn.Sequential(*(part for parts in hidden for part in parts), nn.Linear(sizes[-1], 10))
model = model.to(trial.device)

given = {"lr": config["lr"], "weight_decay": config["decay"]}
if config["optimizer"] == "sgd":  # what belongs to the other one is not in the configuration
    given |= {"momentum": config["momentum"], "nesterov": config["nesterov"]}
    optimizer = torch.optim.SGD(model.parameters(), **given)
else:
    optimizer = torch.optim.Adam(model.parameters(), betas=(config["beta"], 0.999), **given)
trial.track(model=model, optimizer=optimizer)
parallel = nn.parallel.DistributedDataParallel(model) if trial.world > 1 else model

bunch = load_digits()
mixed = torch.randperm(len(bunch.data), generator=torch.Generator().manual_seed(0))
images = (torch.tensor(bunch.data, dtype=torch.float32)[mixed] / 16).to(trial.device)
classes = torch.tensor(bunch.target)[mixed].to(trial.device)
batch = trial.batch(config["batch"])
loader = DataLoader(
    TensorDataset(images[:TRAIN], classes[:TRAIN]),
    batch_size=batch.micro,
    sampler=trial.sampler(TRAIN),
)


def train_once() -> None:
    for step, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(parallel(x), y) / batch.accumulate
        loss.backward()
        if step % batch.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images[TRAIN:]).argmax(1) == classes[TRAIN:]).float().mean().item()
    model.train()
    return right


while trial.running():
    for _ in range(config["passes"]):
        train_once()
    trial.report(accuracy=accuracy())
