"""Tests are in the tier that the table says, and what a machine cannot run is told."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiers import FASTEST, NEEDS, SLOWER, WAITING, beside

ROOT = Path(__file__).parent.parent
FULL = "tests/violence/test_full_disk.py"


def run(base: Path, *args: str, **env: str) -> str:
    # Without a folder of its own it would remove those of earlier runs, which takes minutes.
    own = ("-n", "1", "-p", "no:cacheprovider", f"--basetemp={base / 'own'}")
    command = [sys.executable, "-m", "pytest", *own, *args]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**outside, "SEERD_CI": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_what_cannot_run_here_is_told_with_the_command_that_runs_it(tmp_path: Path) -> None:
    told = run(tmp_path, FULL, "tests/test_units.py", SEERD_WITHOUT="mounts")
    assert f"{FULL}: 3 tests, they have disks of their own, which they fill: SEERD" in told
    assert "sudo make test-system" in told
    assert "skipped" not in told


def test_nothing_is_told_of_tests_that_were_not_chosen(tmp_path: Path) -> None:
    told = run(tmp_path, FULL, "tests/test_units.py", "-m", "fast", SEERD_WITHOUT="mounts")
    assert "not run here" not in told


@dataclass(frozen=True)
class Named:
    nodeid: str


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 80])
def test_whole_runs_wait_beside_tests_that_compute_and_none_is_left_out(
    workers: int, size: int
) -> None:
    items = [Named(f"tests/core/test_step.py::test_{i}") for i in range(size)]
    items += [Named(f"{file}::test_{i}") for file in reversed(WAITING) for i in range(2)]
    ordered = beside(items, workers)  # type: ignore[type-var]
    assert sorted(ordered, key=repr) == sorted(items, key=repr)
    if workers == 4 and size == 80:
        part = len(items) // workers
        begin = [ordered[worker * part].nodeid for worker in range(workers)]
        assert [place.startswith(WAITING) for place in begin] == [True, False, True, False]
        assert begin[0].startswith(WAITING[0])


@pytest.mark.parametrize(
    "place",
    [*FASTEST, *SLOWER, *WAITING, *(place for need in NEEDS for place in need.places)],
    ids=str,
)
def test_the_table_names_what_there_is(place: str) -> None:
    assert (ROOT / place.partition("::")[0]).exists()
