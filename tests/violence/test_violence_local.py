"""The short version of `make violence` on this machine: a few kills of a real run."""

from __future__ import annotations

from pathlib import Path

from tests.violence.eyes import Eyes
from tests.violence.local import SHORT
from tests.violence.soak import LocalSoak

KILLS = 2
SEED = 7


def test_killed_runs_end_with_their_model_and_train_nothing_again(tmp_path: Path) -> None:
    with Eyes() as eyes:
        tally = LocalSoak(tmp_path, eyes).kills(KILLS, SEED, beside=KILLS, job=SHORT)
    assert tally.violations == []
    assert tally.runs == KILLS
    assert tally.resumed >= KILLS
