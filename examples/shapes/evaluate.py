"""Overlap on test pictures of a model that `seerd best RUN --to DIR` handed back:
`python evaluate.py DIR`.
"""

import json
import sys
from pathlib import Path

import torch
from data import shapes
from model import UNet, overlap

folder = Path(sys.argv[1])
model = UNet(json.loads((folder / "config.json").read_text())["config"]["width"])
saved = torch.load(folder / "checkpoint.pt", weights_only=True)
model.load_state_dict(saved["state"]["model"])
model.eval()
pictures, classes = shapes("test")
with torch.no_grad():
    scores = torch.cat([model(part) for part in pictures.split(32)])
print(f"test overlap {overlap(scores, classes):.4f}")
