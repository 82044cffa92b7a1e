"""Trains a small network on handwritten digits. Its options are overrides, as those of a script
with Hydra: `python train.py optim.lr=0.01 'model.layers=[64,32]'`.
"""

import json
import pickle
import sys
import time
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

config = {
    "model.layers": [64],
    "model.activation": "relu",
    "optim.lr": 0.001,
    "optim.beta": 0.9,
    "epochs": 20,
    "resume": None,
}
for override in sys.argv[1:]:
    name, _, value = override.partition("=")
    if name not in config:
        sys.exit(f"train.py has no option {name}")
    try:
        config[name] = json.loads(value)
    except ValueError:
        config[name] = value  # a text

images, digits = load_digits(return_X_y=True)
model, epoch, saved = None, 0, time.monotonic()
if config["resume"]:
    model, epoch, _ = pickle.loads(Path(config["resume"]).read_bytes())
else:
    model = MLPClassifier(
        config["model.layers"],
        activation=config["model.activation"],
        learning_rate_init=config["optim.lr"],
        beta_1=config["optim.beta"],
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
