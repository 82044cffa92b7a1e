"""Bits per byte of a model that `seerd best RUN --to DIR` handed back, beside those of its base
alone: `python evaluate.py DIR`.
"""

import json
import sys
from pathlib import Path

import torch
from data import bits, code, windows
from model import Adapter, adapted

folder = Path(sys.argv[1])
model = adapted(json.loads((folder / "config.json").read_text())["config"])
saved = torch.load(folder / "checkpoint.pt", weights_only=True)
text = windows(code("test"))[:1024]
print(f"base alone {bits(model, text):.4f}")
Adapter(model).load_state_dict(saved["state"]["adapter"])
print(f"test bits per byte {bits(model, text):.4f}")
