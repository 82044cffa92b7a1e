"""What tuning is worth on the examples, and what it costs; prints JSON.

`python bench/examples.py [NAME ...]`: each example (all of them) once as its spec says, and once
with the one configuration that somebody would begin with, trained on four GPUs until the same
deadline; of both the metric of the model that comes back and its metric on data that no trial has
seen, the GPU time, and what that costs on the least GPU instance of EC2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from seerd.planner.clouds import INSTANCE_TYPES

ROOT = Path(__file__).parent.parent
SEERD = str(Path(sys.executable).parent / "seerd")
BY_HAND: dict[str, dict[str, object]] = {
    "digits": {"lr": 1e-3, "momentum": 0.9, "width": 128, "dropout": 0.5, "optimizer": "adam"},
    "fashion": {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4},
    "text": {"lr": 1e-3, "weight_decay": 0.01, "embedding": 32, "layers": 2, "dropout": 0.1},
    "shapes": {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4, "width": 8},
    "lora": {"lr": 1e-3, "rank": 8, "alpha": 16, "targets": "attention"},
}
"""PyTorch's default learning rates, and usual values of the rest."""
INSTANCE = "g4dn.xlarge"


def main() -> None:
    """Prints one JSON object for each example, on a line of its own."""
    for name in sys.argv[1:] or BY_HAND:
        print(json.dumps({"example": name, **compared(name)}), flush=True)


def compared(name: str) -> dict[str, object]:
    """The tuned one beside the one by hand."""
    fixed = [f"space.{key}={json.dumps(value)}" for key, value in BY_HAND[name].items()]
    alone = ["policy.name=random", "policy.trials=1", "policy.p_max=4", *fixed]
    return {"by_hand": outcome(name, alone), "tuned": outcome(name, [])}


def outcome(name: str, keys: list[str]) -> dict[str, object]:
    """Run the example with these keys of its spec; return what came of it."""
    with tempfile.TemporaryDirectory() as home:
        settings = [word for key in keys for word in ("--set", key)]
        spec, model = str(ROOT / "examples" / name / "spec.toml"), str(Path(home) / "model")
        run = json.loads(output_of(name, home, SEERD, "run", spec, "--json", *settings))
        output_of(name, home, SEERD, "best", "last", "--to", model)
        test = output_of(name, home, sys.executable, "evaluate.py", model).split()[-1]
        usd = run["gpu_min"] / 60 * INSTANCE_TYPES[INSTANCE].usd_per_gpu_h
        return {
            "validation": run["best"]["metric"],
            "test": float(test),
            "config": run["best"]["config"],
            "trials": run["trials"],
            "minutes": round(run["elapsed_s"] / 60, 2),
            "gpu_min": round(run["gpu_min"], 2),
            f"usd_on_{INSTANCE}": round(usd, 3),
        }


def output_of(name: str, home: str, *command: str) -> str:
    """Run a command in the example's folder; return what it prints."""
    ended = subprocess.run(
        command,
        cwd=ROOT / "examples" / name,
        env={**os.environ, "SEERD_HOME": home},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return ended.stdout


if __name__ == "__main__":
    main()
