"""Bits per letter of a model that `seerd best RUN --to DIR` handed back, and what it writes:
`python evaluate.py DIR`.
"""

import json
import math
import sys
from pathlib import Path

import torch
from data import LETTERS, letters, windows
from model import LENGTH, build
from torch.nn.functional import cross_entropy

folder = Path(sys.argv[1])
model = build(len(LETTERS), json.loads((folder / "config.json").read_text())["config"])
saved = torch.load(folder / "checkpoint.pt", weights_only=True)
model.load_state_dict(saved["state"]["model"])
model.eval()
text = windows(letters("test"), LENGTH)
with torch.no_grad():
    scores = torch.cat([model(part[:, :-1]) for part in text.split(64)])
    loss = cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).item()
    written = letters("test")[:LENGTH]
    torch.manual_seed(0)
    for _ in range(200):
        chances = model(written[-LENGTH:].unsqueeze(0))[0, -1].softmax(0)
        written = torch.cat([written, chances.multinomial(1)])
print("".join(LETTERS[at] for at in written[LENGTH:]))
print(f"test bits per letter {loss / math.log(2):.4f}")
