"""Quick mutants are caught: a test of the tests. `make mutants` tries all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.mutants.bench import Copy, check_unmutated, copied, outcome
from tests.mutants.catalogue import MUTANTS, QUICK
from tests.mutants.mutant import Mutant
from tests.mutants.places import ListError

LEASE = next(mutant for mutant in MUTANTS if mutant.place == "Lease.ended")


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    """Of the project: their tests pass in it, or a failure would prove nothing."""
    with copied() as copy:
        check_unmutated(QUICK, copy)
        yield copy


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant, copy: Copy) -> None:
    found = outcome(mutant, copy)
    assert found.caught_by, (
        f"no test notices it, and it breaks this: {mutant.breaks}\n{found.output}"
    )


def test_a_mistake_that_its_tests_do_not_notice_survives(copy: Copy) -> None:
    blind = ("tests/agent/test_agent_lease.py::test_the_newest_word_counts_even_if_it_is_shorter",)
    assert outcome(replace(LEASE, new=f"({LEASE.old})", tests=blind), copy).caught_by == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"place": "Lease.begin"}, "is not there"),
        ({"place": "main"}, "is any of"),
        ({"old": "later"}, "stands 0 times"),
        ({"place": "serve.Lease", "old": "self"}, r"stands \d+ times"),
        ({"tests": ("tests/agent/test_agent_lease.py::test_that_is_not_there",)}, "cannot be run"),
        ({"new": "not)"}, "is no code"),
        ({"place": "Lease.last_s", "old": "120.0", "new": "nothing_of_this_name"}, "cannot be run"),
    ],
)
def test_what_proves_nothing_is_an_error(change: dict[str, str], why: str, copy: Copy) -> None:
    """Code that has changed, a test that is not there, a module that cannot be imported: none of
    it is a mistake that was caught.
    """
    with pytest.raises(ListError, match=why):
        outcome(replace(LEASE, **change), copy)
