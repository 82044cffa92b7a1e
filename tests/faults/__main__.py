"""`python -m tests.faults`: play seeds by hand.

python -m tests.faults --seeds 10000          all of 0..9999, one JSON object with the figures; exit
                                              status 1 if a promise was broken
python -m tests.faults --fresh 100            so many that were never played, drawn from the date
python -m tests.faults --seed 4711            one seed with everything that happened; if it fails,
                                              the smallest scenario that still does
python -m tests.faults --every-step 7         the daemon killed before every single step of seed 7,
                                              one after the other
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime

from tests.faults.scenario import Kill, scenario
from tests.faults.shrink import shrink
from tests.faults.soak import soak
from tests.faults.world import Report, play

ENOUGH = 5000
"""In so many runs everything that can go wrong has gone wrong."""

DAY = 100_000
"""Seeds of a day."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, help="so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fresh", type=int, help="so many seeds of this moment, which are told")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--seed", type=int, help="this one alone, told")
    parser.add_argument(
        "--every-step",
        type=int,
        metavar="SEED",
        help="kill the daemon before each step of this seed",
    )
    asked = parser.parse_args()
    if asked.seed is not None:
        return tell(asked.seed)
    if asked.every_step is not None:
        return every_step(asked.every_step)
    if asked.fresh is not None:
        asked.first, asked.seeds = fresh(datetime.now(UTC)), asked.fresh
        print(again(asked.first, asked.seeds), file=sys.stderr, flush=True)
    soaked = soak(range(asked.first, asked.first + asked.seeds), asked.jobs)
    print(
        json.dumps(
            asdict(soaked)
            | {"seeds_per_s": round(soaked.seeds_per_s, 2), "missing": soaked.missing},
            indent=1,
        )
    )
    for seed in sorted(soaked.violations)[:1]:
        tell(seed)
    if soaked.violations:
        print(f"promises were broken with the seeds {sorted(soaked.violations)}", file=sys.stderr)
    if asked.fresh is not None:
        print(again(asked.first, asked.seeds), file=sys.stderr)
    if soaked.missing and asked.seeds >= ENOUGH:
        print(f"never tried: {soaked.missing}", file=sys.stderr)
    return 1 if soaked.violations or (soaked.missing and asked.seeds >= ENOUGH) else 0


def fresh(now: datetime) -> int:
    """Return the first of the seeds of this moment: a hundred thousand for each day, of which each
    second of it has its own beginning.
    """
    second = now.hour * 3600 + now.minute * 60 + now.second
    return now.toordinal() * DAY + second


def again(first: int, seeds: int) -> str:
    """Return what plays these seeds again."""
    return (
        f"seeds {first} to {first + seeds - 1}; all again: python -m tests.faults --first {first} "
        f"--seeds {seeds}; one of them: python -m tests.faults --seed N"
    )


def tell(seed: int) -> int:
    """Everything that happened, for people."""
    whole = scenario(seed)
    report = play(whole, told=True)
    if report.wrong:
        whole, report = shrink(whole)
    print(
        f"seed {seed}, with {', '.join(whole.parts) or 'nothing going wrong'}; kills {whole.kills}",
        file=sys.stderr,
    )
    _print(report)
    return 1 if report.wrong else 0


def every_step(seed: int) -> int:
    """Kill at each await, one play each."""
    calm = replace(scenario(seed), kills=())
    steps = play(calm).steps
    print(f"seed {seed} takes {steps} steps", file=sys.stderr)
    broken = 0
    for step in range(1, steps + 1):
        report = play(replace(calm, kills=(Kill(step=step, down_s=1.0),)))
        if report.wrong:
            broken += 1
            print(f"killed at step {step}: {report.wrong}", flush=True)
    print(json.dumps({"seed": seed, "steps": steps, "broken": broken}))
    return 1 if broken else 0


def _print(report: Report) -> None:
    for at, line in report.timeline:
        print(f"{at:10.3f}s  {line}", file=sys.stderr)
    for what in report.wrong:
        print(f"BROKEN: {what}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
