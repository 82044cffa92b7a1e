"""The short version of two runs on one machine that are killed at random."""

from __future__ import annotations

from pathlib import Path

from tests.violence.sharing import share

KILLS = 5
SEED = 3


def test_killed_runs_on_one_machine_share_its_gpus(tmp_path: Path) -> None:
    tally = share(tmp_path, KILLS, SEED)
    assert tally.violations == []
    assert tally.together > 0
    assert tally.kills.total() == KILLS
