"""Records once which tests reach which line, and how long each of them takes.

The one rule: only a test that has passed counts, and only lines that the test's own process or a
process that it has forked ran. It is a plugin of pytest, too: it writes how long the tests took.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from tests.mutants.places import ROOT
from tests.mutants.saving import SAVE_S
from tests.tiers import WAITING

RECORDED = ROOT / "build" / "reached"
TESTS_FILE = "SEERD_REACHED_TESTS"
"""The environment variable with the file for what each test took."""
SLOWER = (
    "tests/agent",
    "tests/shell",
    "tests/aws",
    "tests/contracts",
    "tests/core",
    "tests/planner",
    "tests/faults",
)
"""Folders whose slower tests are recorded, too: without them much of the rooms is out of reach."""
PARTS = {
    "fast": ["-m", "fast"],
    "slower": ["-m", "not fast", *SLOWER, *(f"--deselect={name}" for name in WAITING)],
}
SETTINGS = """\
[run]
branch = true
parallel = true
sigterm = true
patch = _exit
context = ${PYTEST_CURRENT_TEST-}
source_pkgs = planner, seerd
plugins = tests.mutants.saving
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""
"""For processes that tests start: what they run is what their test reaches. Agents run out of their
zip, in isolated mode: coverage's own `.pth` begins, and packages are told by their names.
"""
FIND = f"sys.path.append({str(ROOT)!r})"
LIMIT_S = 900
"""What a test may take while lines are recorded, seconds. The signal of a limit that is reached may
come while coverage holds its lock, and the recording hangs then.
"""
LONGEST_S = 20
"""A test that takes longer is of no use for a mutant that should cost seconds."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Which tests reach a line, and how long each takes.

    tests   seconds, by pytest's id
    lines   ids of the tests, by file (relative to the project) and line
    """

    tests: dict[str, float]
    lines: dict[str, dict[int, set[str]]]

    def tests_of(self, lines: Mapping[str, Iterable[int]]) -> list[str]:
        """Return the tests that reach any of these lines of files, the quickest first."""
        tests = {
            test
            for file, numbers in lines.items()
            for line in numbers
            for test in self.lines.get(file, {}).get(line, ())
        }
        return sorted(tests & self.tests.keys(), key=lambda test: (self.tests[test], test))


def record(jobs: int = 2) -> None:
    """Run the tests, and keep what they reach in build/reached."""
    shutil.rmtree(RECORDED, ignore_errors=True)
    for part, options in PARTS.items():
        folder = RECORDED / part
        folder.mkdir(parents=True)
        (folder / "settings").write_text(SETTINGS)
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.reaching", "-n", str(jobs)]
        command += ["-p", "no:cacheprovider", "--cov", "--cov-context=test", "--cov-report="]
        command += ["--hypothesis-seed=0", f"--timeout={LIMIT_S}", *options]
        files = {"COVERAGE_FILE": str(folder / "lines"), TESTS_FILE: str(folder / "tests")}
        if part == "slower":
            files |= {"COVERAGE_PROCESS_START": str(folder / "settings")}
            files |= {"PYTHONPATH": str(ROOT)}
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        with _plugin_found():
            subprocess.run(command, cwd=ROOT, env={**env, **files}, check=False)
        _combine(folder)


@contextmanager
def _plugin_found() -> Iterator[None]:
    """Have isolated processes, which read no PYTHONPATH, find coverage's plugin."""
    begin = Path(sysconfig.get_path("purelib"), "__reached.pth")  # is read before coverage's own
    begin.write_text(f"import os, sys; 'COVERAGE_PROCESS_START' in os.environ and {FIND}\n")
    try:
        yield
    finally:
        begin.unlink(missing_ok=True)


def _combine(folder: Path) -> None:
    """Put what processes have written together; what a killed one has half written is left out."""
    parts = [str(path) for path in folder.glob("lines.*")]
    if parts:
        combined = coverage.Coverage(data_file=str(folder / "lines"), config_file=False)
        combined.load()  # what pytest-cov has combined already
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            combined.combine(parts)
        combined.save()


def is_old() -> bool:
    """Return whether code or tests have changed since lines and tests were recorded."""
    if not all((RECORDED / part / "lines").exists() for part in PARTS):
        return True
    recorded_s = min((RECORDED / part / "lines").stat().st_mtime for part in PARTS)
    folders = (ROOT / name for name in ("agent", "planner", "seerd", "tests"))
    files = (path for folder in folders for path in folder.rglob("*.py"))
    return any(path.stat().st_mtime > recorded_s for path in files if "mutants" not in path.parts)


def read() -> Reached:
    """Return what was recorded last."""
    took: Counter[str] = Counter()
    failed = set()
    lines: dict[str, dict[int, set[str]]] = {}
    for part in PARTS:
        for row in map(json.loads, (RECORDED / part / "tests").read_text("utf-8").splitlines()):
            took[row["test"]] += row["seconds"]
            failed |= {row["test"]} if row["outcome"] != "passed" else set()
        data = coverage.CoverageData(str(RECORDED / part / "lines"))
        data.read()
        for path in data.measured_files():
            file = _file_of(path)
            for line, contexts in data.contexts_by_lineno(path).items():
                lines.setdefault(file, {}).setdefault(line, set()).update(map(_test_of, contexts))
    tests = {test: s for test, s in took.items() if test not in failed and s <= LONGEST_S}
    return Reached(tests, lines)


def _file_of(path: str) -> str:
    """Return a file's name in the project; agents have their own copy, as the package `seerd`."""
    if Path(path).is_relative_to(ROOT):
        return str(Path(path).relative_to(ROOT))
    package = "seerd" + path.rpartition("/seerd")[2]
    return str((ROOT / package).resolve().relative_to(ROOT))


def _test_of(context: str) -> str:
    """Return a test's id: pytest-cov adds `|run`, and pytest's variable ` (call)`."""
    return re.sub(r"\|\w+$| \(\w+\)$", "", context)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let agents write what they have run before their test ends them."""
    if {"rig", "two_rigs"} & set(getattr(item, "fixturenames", ())):
        time.sleep(2 * SAVE_S)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what a part of a test took, in the process that collects the results."""
    file = os.environ.get(TESTS_FILE)
    if file and "PYTEST_XDIST_WORKER" not in os.environ:
        row = {"test": report.nodeid, "seconds": report.duration, "outcome": report.outcome}
        with open(file, "a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
