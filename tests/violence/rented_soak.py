"""Many hurt runs on one rig, each from its own seed.

The one rule: as in soak.py; runs on the rig come one after the other, since each is several
machines.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.testbed.rig import Rig
from tests.violence.eyes import Eyes
from tests.violence.rented import LASTING, Rental, violate_rented
from tests.violence.rented_verdict import configs_of, rented_violations
from tests.violence.soak import Tally


class RentedSoak:
    """Runs on instances; all have the configurations that the first one had."""

    def __init__(self, folder: Path, eyes: Eyes, rental: Rental = LASTING) -> None:
        self._rental = rental
        self._folder = folder
        self._eyes = eyes
        self._reference: dict[str, Any] = {}

    def soak(self, rig: Rig, until: float, first_seed: int) -> Tally:
        """Until that moment (`time.time()`), and at least once."""
        tally, seed = Tally(), first_seed
        while True:
            self._one(rig, seed, tally)
            seed += 1
            if time.time() > until:
                return tally

    def _one(self, rig: Rig, seed: int, tally: Tally) -> None:
        folder = self._folder / f"rig-{seed}"
        evidence = violate_rented(rig, self._rental, seed, folder, self._eyes)
        found = rented_violations(evidence, self._reference)
        self._reference = self._reference or configs_of(evidence)
        tally.runs += 1
        tally.resumed += len(evidence.codes) - 1
        tally.too_early += evidence.never_began
        tally.too_late += evidence.was_over
        tally.note(f"rig {seed}", evidence.acts, found)
        if found:
            lines = (
                line
                for line in evidence.said.splitlines()
                if " report " not in line or "goes on" in line
            )
            sys.stderr.write("".join(f"    | {line}\n" for line in lines))
        shutil.rmtree(folder, ignore_errors=True)
