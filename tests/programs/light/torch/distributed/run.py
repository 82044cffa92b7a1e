"""Stands in for torchrun, which imports for seconds on each instance: starts this node's ranks of a
program that needs no torch, and ends them when one fails or when it is asked to end.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OWN = dict(zip(sys.argv[1:-1:2], sys.argv[2:-1:2], strict=True))
"""Each option has a value; the script comes last."""
NODES, HERE = int(OWN["--nnodes"]), int(OWN["--nproc-per-node"])
FIRST = HERE * int(OWN.get("--node-rank", "0"))
LOGS = Path(OWN["--log-dir"], OWN["--rdzv-id"], "attempt_0")


def start(local):
    """Start a rank, with its variables and its logs."""
    folder = LOGS / str(local)
    folder.mkdir(parents=True)
    known = {"RANK": FIRST + local, "LOCAL_RANK": local, "WORLD_SIZE": NODES * HERE}
    environment = {**os.environ, **{name: str(value) for name, value in known.items()}}
    with open(folder / "stdout.log", "w") as out, open(folder / "stderr.log", "w") as err:
        return subprocess.Popen(
            [sys.executable, "-u", sys.argv[-1]], env=environment, stdout=out, stderr=err
        )


def end(*_):
    for rank in ranks:
        rank.terminate()


ranks = [start(local) for local in range(HERE)]
signal.signal(signal.SIGTERM, end)
while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
    time.sleep(0.05)
end()
sys.exit(1 if any(codes) else 0)
