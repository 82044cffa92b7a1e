"""Trains a small classifier. It knows nothing of seerd, and needs the standard library alone: put
your own script in its place. By hand: `python train.py --lr 0.1`.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--epochs", type=int, default=1000)
parser.add_argument("--resume", help="a checkpoint to go on from")
args = parser.parse_args()

dice = random.Random(0)
points = [(dice.uniform(-3, 3), dice.uniform(-3, 3)) for _ in range(600)]
rows = [((1.0, x, y, x * x, y * y, x * y), x * x + y * y + x * y < 5) for x, y in points]
train, test = rows[:400], rows[400:]

state = {"weights": [0.0] * 6, "steps": [0.0] * 6, "epoch": 0}
if args.resume:
    state = json.loads(Path(args.resume).read_text())


def score(features):
    return sum(weight * feature for weight, feature in zip(state["weights"], features, strict=True))


Path("out").mkdir(exist_ok=True)
for epoch in range(state["epoch"] + 1, args.epochs + 1):
    for features, inside in train:
        error = 1 / (1 + math.exp(-max(-50.0, min(50.0, score(features))))) - inside
        for at, feature in enumerate(features):
            step = args.momentum * state["steps"][at] - args.lr * error * feature / 100
            state["steps"][at] = step
            state["weights"][at] += step
    right = sum((score(features) > 0) == inside for features, inside in test)
    print(f"epoch {epoch}: accuracy {right / len(test):.4f}", flush=True)
    state["epoch"] = epoch
    Path("out/.last.json").write_text(json.dumps(state))
    Path("out/.last.json").replace("out/last.json")
    time.sleep(0.5)  # a real epoch takes longer
