"""The list of mutants is true: each mistake can still be made, its tests are there, and docs/reliability.md shows all of them."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.bench import ROOT, ListError, mutated, outcome
from tests.mutants.catalogue import AMONG_FAULTS, AREAS, MUTANTS, QUICK, QUICK_NAMES
from tests.mutants.mutant import Mutant
from tests.mutants.table import rewrite, shown, tables


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mistake_can_be_made_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutated(mutant, text) != text
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in {"", *functions(ROOT / file)}, test


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_each_has_a_name_of_its_own_and_every_area_but_one_is_tried_in_make_test() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert len(QUICK) == len(QUICK_NAMES) >= 15
    tried = {area for area, mutants in AREAS.items() if set(mutants) & set(QUICK)}
    assert tried == AREAS.keys() - {AMONG_FAULTS}


def test_the_page_shows_the_list(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        rewrite()
    assert shown() == tables(), "run pytest tests/mutants/test_mutants.py --rewrite"


LEASE = next(mutant for mutant in MUTANTS if mutant.file == "agent/lease.py")


def test_a_mistake_that_its_tests_do_not_notice_survives() -> None:
    blind = ("tests/agent/test_agent_lease.py::test_the_newest_word_counts_even_if_it_is_shorter",)
    harmless = replace(LEASE, new=LEASE.old + "  # nothing else", tests=blind)
    assert outcome(harmless).caught_by == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"old": "return later"}, "stands 0 times"),
        ({"old": "self"}, "stands 6 times"),
        ({"tests": ("tests/agent/test_agent_lease.py::test_that_is_not_there",)}, "cannot be run"),
        ({"new": "raise SystemExit\nimport nothing_of_this_name"}, "cannot be run"),
    ],
)
def test_what_proves_nothing_is_an_error(change: dict[str, str], why: str) -> None:
    """A text that has changed, a test that is not there, a module that cannot be imported: none of it is a mistake that was caught."""
    at_import = {"old": "from dataclasses import dataclass\n"} if "new" in change else {}
    with pytest.raises(ListError, match=why):
        outcome(replace(LEASE, **change, **at_import))
