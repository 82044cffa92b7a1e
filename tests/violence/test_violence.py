"""The short version of `make violence`: a few kills of a real run, and one hurt run on the rig."""

from __future__ import annotations

import time
from pathlib import Path

from tests.rig import Rig
from tests.violence.eyes import Eyes
from tests.violence.rented_soak import RentedSoak
from tests.violence.soak import LocalSoak

KILLS = 4
SEED = 7


def test_killed_runs_end_with_their_model_and_train_nothing_again(tmp_path: Path) -> None:
    with Eyes() as eyes:
        tally = LocalSoak(tmp_path, eyes).kills(KILLS, SEED, beside=KILLS)
    assert tally.violations == []
    assert tally.runs == KILLS
    assert tally.resumed >= KILLS


def test_a_hurt_run_on_rented_instances_keeps_its_promises(rig: Rig, tmp_path: Path) -> None:
    with Eyes() as eyes:
        tally = RentedSoak(tmp_path, eyes).soak(rig, until=time.time(), first_seed=SEED)
    assert tally.violations == []
    assert tally.runs == 1
