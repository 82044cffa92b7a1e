"""The list of mutants is true: each mistake can still be made, and its tests are there.

docs/mutants.md shows all of them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.bench import mutated
from tests.mutants.catalogue import AMONG_FAULTS, AREAS, MUTANTS, QUICK, QUICK_NAMES
from tests.mutants.mutant import Mutant
from tests.mutants.places import ROOT, ListError, Named, changed, unchanged, where
from tests.mutants.table import FIGURES, PAGE, RELIABILITY, page, rewrite


def test_each_mistake_can_be_made_and_its_tests_are_there() -> None:
    by_file = sorted(MUTANTS, key=file_of)
    assert [f"{mutant.name}: {why}" for mutant in by_file for why in wrong(mutant)] == []


def file_of(mutant: Mutant) -> str:
    """The file of its place, "" if it is not there."""
    try:
        return str(where(mutant.place).path)
    except ListError:
        return ""


def wrong(mutant: Mutant) -> Iterator[str]:
    """Say why the mistake cannot be made, and which of its tests are missing."""
    try:
        file, text = mutated(mutant)
        if text == unchanged(ROOT / file):
            yield "nothing is changed"
    except ListError as error:
        yield str(error)
    if not mutant.tests:
        yield "it has no tests"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        if not (ROOT / file).exists() or name.partition("[")[0] not in {
            "",
            *functions(ROOT / file),
        }:
            yield f"{test} is missing"


def test_a_mistake_that_cannot_be_made_is_named() -> None:
    gone = replace(MUTANTS[0], old="no such code", tests=("tests/no_file.py::test_x",))
    assert len([*wrong(gone)]) == 2
    assert [*wrong(replace(MUTANTS[0], tests=()))] == ["it has no tests"]


@cache
def functions(path: Path) -> set[str]:
    return set(re.findall(r"^def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_each_has_a_name_of_its_own_and_every_area_but_one_is_tried_in_make_test() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert len(QUICK) == len(QUICK_NAMES) >= 15
    tried = {area for area, mutants in AREAS.items() if set(mutants) & set(QUICK)}
    assert tried == AREAS.keys() - {AMONG_FAULTS}


def test_the_page_shows_the_list(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        rewrite()
    wrong = "run pytest tests/mutants/test_mutants.py --rewrite"
    assert PAGE.read_text("utf-8") == page(), wrong
    assert FIGURES in RELIABILITY.read_text("utf-8"), wrong


CODE = """
LIMITS = {"one": 1, "two": 2, "three": 3}
SCRIPT = "first\\nsecond\\n"
class A:
    def f(self, x):
        if (x and  # why
                self.y):
            return 'a'
        self.z = g(
            x,
        )
"""


@pytest.mark.parametrize(
    ("name", "old", "new", "instead"),
    [
        ("A.f", "x and self.y", "x", ("if x and self.y:", "if x:")),
        ("A.f", "self.z = g(x)", "", ("        self.z = g(x)", "")),
        ("A.f", 'return "a"', "", ("return 'a'", "pass")),
        ("A.f", "g(x)", "x\n", ("g(x)", "x")),
        ("LIMITS", '{"two": 2}', "{}", ("'two': 2, ", "")),
        ("LIMITS", '{"two": 2}', '{"two": 9, "four": 4}', ("'two': 2", "'two': 9, 'four': 4")),
        ("SCRIPT", '"second"', '"third"', ("second", "third")),
    ],
)
def test_code_is_found_however_it_is_written(
    tmp_path: Path, name: str, old: str, new: str, instead: tuple[str, str]
) -> None:
    path = tmp_path / "code.py"
    path.write_text(CODE)
    place = Named(path, ("code",), tuple(name.split(".")))
    code = ast.unparse(ast.parse(changed(place, old, new)))
    assert code == ast.unparse(ast.parse(ast.unparse(ast.parse(CODE)).replace(*instead)))


def test_a_name_alone_is_no_methods_and_the_modules_before_it_tell_two_apart() -> None:
    method = Named(ROOT, ("seerd", "shell", "agents"), ("Talk", "begin"))
    function = Named(ROOT, ("seerd", "shell", "agents"), ("begin",))
    assert [one.is_called(("begin",)) for one in (method, function)] == [False, True]
    assert [one.is_called(("Talk", "begin")) for one in (method, function)] == [True, False]
    assert [one.is_called(("agents", "begin")) for one in (method, function)] == [False, True]
    assert where("Lease.ended").path == ROOT / "agent" / "serve.py"
