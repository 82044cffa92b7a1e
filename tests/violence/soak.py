"""Many runs, each from its own seed: the kills that are counted, and as much of the rest as fits
into the time.

The one rule: a seed says all that the hand intends; it is printed with the run, and `--seed` does
it again.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.violence.eyes import Eyes
from tests.violence.hand import Act, draw
from tests.violence.local import ALL, QUICK, TORCH, Evidence, Job, violate
from tests.violence.verdict import violations

KILLS = {"kill the daemon": 3.0, "kill everything": 1.0}
"""Of every four kills three hit the daemon alone, and one everything at once, as a power failure
does.
"""
MOST_REST_S = 3.0
TORCH_EVERY = 6
"""Starting torch costs seconds on a small machine: one run in so many."""


@dataclass(slots=True)
class Tally:
    """What was done and found. `too_early`, `too_late`: the run had not begun, or was over; these
    are counted beside the rest.

    `resumed`: commands that went on with a run; `again`: reports that were made a second time, all
    of them beyond the last checkpoint
    """

    runs: int = 0
    too_early: int = 0
    too_late: int = 0
    resumed: int = 0
    again: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """For the summary."""
        return asdict(self) | {"acts": dict(sorted(self.acts.items()))}

    def note(self, what: str, acts: list[str], found: list[str]) -> None:
        """One run more."""
        self.acts.update(act.partition("s ")[2] for act in acts)
        self.violations += [f"{what}: {text}" for text in found]
        told = "".join(f"\n    VIOLATION {text}" for text in found)
        print(f"{what}: {', '.join(acts) or 'left alone'}{told}", file=sys.stderr, flush=True)


class LocalSoak:
    """Runs on this machine; what their configurations must be is found once, by a run that is left
    alone.
    """

    def __init__(self, folder: Path, eyes: Eyes) -> None:
        self._folder = folder
        self._eyes = eyes
        self._references: dict[Job, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def kills(self, count: int, first_seed: int, beside: int, job: Job = QUICK) -> Tally:
        """`kill -9` at so many moments, each of a run of its own that is resumed then."""
        tally, seeds = Tally(), iter(range(first_seed, first_seed + 10 * count))
        lock = threading.Lock()

        def work() -> None:
            for seed in seeds:
                with lock:
                    if tally.runs >= count:
                        return
                    tally.runs += 1
                evidence = self._killed(job, seed, tally)
                if evidence.never_began or evidence.was_over or len(evidence.codes) == 1:
                    with lock:
                        tally.runs -= 1
                    tally.too_early += evidence.never_began
                    tally.too_late += not evidence.never_began

        _together(lambda: self._reference(job), *[work] * beside)
        return tally

    def _killed(self, job: Job, seed: int, tally: Tally) -> Evidence:
        chance = random.Random(seed)
        acts = draw(chance, KILLS, count=1, within_s=job.open_s)
        return self._one(job, acts, chance.uniform(0.0, MOST_REST_S), f"kill {seed}", tally)

    def soak(self, until: float, first_seed: int, beside: int, with_torch: bool) -> Tally:
        """Everything that the hand can do, until that moment (`time.time()`), and at least once."""
        tally, seeds = Tally(), iter(range(first_seed, first_seed + 1_000_000))

        def work() -> None:
            for seed in seeds:
                job = TORCH if with_torch and seed % TORCH_EVERY == TORCH_EVERY - 1 else QUICK
                tally.runs += 1
                self._hurt(job, seed, tally)
                if time.time() > until:
                    return

        _together(*[work] * beside)
        return tally

    def _hurt(self, job: Job, seed: int, tally: Tally) -> None:
        self._reference(job)
        chance = random.Random(seed)
        acts = draw(chance, ALL, count=chance.randint(1, 4), within_s=job.open_s)
        self._one(job, acts, chance.uniform(0.0, MOST_REST_S), f"local {seed}", tally)

    def _one(self, job: Job, acts: list[Act], rest_s: float, name: str, tally: Tally) -> Evidence:
        folder = self._folder / name.replace(" ", "-")
        evidence = violate(job, acts, folder, self._eyes, rest_s)
        tally.resumed += len(evidence.codes) - 1
        tally.again += _again(evidence)
        found = violations(evidence, self._reference(job))
        tally.note(name, evidence.acts, found)
        if found:
            sys.stderr.write(
                "".join(
                    f"    | {line}\n"
                    for line in evidence.said.splitlines()
                    if " report " not in line
                )
            )
        shutil.rmtree(folder, ignore_errors=True)
        return evidence

    def _reference(self, job: Job) -> dict[str, Any]:
        with self._lock:
            if job not in self._references:
                evidence = violate(job, [], self._folder / f"undisturbed-{job.script}", self._eyes)
                trials = evidence.told["show"]["all_trials"]
                self._references[job] = {trial["trial"]: trial["config"] for trial in trials}
                if found := violations(evidence, self._references[job]):
                    raise AssertionError(f"undisturbed, and yet: {found}")
            return self._references[job]


def _again(evidence: Evidence) -> int:
    """Reports that were trained more than once."""
    trained = Counter(
        (line.trial, line.epoch, line.what) for line in evidence.lines if line.what == "epoch"
    )
    ranks = Counter(
        (line.trial, line.attempt, line.epoch) for line in evidence.lines if line.what == "epoch"
    )
    return len(ranks) - len(trained)


def _together(*works: Callable[[], object]) -> None:
    """All of them at the same time; the first error is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
