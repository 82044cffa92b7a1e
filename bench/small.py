"""What must be quick: `seerd --help`, `seerd plan`, placement, simulated events. CPU seconds
against a floor in the same run; prints JSON.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import place

ROOT = Path(__file__).parent.parent


def cpu_s(*command: str) -> float:
    """CPU seconds of a python process, the least of five."""
    best = float("inf")
    for _ in range(5):
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        best = min(best, usage.ru_utime + usage.ru_stime)
    return best


def placement_ms(trials: int) -> dict[str, float]:
    """A boundary at which half of the trials end and a tenth of the others get twice the GPUs, on
    as many eight-GPU instances.
    """
    rng = random.Random(0)
    nodes = [PackingNode(f"n{i:04d}", 8) for i in range(trials)]
    before = [Demand(f"t{i:04d}", rng.choice([1, 2, 4])) for i in range(trials)]
    current = place(before, {}, nodes)
    after = [Demand(d.trial, d.gpus * 2 if rng.random() < 0.1 else d.gpus) for d in before[::2]]
    began = time.perf_counter()
    place(after, current, nodes)
    took = time.perf_counter() - began
    began = time.perf_counter()
    sorted(before, key=lambda d: (-d.gpus, d.trial))
    floor = time.perf_counter() - began
    return {"ms": round(took * 1000, 2), "floor_one_sort_ms": round(floor * 1000, 3)}


def main() -> None:
    spec = str(ROOT / "examples/digits/spec.toml")
    told = {
        "python_cpu_s": round(cpu_s("-c", "pass"), 3),
        "help_cpu_s": round(cpu_s("-c", "from seerd import cli; cli.main()", "--help"), 3),
        "plan_cpu_s": round(cpu_s("-c", "from seerd import cli; cli.main()", "plan", spec), 3),
        "placement_1000": placement_ms(1000),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
