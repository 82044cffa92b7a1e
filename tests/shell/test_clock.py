"""When a process began, and when its run did; clocks that are set."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from seerd import clock
from seerd.agent.host import boot_id

PRINTS = """
import time
{wait}
from seerd.clock import process_began, wall
print(wall() - process_began())
"""


def age_s(wait: str, *before: str) -> float:
    """Return how old a process takes itself to be."""
    program = [*before, sys.executable, "-c", PRINTS.format(wait=wait)]
    return float(subprocess.run(program, capture_output=True, check=True).stdout)


def test_when_a_run_began_is_known_after_the_clock_was_set_until_the_machine_boots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = clock.noted(clock.wall() - 10.0)
    monkeypatch.setattr(clock, "began_at", clock.began_at - 3600.0)
    origin = clock.origin_of(note)
    assert origin is not None
    assert clock.wall() - origin == pytest.approx(10.0, abs=0.1)
    assert clock.origin_of(note.replace(boot_id(), "another")) is None
    unreadable = ("", " 1.0 2.0", f"{boot_id()} x 2.0", f"{boot_id()} 1.0")
    assert [clock.origin_of(text) for text in unreadable] == [None] * 4


def test_the_time_of_a_run_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    run, real = clock.RunClock(clock.wall()), time.time
    for ahead_s in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda ahead_s=ahead_s: real() + ahead_s)
        assert 0.0 <= run.now() < 1.0


def test_a_process_counts_the_time_that_it_waited() -> None:
    assert age_s("time.sleep(0.4)") >= 0.4


def test_a_process_does_not_count_what_an_entry_script_waited() -> None:
    assert age_s("", "sh", "-c", 'sleep 4; exec "$@"', "sh") < 4.0
