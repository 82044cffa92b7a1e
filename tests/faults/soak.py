"""Many seeds on all cores, and what came of them.

The one rule: a seed is played in the same way wherever and beside whatever it is played.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.faults.scenario import EVERYTHING, scenario
from tests.faults.world import Report, play

BURY_EVERY = 20


@dataclass(frozen=True, slots=True)
class Soaked:
    """All seeds together. `violations`: what was wrong, by seed; `injected`: faults by kind;
    `used`: share of the budget that was billed.
    """

    seeds: int
    violations: dict[int, tuple[str, ...]]
    injected: dict[str, int]
    events: int
    steps: int
    seconds: float
    endings: dict[str, int]

    @property
    def missing(self) -> list[str]:
        """What can go wrong and never has."""
        return sorted(EVERYTHING - self.injected.keys())

    @property
    def seeds_per_s(self) -> float:
        """How fast."""
        return self.seeds / self.seconds


def soak(seeds: Iterable[int], jobs: int | None = None) -> Soaked:
    """Play all of these seeds."""
    began = time.perf_counter()
    wrong: dict[int, tuple[str, ...]] = {}
    injected: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    events = steps = count = 0
    for report in _reports(list(seeds), jobs or os.cpu_count() or 1):
        count += 1
        events, steps = events + report.events, steps + report.steps
        injected.update(report.injected)
        endings[report.ending] += 1
        if report.wrong:
            wrong[report.seed] = report.wrong
    seconds = time.perf_counter() - began
    return Soaked(count, wrong, dict(injected.most_common()), events, steps, seconds, dict(endings))


def _reports(seeds: list[int], jobs: int) -> Iterator[Report]:
    # Not forked: the interpreter's hash of strings must not matter, and a test's threads must not
    # be copied.
    with multiprocessing.get_context("spawn").Pool(jobs, _be_quiet) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)


def one(seed: int) -> Report:
    """Play one seed."""
    try:
        report = play(scenario(seed))
    except Exception as error:
        raise RuntimeError(f"the fault world itself has failed with seed {seed}") from error
    if seed % BURY_EVERY == 0:
        gc.collect()
    return report


def _be_quiet() -> None:
    """Coroutines of killed daemons are cleared away before they have begun, and Python finds that
    worth a word; so do agents of their damaged journals.
    """
    logging.getLogger("agent").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", RuntimeWarning)
    gc.disable()
