"""The short version of `make violence` on rented instances: one run on the rig that is hurt once or
twice.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.testbed.rig import Rig
from tests.violence.eyes import Eyes
from tests.violence.rented import BRIEF
from tests.violence.rented_soak import RentedSoak

SEED = 7


def test_a_hurt_run_on_rented_instances_keeps_its_promises(rig: Rig, tmp_path: Path) -> None:
    with Eyes() as eyes:
        tally = RentedSoak(tmp_path, eyes, BRIEF).soak(rig, until=time.time(), first_seed=SEED)
    assert tally.violations == []
    assert tally.runs == 1
    assert sum(tally.acts.values()) > 0
