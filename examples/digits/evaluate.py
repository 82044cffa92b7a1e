"""Test accuracy of a model that `seerd best RUN --to DIR` handed back: `python evaluate.py DIR`."""

import json
import sys
from pathlib import Path

import torch
from data import digits
from model import build

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())["config"]
model = build(config["width"], config["dropout"])
model.load_state_dict(torch.load(folder / "checkpoint.pt", weights_only=True)["state"]["model"])
model.eval()
images, labels = digits("test")
with torch.no_grad():
    right = (model(images).argmax(1) == labels).float().mean().item()
print(f"test accuracy {right:.4f}")
