"""Trains a small network on handwritten digits, with the values of config.yaml (needs PyYAML)."""

import pickle
import sys
import time
from pathlib import Path

import yaml
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

config = yaml.safe_load(Path("config.yaml").read_text())
chosen, optimizer = config["model"], config["optimizer"]

images, digits = load_digits(return_X_y=True)
model, epoch, saved = None, 0, time.monotonic()
if sys.argv[1:]:
    model, epoch, _ = pickle.loads(Path(sys.argv[1]).read_bytes())
else:
    model = MLPClassifier(
        chosen["layers"],
        activation=chosen["activation"],
        learning_rate_init=optimizer["lr"],
        beta_1=0.9 if optimizer["beta"] is None else optimizer["beta"],
        random_state=0,
    )

out = Path("out")
out.mkdir(exist_ok=True)
while epoch < config["epochs"]:
    epoch += 1
    model.partial_fit(images[:1400] / 16, digits[:1400], classes=range(10))
    print(f"epoch {epoch}: accuracy {model.score(images[1400:] / 16, digits[1400:]):.4f}")
    if time.monotonic() - saved > 1 or epoch == config["epochs"]:
        (out / ".part").write_bytes(pickle.dumps((model, epoch, config)))
        (out / ".part").replace(out / "model.pkl")
        saved = time.monotonic()
