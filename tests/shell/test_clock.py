"""When a process began."""

from __future__ import annotations

import subprocess
import sys

PRINTS = """
import time
{wait}
from seerd.shell.clock import process_began, wall
print(wall() - process_began())
"""


def age_s(wait: str, *before: str) -> float:
    """Return how old a process takes itself to be."""
    program = [*before, sys.executable, "-c", PRINTS.format(wait=wait)]
    return float(subprocess.run(program, capture_output=True, check=True).stdout)


def test_a_process_counts_the_time_that_it_waited() -> None:
    assert age_s("time.sleep(0.4)") >= 0.4


def test_a_process_does_not_count_what_an_entry_script_waited() -> None:
    assert age_s("", "sh", "-c", 'sleep 4; exec "$@"', "sh") < 4.0
