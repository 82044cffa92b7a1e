"""Mistakes that are drawn at random: the same ones each time, each of them code."""

from __future__ import annotations

import ast
from pathlib import Path

import coverage
import pytest

from tests.mutants import reaching
from tests.mutants.at_random import reaching_tests, varied
from tests.mutants.drawing import ROOMS, Drawn, drawn, uses
from tests.mutants.places import ROOT
from tests.mutants.reaching import Reached


@pytest.mark.parametrize("room", ROOMS)
def test_the_same_seed_draws_the_same_mistakes_and_each_changes_the_code(room: str) -> None:
    mistakes = drawn(room, 20, 3)
    assert mistakes == drawn(room, 20, 3)
    assert mistakes != drawn(room, 20, 4)
    assert len({(mistake.file, mistake.text) for mistake in mistakes}) == 20
    for mistake in mistakes:
        was = (ROOT / mistake.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(mistake.text)) != ast.dump(ast.parse(was)), mistake


def test_a_mistake_is_tried_by_the_tests_that_reach_it_the_quickest_first() -> None:
    (mistake,) = drawn("core", 1, 5)
    line = mistake.around[0].start
    reached = Reached(
        {"slow": 2.0, "quick": 0.1, "far": 0.1}, {mistake.file: {line: {"slow", "quick"}}}
    )
    assert reaching_tests(mistake, reached) == ["quick", "slow"]


def test_a_file_of_many_quick_tests_does_not_keep_others_from_their_turn() -> None:
    many = {f"one.py::test_{number}": 0.01 for number in range(100)}
    tests = [*many, "other.py::test"]
    assert varied(Reached({**many, "other.py::test": 0.3}, {}), tests).index("other.py::test") < 10


def test_a_constant_is_tried_by_the_tests_that_use_it() -> None:
    assert uses("ORPHAN_TIMEOUT_S").keys() >= {"seerd/aws/userdata.py"}


def test_what_an_agent_runs_is_reached_by_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "RECORDED", tmp_path)
    monkeypatch.setattr(reaching, "PARTS", {"slower": ["tests/agent/test_agent_waits.py"]})
    reaching.record(1)
    (test,) = reaching.read().tests
    reached = reaching.read().lines
    for file in ("agent/attempts.py", "agent/orders.py", "agent/talk.py"):
        within = [line for line, tests in reached[file].items() if test in tests]
        assert len(within) > 20, file


def test_lines_of_other_processes_are_added_to_those_that_are_combined(tmp_path: Path) -> None:
    for name, line in (("lines", 1), ("lines.other", 2)):
        data = coverage.CoverageData(str(tmp_path / name))
        data.add_lines({"x.py": [line]})
        data.write()
    (tmp_path / "lines.killed").write_bytes(b"half a file")
    reaching._combine(tmp_path)
    combined = coverage.CoverageData(str(tmp_path / "lines"))
    combined.read()
    assert sorted(combined.lines("x.py") or ()) == [1, 2]


def test_a_constant_is_first_tried_by_the_tests_that_use_it_in_its_own_file() -> None:
    name, file, other = "VERSION", "planner/halving.py", "planner/asha.py"
    lines = {path: {uses(name)[path][-1]: {path}} for path in (file, other)}
    reached = Reached({file: 2.0, other: 0.1}, lines)
    mistake = Drawn(file, [range(1, 2)], "module", name, "1", "2", "")
    assert reaching_tests(mistake, reached) == [file, other]
