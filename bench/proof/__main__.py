"""`python -m bench.proof FOLDER --results FILE` plays what is left (docs/comparison.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from bench.proof.split import PATH, missing, read  # noqa: E402
from bench.proof.units import (  # noqa: E402
    IN_LOOP,
    OURS,
    ROOT,
    SEEDS,
    Unit,
    code_of,
    played,
    python_of,
    units,
)

ENVIRONMENTS = ROOT / "build" / "proof-env"
PRINTS_EVERY_S = 30.0


def main() -> None:
    """Play until all is played, or until the time is over."""
    asked = arguments().parse_args()
    tasks = [task for task in read(asked.tasks) if task.part == asked.split]
    methods = asked.methods.split(",")
    needed = {
        python_of(name, asked.environments) for name in methods if name not in (*OURS, *IN_LOOP)
    }
    if lacking := [str(python) for python in needed if not python.exists()]:
        sys.exit(f"make proof installs {', '.join(lacking)}")
    if problems := missing(tasks, asked.folder):
        sys.exit(f"{asked.folder} is not what split.json describes: {'; '.join(problems)}")
    todo = list(units(tasks, asked.seeds, methods))
    proof(todo, asked.folder, asked.results, asked.environments, asked.jobs, asked.minutes)


def arguments() -> argparse.ArgumentParser:
    """List the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("` ")[2])
    parser.add_argument("folder", type=Path, help="the files of curves that split.json lists")
    parser.add_argument("--results", type=Path, required=True, help="lines are added to it")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--seeds", type=int, default=max(SEEDS.values()))
    parser.add_argument("--methods", default=",".join(SEEDS))
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--minutes", type=float, default=720.0, help="begin nothing after (720)")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="of the tools")
    parser.add_argument("--tasks", type=Path, default=PATH, help="the split (split.json)")
    return parser


def lines_of(results: Path) -> list[dict[str, Any]]:
    """Read the lines of the results; one that was cut off by a kill does not count."""
    if not results.exists():
        return []
    lines = results.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of the unit of a line."""
    return tuple(line[name] for name in ("family", "task", "cell", "method", "seed"))


def left_of(todo: Iterable[Unit], lines: Iterable[dict[str, Any]]) -> list[Unit]:
    """List the units that were not played by the code as it is now."""
    done = {(key_of(line), line["code"]) for line in lines}
    return [unit for unit in todo if (unit.key, code_of(unit.method)) not in done]


def proof(
    todo: list[Unit], folder: Path, results: Path, environments: Path, jobs: int, minutes: float
) -> None:
    """Play what is left, and add each line as soon as it is there."""
    lines = lines_of(results)
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    left = left_of(todo, lines)
    took_s: dict[str, list[float]] = defaultdict(list)
    began = printed = time.monotonic()
    print(f"{len(todo) - len(left)} of {len(todo)} units are there", flush=True)
    with (
        results.open("a") as file,
        ProcessPoolExecutor(jobs, None, _end_with, (os.getpid(),)) as pool,
    ):
        due = began + 60 * minutes
        for number, line in enumerate(_played(pool, left, folder, environments, 2 * jobs, due), 1):
            file.write(json.dumps(line) + "\n")
            file.flush()
            took_s[line["method"]].append(line["wall_s"])
            if time.monotonic() - printed > PRINTS_EVERY_S or number == len(left):
                printed = time.monotonic()
                rest_s = estimate_s(left[number:], took_s) / jobs
                print(
                    f"{len(todo) - len(left) + number} of {len(todo)} units, "
                    f"{(printed - began) / 60:.0f} min, about {rest_s / 60:.0f} min left",
                    flush=True,
                )


def estimate_s(left: list[Unit], took_s: dict[str, list[float]]) -> float:
    """Return the seconds that the rest will take one after the other."""
    every = [second for seconds in took_s.values() for second in seconds]
    mean = {method: sum(seconds) / len(seconds) for method, seconds in took_s.items()}
    return sum(mean.get(unit.method, sum(every) / len(every)) for unit in left)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that was."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _played(
    pool: ProcessPoolExecutor,
    left: list[Unit],
    folder: Path,
    environments: Path,
    most: int,
    due: float,
) -> Iterator[dict[str, Any]]:
    running: set[Future[dict[str, Any]]] = set()
    waiting = iter(left)
    while True:
        while len(running) < most and time.monotonic() < due:
            unit = next(waiting, None)
            if unit is None:
                break
            running.add(pool.submit(played, unit, folder, environments))
        if not running:
            return
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            yield future.result()


if __name__ == "__main__":
    main()
