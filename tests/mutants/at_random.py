"""Tries mistakes that are drawn at random, and says which of them no test notices.

The one rule: for each mistake only tests run that reach its lines, quick ones of many files first,
and for a limited time; then types are checked, as `make check` does. What survives may yet be
noticed by a slow test, what is caught is caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.bench import Copy, copied
from tests.mutants.drawing import Drawn, drawn, uses
from tests.mutants.places import ROOT, ListError
from tests.mutants.reaching import Reached, is_old, read, record

FIRST_S = 1.5
"""Seconds of tests, by their own record, that are tried first: most mistakes need no more."""
SPEND_S = 25.0
"""Seconds of tests that are tried at most."""
LIMIT_S = 60 + 4 * SPEND_S
START_S = 0.05
"""What a test costs beside its own time."""
TYPES = "mypy"
"""What has noticed a mistake that no test has."""
CHECKED = ROOT / "build" / TYPES
"""What is known of the types without any mistake, so that each check takes seconds."""
PASSED, NOT_THERE = 0, 4
"""Exit statuses of pytest."""
NOTICED = {1: "a test", 2: "an import", None: "a time limit"}
"""Exit statuses of pytest that notice a mistake, and what has noticed it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A drawn mistake: what noticed it, empty if nothing did; how many tests reach it."""

    drawn: Drawn
    caught_by: str
    tests: int
    seconds: float


class Bench:
    """A copy of the project whose types are known."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        shutil.copytree(CHECKED, copy.path / "build" / TYPES)
        self._made = 0

    def tried(self, mistake: Drawn, reached: Reached, spend_s: float = SPEND_S) -> Tried:
        """Try one mistake."""
        began = time.monotonic()
        all_tests = reaching_tests(mistake, reached)
        tests = _within(reached, varied(reached, all_tests), spend_s)
        first = _within(reached, tests, FIRST_S)
        path = self._copy.path / mistake.file
        before, status = path.read_bytes(), path.stat()
        self._made += 1
        try:
            path.write_text(mistake.text, encoding="utf-8")
            # Bytecode goes by the time: each mistake has one of its own.
            os.utime(path, (self._made, self._made))
            caught = self._failed(first) or self._failed(tests[len(first) :]) or self._mistyped()
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return Tried(mistake, caught, len(all_tests), round(time.monotonic() - began, 1))

    def _failed(self, tests: list[str]) -> str:
        """Return what failed first, empty if all have passed."""
        if not tests:
            return ""
        answer = self._copy.answer(tests, LIMIT_S)
        if answer["status"] == NOT_THERE:  # parameters of tests have changed with the code
            answer = self._copy.answer(
                list(dict.fromkeys(test.partition("[")[0] for test in tests)), LIMIT_S
            )
        if answer["status"] == PASSED:
            return ""
        if (answer["status"] or 0) < 0:
            return "a signal"
        if answer["failed"] or answer["status"] in NOTICED:
            return str(answer["failed"]) or NOTICED[answer["status"]]
        raise ListError(f"tests cannot be run ({answer['status']}):\n{answer['printed']}")

    def _mistyped(self) -> str:
        """Return what notices that types are wrong, empty if they are not."""
        return "" if types_fit(self._copy.path, self._copy.path / "build" / TYPES) else TYPES


def types_fit(project: Path, cache: Path) -> bool:
    """Check the types of a copy of the project, or of itself."""
    command = [sys.executable, "-m", TYPES, "--cache-dir", str(cache)]
    found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if found.returncode not in (0, 1):
        raise ListError(f"types cannot be checked:\n{found.stdout}{found.stderr}")
    return not found.returncode


def _alone() -> list[str]:
    """Return what starts a program among processes of its own: a mistake in what kills processes
    may kill all that there are.
    """
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    alone += [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    if shutil.which(alone[0]) is None:
        return []
    tried = subprocess.run([*alone, "true"], check=False, capture_output=True)
    return [] if tried.returncode else alone


def reaching_tests(mistake: Drawn, reached: Reached) -> list[str]:
    """Return the tests that reach what is changed, or else what goes by it: first what does in its
    own file, since other files may mean something else by the same name.
    """
    for lines in mistake.around[:1] if mistake.name else mistake.around:
        if tests := reached.tests_of({mistake.file: lines}):
            return tests
    used = uses(mistake.name)
    near = reached.tests_of({mistake.file: used.get(mistake.file, [])})
    whole = {mistake.file: reached.lines.get(mistake.file, {})}
    return [*dict.fromkeys([*near, *reached.tests_of(used)])] or reached.tests_of(whole)


def varied(reached: Reached, tests: list[str]) -> list[str]:
    """Return the same tests, which come the quickest first, so that no file's many tests keep those
    of others from their turn.
    """
    weights, of_file = {}, Counter[str]()
    for test in tests:
        of_file[test.partition("::")[0]] += 1
        weights[test] = (reached.tests[test] + START_S) * of_file[test.partition("::")[0]]
    return sorted(tests, key=weights.__getitem__)


def _within(reached: Reached, tests: list[str], spend_s: float) -> list[str]:
    """Return the first of these tests that take so long together, at least one."""
    spent = 0.0
    for at, test in enumerate(tests):
        spent += reached.tests[test] + START_S / 10
        if spent > spend_s and at:
            return tests[:at]
    return tests


def tried_all(mistakes: list[Drawn], reached: Reached, jobs: int) -> list[Tried]:
    """Try all of them, so many at a time; say each one's end on standard error."""
    with ExitStack() as stack:
        free: SimpleQueue[Bench] = SimpleQueue()
        for _ in range(jobs):
            free.put(Bench(stack.enter_context(copied(_alone()))))

        def one(mistake: Drawn) -> Tried:
            bench = free.get()
            try:
                result = bench.tried(mistake, reached)
            finally:
                free.put(bench)
            end = result.caught_by or "SURVIVED"
            place = f"{mistake.file}:{mistake.around[0].start} {mistake.place}"
            was = f"{mistake.old} -> {mistake.new}".replace("\n", " ")
            print(f"{result.seconds:5.1f}s  {place}: {was[:100]}  {end}", file=sys.stderr)
            return result

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mistakes))


def report(results: dict[str, list[Tried]], seed: int) -> dict[str, object]:
    """Write what came of each room as JSON: the share that was caught, and what survived."""
    return {
        "seed": seed,
        "rooms": {
            room: {
                "drawn": len(tried),
                "caught": sum(bool(result.caught_by) for result in tried),
                "share": round(sum(bool(r.caught_by) for r in tried) / max(1, len(tried)), 3),
                "by types alone": sum(result.caught_by == TYPES for result in tried),
                "reached by no test": sum(not result.tests for result in tried),
            }
            for room, tried in results.items()
        },
        "seconds": round(sum(r.seconds for tried in results.values() for r in tried)),
        "caught by": dict(
            Counter(
                Path(r.caught_by.partition("::")[0]).stem
                for tried in results.values()
                for r in tried
                if r.caught_by
            ).most_common()
        ),
        "survived": [
            {
                "place": f"{r.drawn.file}:{r.drawn.around[0].start} {r.drawn.place}",
                "old": r.drawn.old,
                "new": r.drawn.new,
                "tests": r.tests,
            }
            for tried in results.values()
            for r in tried
            if not r.caught_by
        ],
    }


def at_random(count: int, seed: int, rooms: list[str], jobs: int) -> dict[str, object]:
    """Draw so many mistakes in all, as many of each room, and try them: the report."""
    if is_old():
        print("recording which tests reach which lines, for some minutes", file=sys.stderr)
        record(jobs)
    reached = read()
    if not types_fit(ROOT, CHECKED):
        raise ListError("types do not fit without any mistake: make check")
    mistakes = {
        room: drawn(room, count // len(rooms) + (at < count % len(rooms)), seed)
        for at, room in enumerate(rooms)
    }
    results = iter(tried_all([m for ms in mistakes.values() for m in ms], reached, jobs))
    return report({room: [*islice(results, len(ms))] for room, ms in mistakes.items()}, seed)
