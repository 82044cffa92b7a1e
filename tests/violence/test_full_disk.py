"""A run that begins, or goes on, while the coordinator's disk is full: told in words, and nothing
half made stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.violence.ground import ground
from tests.violence.local import QUICK

FULL = ("no space left on device", "disk is full", "disk I/O error")


@pytest.mark.parametrize("free_kib", [0, 40, 200])
def test_a_full_disk_is_told_in_words_and_leaves_no_half_run(tmp_path: Path, free_kib: int) -> None:
    with ground(tmp_path / "run", QUICK.script, QUICK.gpus) as made:
        QUICK.write(made)
        made.fill(made.home, free_kib << 10)
        command = [
            sys.executable,
            "-c",
            "from seerd import cli; cli.main()",
            "run",
            str(made.spec),
            "--plain",
        ]
        told = subprocess.run(command, env=made.env, capture_output=True, text=True, check=False)
        assert told.returncode == 1
        assert "Traceback" not in told.stderr
        assert "seerd: " in told.stderr
        assert any(words in told.stderr for words in FULL), told.stderr
        assert [path.name for path in made.home.iterdir()] == ["filler"]
