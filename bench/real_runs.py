"""Real runs of the digits example on this machine under `seer+` and `seer`: the test accuracy of
the models that come back; prints JSON.

`python bench/real_runs.py [RUNS] [SCRIPT]`: so many runs (2) of each policy, in turns, each with a
seed of its own, with `train.py` or `cosine.py` of the example. A run takes three minutes. `seer`
has the keys that suit the example: eta 2, p_max 4, t_min 40 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "digits"
SEERD = str(Path(sys.executable).parent / "seerd")
POLICIES = {
    "seer+": (),
    "seer": ("policy.name=seer", "policy.eta=2", "policy.p_max=4", "policy.t_min=40s"),
}


def main() -> None:
    """Prints one JSON object."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    script = sys.argv[2] if len(sys.argv) > 2 else "train.py"
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(runs):
        for name, keys in POLICIES.items():
            found[name].append(accuracy((*keys, f"policy.seed={seed}", f"train.script={script}")))
            print(f"{name}, seed {seed}: {found[name][-1]}", file=sys.stderr, flush=True)
    print(json.dumps({"script": script, **{name: told(found[name]) for name in found}}))


def accuracy(keys: tuple[str, ...]) -> float:
    """Run the example with these keys of its spec; return its model's test accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SEERD_HOME": folder}
        settings = [word for key in keys for word in ("--set", key)]
        spec, model = str(EXAMPLE / "spec.toml"), str(Path(folder) / "model")
        output_of([SEERD, "run", spec, "--plain", *settings], environment)
        output_of([SEERD, "best", "last", "--to", model], environment)
        return float(output_of([sys.executable, "evaluate.py", model], environment).split()[-1])


def output_of(command: list[str], environment: dict[str, str]) -> str:
    """Run a command in the example's folder; return what it prints."""
    ended = subprocess.run(
        command, cwd=EXAMPLE, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return ended.stdout


def told(values: list[float]) -> dict[str, object]:
    """Sum up the test accuracies of one policy."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": round(statistics.mean(values), 4),
        "deviation": round(spread, 4),
        "least": min(values),
        "values": values,
    }


if __name__ == "__main__":
    main()
