"""A whole run of examples/digits: the daemon's CPU and memory beside the run's length, and how much
of the budget was used. Prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from seerd.shell.journal import Journal

ROOT = Path(__file__).parent.parent
LIMITS = [
    "--deadline",
    os.environ.get("DEADLINE", "3m"),
    "--budget",
    os.environ.get("BUDGET", "16gpu-min"),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        command = [
            sys.executable,
            "-c",
            "from seerd import cli; cli.main()",
            "run",
            str(ROOT / "examples/digits/spec.toml"),
            *LIMITS,
        ]
        began = time.monotonic()
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            [*command, "--home", home, "--json"], stdout=subprocess.PIPE, stderr=quiet, text=True
        ) as process:
            seen = watch(process.pid)
            out = process.stdout.read() if process.stdout else ""
        wall_s = time.monotonic() - began
        with Journal.open(next(Path(home).iterdir()) / "journal.db", read_only=True) as journal:
            entries = list(journal.entries())
    result = json.loads(out.splitlines()[-1])
    told = {
        "daemon_cpu_share": round(seen["cpu_s"] / wall_s, 4),
        "daemon_cpu_s": round(seen["cpu_s"], 2),
        "daemon_peak_mb": round(seen["rss"] / 2**20, 1),
        "events": len(entries),
        "elapsed_s": result["elapsed_s"],
        "budget_used": round(result["gpu_min"] / result["budget_gpu_min"], 3),
        "metric": result["best"]["metric"],
    }
    print(json.dumps(told, indent=1))


def watch(pid: int) -> dict[str, float]:
    """CPU seconds and the most resident bytes of a process without its children, updated while it
    lives.
    """
    seen = {"cpu_s": 0.0, "rss": 0.0}

    def look() -> None:
        with contextlib.suppress(psutil.Error):
            while True:
                process = psutil.Process(pid)
                times = process.cpu_times()
                seen["cpu_s"] = max(seen["cpu_s"], times.user + times.system)
                seen["rss"] = max(seen["rss"], process.memory_info().rss)
                time.sleep(0.2)

    threading.Thread(target=look, daemon=True).start()
    return seen


if __name__ == "__main__":
    main()
