"""`make mutants`: every mutant on the list. With words, only those whose names have all of them.

The one rule: a mutant that survives is a hole in the tests, and makes the exit status 1. Mistakes
that are drawn (`--drawn 500 --seed 7`) are a measurement: it is printed as JSON, and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.mutants.at_random import at_random
from tests.mutants.bench import Copy, Outcome, check_unmutated, copied, outcome
from tests.mutants.catalogue import MUTANTS
from tests.mutants.drawing import ROOMS
from tests.mutants.mutant import Mutant
from tests.mutants.places import ListError

AT_ONCE = 2


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="of the name or the place; without any: every mutant"
    )
    help_of_jobs = "so many at a time (default: %(default)s)"
    parser.add_argument("--jobs", type=int, default=AT_ONCE, help=help_of_jobs)
    parser.add_argument("--drawn", type=int, default=0, help="draw so many mistakes at random")
    parser.add_argument("--seed", type=int, default=0, help="the drawn mistakes' (default: 0)")
    parser.add_argument("--rooms", nargs="*", choices=ROOMS, help="the drawn ones' (default: all)")
    given = parser.parse_args()
    if given.drawn:
        results = at_random(given.drawn, given.seed, given.rooms or [*ROOMS], given.jobs)
        print(json.dumps(results, indent=2))
        return 0
    words: list[str] = given.words
    jobs: int = given.jobs
    began = time.monotonic()
    chosen = [m for m in MUTANTS if all(word in f"{m.place} {m.name}" for word in words)]
    mine = threading.local()
    with ExitStack() as stack:
        pool = stack.enter_context(
            ThreadPoolExecutor(
                jobs, initializer=lambda: setattr(mine, "copy", stack.enter_context(copied()))
            )
        )
        # pytest without any test would run all
        shares = filter(None, (chosen[part::jobs] for part in range(jobs)))
        [*pool.map(lambda share: check_unmutated(share, mine.copy), shares)]
        print(f"without any mistake their tests pass ({time.monotonic() - began:.0f}s)", flush=True)
        bad = sum(pool.map(lambda mutant: told(mutant, mine.copy), chosen))
    print(f"{len(chosen) - bad} of {len(chosen)} mutants caught in {time.monotonic() - began:.0f}s")
    return 1 if bad else 0


def told(mutant: Mutant, copy: Copy) -> bool:
    """Whether it has survived there, or could not be tried."""
    began = time.monotonic()
    try:
        found = outcome(mutant, copy)
    except ListError as error:
        print(f"ERROR     {error}", flush=True)
        return True
    took = f"{time.monotonic() - began:5.1f}s"
    print(f"{verdict(found)}  {took}  {mutant.place}: {mutant.name}  {found.caught_by}", flush=True)
    return not found.caught_by


def verdict(found: Outcome) -> str:
    """In one word."""
    return "caught  " if found.caught_by else "SURVIVED"


if __name__ == "__main__":
    sys.exit(main())
