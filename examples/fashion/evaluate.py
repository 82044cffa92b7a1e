"""Test accuracy of a model that `seerd best RUN --to DIR` handed back: `python evaluate.py DIR`."""

import sys
from pathlib import Path

import torch
from data import as_input, fashion
from model import build

model = build()
saved = torch.load(Path(sys.argv[1]) / "checkpoint.pt", weights_only=True)
model.load_state_dict(saved["state"]["model"])
model.eval()
images, labels = fashion("test")
with torch.no_grad():
    scores = torch.cat([model(as_input(part)) for part in images.split(500)])
print(f"test accuracy {(scores.argmax(1) == labels).float().mean().item():.4f}")
