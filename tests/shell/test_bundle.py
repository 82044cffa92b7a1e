"""The agent's zip is the same every time, and runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from seerd.backends.bundle import build_agent


def test_the_agent_s_zip_is_the_same_every_time_and_runs(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pyz", tmp_path / "b.pyz"
    build_agent(first)
    build_agent(second)
    assert first.read_bytes() == second.read_bytes()
    elsewhere = (
        "import seerd.agent.serve, seerd.backends.bundle, sys, pathlib; "
        "seerd.backends.bundle.build_agent(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", elsewhere, second], check=True)
    assert first.read_bytes() == second.read_bytes(), "whatever else is in memory"
    told = subprocess.run(
        [sys.executable, "-I", first, "--help"], capture_output=True, text=True, check=True
    )
    assert "--lease-s" in told.stdout
