"""Measures what can only be seen where there is a GPU, and prints JSON.

    python bench/gpu.py [--pretend] [--again] [--kept FILE] [PART ...]

All parts take at most eight minutes on one GPU; more GPUs are not used. What was done is kept in a
file (`build/gpu.json`), so that a next call does what is left; a part that is named is measured
again, and `--again` measures all. `--pretend` goes through the parts on a fake device, small and
short, on any machine: its figures say nothing.

    start     a run of 20 s: its starts, warm and by torchrun, torch and CUDA's context apart
    command   a CUDA program that is not Python's (`launcher = "command"`)
    nccl      one rank with a process group by NCCL
    profile   `seerd profile` on one GPU
    best      random reports: the model that is handed back is that of the best one
    saves     a state of 1 GiB: the pause of a save, and the time until it is published
    memory    a state of 4 GiB: the host memory that saving and reading it take
    move      trials with 1 GiB that take turns: one comes back
    killed    a rank that is killed: its memory is free, its trial goes on
    parts     four trials that share the GPU, in turns and by MPS, beside one at a time
    appetite  one of four needs more memory than its share: it fails alone, and goes on with more
    hang      a rank that hangs inside a CUDA kernel: its attempt ends, its memory is free
    share     100 s of a small network: the share of the budget that is used

Each part checks that what it is named for has happened. `failed` says what has not, and the exit
status is then 1; `missed` says which figures are not what they must be, which is no failure. Where
there is no GPU nothing is run, and the exit status is 2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.on_gpu.parts import PARTS, Kept, digest, do  # noqa: E402


def devices(pretended: bool) -> list[str]:
    """Return the GPUs of the machine as `nvidia-smi -L` lists them; empty: none."""
    if pretended:
        return ["a fake one"]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]


def main() -> int:
    """Do what is left; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="*", help="all that are left unless some are named")
    parser.add_argument("--pretend", action="store_true", help="on a fake device")
    parser.add_argument("--again", action="store_true", help="measure what was done, too")
    parser.add_argument("--kept", type=Path, help="where results are kept")
    asked = parser.parse_args()
    if unknown := set(asked.part) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: the parts are {', '.join(PARTS)}")
    listed = devices(asked.pretend)
    if not listed:
        print("there is no GPU here: nothing was run", file=sys.stderr)
        return 2
    name = "gpu-pretended.json" if asked.pretend else "gpu.json"
    about = {"devices": listed, "pretended": asked.pretend, "code": digest()}
    kept = Kept(asked.kept or ROOT / "build" / name, about)
    left = [part for part in PARTS if asked.again or not kept.is_done(part)]
    all_done = do(asked.part or left, kept, asked.pretend)
    print(json.dumps(kept.body, indent=1))
    return 0 if all_done else 1


if __name__ == "__main__":
    sys.exit(main())
