"""Tries mutants: a copy of the project with one mistake in it, and the tests that must notice.

The one rule: the working tree is only read. A mutant is caught if a test has failed; tests that
cannot be collected, that take too long or that none of is found prove nothing, and are an error of
the list.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tests.mutants.mutant import Mutant
from tests.mutants.places import ROOT, ListError, changed, where

NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".ci", ".hypothesis", ".*_cache", "build", "dist", "*.egg-info", ".work"
)
ALL_S = 1800
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)", re.MULTILINE)
"""A test that has noticed; one whose fixture has, too. A file that cannot be imported has no `::`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a mutant's tests: the first that failed, empty if none did; what pytest printed."""

    caught_by: str
    output: str


@dataclass(frozen=True, slots=True)
class Copy:
    """The project in another folder, and a process beside it that runs tests of it in forks."""

    path: Path
    _process: subprocess.Popen[str]

    def answer(self, tests: Sequence[str], limit_s: float) -> dict[str, Any]:
        """Run these tests, as `tests.mutants.forks` does."""
        assert self._process.stdin
        assert self._process.stdout
        request = {"tests": tests, "limit_s": limit_s}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def mutated(mutant: Mutant) -> tuple[Path, str]:
    """The file, relative to the project, and its text with the mistake in it. Raises
    `ListError`.
    """
    place = where(mutant.place)
    try:
        text = changed(place, mutant.old, mutant.new)
    except ListError as error:
        raise ListError(f"{mutant.name}: {error}") from None
    file = place.path.relative_to(ROOT)
    compile(text, file, "exec")
    return file, text


def outcome(mutant: Mutant, copy: Copy) -> Outcome:
    """Try it in a copy of the project, which is as before then. Raises `ListError`."""
    file, changed_text = mutated(mutant)
    path = copy.path / file
    before, status_before = path.read_bytes(), path.stat()
    bytecode = Path(cache_from_source(str(path)))
    try:
        bytecode.unlink(missing_ok=True)  # it may look as new as the new text
        path.write_text(changed_text, encoding="utf-8")
        status, output = run(copy, mutant.tests)
    finally:
        bytecode.unlink(missing_ok=True)
        path.write_bytes(before)
        os.utime(path, ns=(status_before.st_atime_ns, status_before.st_mtime_ns))
    failed = FAILED.search(output)
    if status not in (0, 1) or (status == 1 and failed is None):
        raise ListError(
            f"{mutant.name}: its tests cannot be run (pytest's exit status {status}):\n{output}"
        )
    return Outcome(failed[1] if failed else "", output)


def check_unmutated(mutants: Iterable[Mutant], copy: Copy) -> None:
    """In a copy without any mistake all these tests pass. Raises `ListError`."""
    ids = sorted({test for mutant in mutants for test in mutant.tests})
    status, output = run(copy, ids)
    if status:
        raise ListError(f"without any mistake these tests do not pass:\n{output}")


@contextmanager
def copied(alone: Sequence[str] = ()) -> Iterator[Copy]:
    """The project, with the bytecode that there is: a copy's files are as old as the originals.
    `alone`: what its process is started with.
    """
    with tempfile.TemporaryDirectory(prefix="seerd-mutant-") as folder:
        path = Path(folder) / "seerd"
        shutil.copytree(ROOT, path, ignore=NOT_COPIED, symlinks=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"PYTHONPATH": str(path), "OPENBLAS_NUM_THREADS": "1"}
        with subprocess.Popen(
            [*alone, sys.executable, "-m", "tests.mutants.forks"],
            cwd=path,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield Copy(path, process)


def run(copy: Copy, tests: Sequence[str]) -> tuple[int, str]:
    """Pytest's exit status and what it printed; the same examples every time where they are drawn.
    Raises `ListError` if it takes too long.
    """
    answer = copy.answer(tests, ALL_S)
    if answer["status"] is None:
        raise ListError(f"{', '.join(tests)}: not over after {ALL_S}s")
    return answer["status"], answer["printed"]
