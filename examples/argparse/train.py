"""Trains a small network on handwritten digits. It knows nothing of seerd: options in, lines and a
file out, as of any script. By hand: `python train.py --lr 0.05 --epochs 10`.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
args = parser.parse_args()

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train, test = TensorDataset(x[:1400], y[:1400]), (x[1400:], y[1400:])
model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

first = 1
if args.resume:
    saved = torch.load(args.resume, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
    print(f"going on after epoch {saved['epoch']}")

args.out.mkdir(exist_ok=True)
for epoch in range(first, args.epochs + 1):
    for inputs, targets in DataLoader(train, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.4f}")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, args.out / "last.pt")
