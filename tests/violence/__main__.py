"""`python -m tests.violence --kills 50 --minutes 10`: hurts real runs, and prints one JSON object
with what was done and found.

The one rule: the exit status is 0 only if there was no violation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.testbed.rig import Rig
from tests.violence.eyes import Eyes
from tests.violence.rented_soak import RentedSoak
from tests.violence.sharing import share
from tests.violence.soak import LocalSoak, Tally

WITH_TORCH_MINUTES = 5.0


def main() -> int:
    """See the module's docstring."""
    options = _options()
    began, told = time.time(), {}
    with tempfile.TemporaryDirectory(prefix="seerd-violence-") as folder, Eyes() as eyes:
        local = LocalSoak(Path(folder), eyes)
        if options.kills and options.only != "shared":
            told["kills"] = local.kills(options.kills, options.seed, options.beside).json()
        if options.kills:
            told["shared"] = share(_folder(folder, "shared"), options.kills, options.seed).json()
        told |= _soak(options, local, Path(folder), eyes)
    broken = sum(len(part["violations"]) for part in told.values())
    print(
        json.dumps(
            {"minutes": round((time.time() - began) / 60, 1), "violations": broken, **told},
            indent=2,
        )
    )
    return min(1, broken)


def _soak(
    options: argparse.Namespace, local: LocalSoak, folder: Path, eyes: Eyes
) -> dict[str, Any]:
    """Runs on this machine and on the rig beside each other."""
    if options.minutes <= 0 or options.only == "shared":
        return {}
    until = time.time() + options.minutes * 60
    parts: dict[str, Callable[[], Tally]] = {}
    if options.only != "rig":
        with_torch = options.minutes >= WITH_TORCH_MINUTES
        parts["local"] = lambda: local.soak(until, options.seed, options.beside, with_torch)
    if options.only != "local":
        parts["rig"] = lambda: _on_rig(RentedSoak(folder, eyes), until, options.seed)
    with ThreadPoolExecutor(len(parts)) as pool:
        tallies = {name: pool.submit(part) for name, part in parts.items()}
        return {name: tally.result().json() for name, tally in tallies.items()}


def _folder(above: str, name: str) -> Path:
    made = Path(above, name)
    made.mkdir()
    return made


def _on_rig(soak: RentedSoak, until: float, first_seed: int) -> Tally:
    with Rig.start(fast=True) as rig:
        tally = soak.soak(rig, until, first_seed)
        tally.violations += [f"the rig itself went wrong: {trouble}" for trouble in rig.troubles()]
        return tally


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.violence", description=__doc__)
    parser.add_argument(
        "--kills",
        type=int,
        default=50,
        help="kill -9 at so many moments of a local run (default 50)",
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="everything else, for so long (default 10)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of the first run; the next one has the next (default 1)",
    )
    parser.add_argument("--beside", type=int, default=2, help="local runs at a time (default 2)")
    parser.add_argument("--only", choices=["local", "rig", "shared"], help="of everything else")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
