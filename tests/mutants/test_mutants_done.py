"""Quick mutants of everything but decisions are caught: a test of the tests. `make mutants` tries
all.
"""

from __future__ import annotations

import pytest

from tests.mutants.bench import check_unmutated, outcome
from tests.mutants.catalogue import AREAS, QUICK
from tests.mutants.mutant import Mutant

MINE = [m for m in QUICK if m not in (*AREAS["what is decided"], *AREAS["what is counted"])]


@pytest.fixture(scope="module", autouse=True)
def without_any_mistake() -> None:
    """Their tests pass in a copy of the project, or a failure would prove nothing."""
    check_unmutated(MINE)


@pytest.mark.parametrize("mutant", MINE, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant) -> None:
    found = outcome(mutant)
    assert found.caught_by, (
        f"no test notices it, and it breaks this: {mutant.breaks}\n{found.output}"
    )
